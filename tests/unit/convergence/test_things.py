"""Things (ENTITY, TASK, ARTIFACT), their versions and ordered links, one sentence each, on the embedded store."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from producer import keys
from producer.convergence import driver, reader
from producer.convergence.delivery import Failed, Settled
from producer.receipt import State
from producer.store import port
from producer.store.sqlite import SqliteStore
from tests.unit.convergence.cast import (
    OTHER,
    SCOPE,
    SCOPE_KEY,
    CountingStore,
    at,
    episode,
    fact,
    given,
    id_of,
    order,
    records,
)

STORED = Settled(state=State.STORED)


def thing(name: str = "ann", *, when: str = at(0), source: str = "", **fields: Any) -> Any:
    said = {
        "label": "ENTITY",
        "kind": "person",
        "name": name,
        "properties": {},
        "sourceEventId": source or f"write at {when}",
        "trustClass": "trusted",
        "provenance": "test",
        **fields,
    }
    return order("entity", when=when, **said)


def link(source: tuple[str, str], target: tuple[str, str], type: str = "ABOUT", **fields: Any) -> Any:
    ends = {name: {"label": label, "key": key} for name, (label, key) in (("from", source), ("to", target))}
    return order("link", type=type, **ends, **fields)


def key_of(name: str = "ann", label: str = "ENTITY", kind: str = "person", scope_key: str = SCOPE_KEY) -> str:
    return keys.object_key(label=label, scope_key=scope_key, kind=kind, name=name)


def settle(store: port.Store, *deliveries: Any) -> list[Any]:
    return [driver.settle_all(store, [delivery])[0] for delivery in deliveries]


def current(store: port.Store, label: str = "ENTITY") -> list[port.Record]:
    return reader.keep(records(store, label, active=True))


def edges(store: port.Store, label: str = "MEMORY_FACT", type: str = "ABOUT") -> list[tuple[str, str]]:
    return sorted((e.source_id, e.target_id) for e in store.edges(label, {}) if e.type == type)


class TestVersions:
    def test_a_thing_is_stored_under_its_key_with_its_own_properties_and_scope(self, store: SqliteStore) -> None:
        (result,) = settle(store, thing(properties={"email": "a@b.c", "age": 7, "admin": True, "score": 0.5}))
        assert (result.state, result.duplicate) == (State.STORED, False)
        (record,) = records(store, "ENTITY")
        said = record.properties
        assert said["entityKey"] == said["lineKey"] == key_of()
        assert {name: said[name] for name in ("email", "age", "admin", "score", "kind", "name")} == {
            "email": "a@b.c", "age": 7, "admin": True, "score": 0.5, "kind": "person", "name": "ann",
        }  # fmt: skip
        assert {name: said[name] for name in SCOPE} == SCOPE
        assert said["active"] is True

    @pytest.mark.parametrize("deliveries", list(itertools.permutations(range(3))))
    def test_the_latest_version_is_current_in_every_order(self, store: SqliteStore, deliveries: Any) -> None:
        versions = [thing(when=at(n), properties={"age": n}) for n in range(3)]
        settle(store, *(versions[n] for n in deliveries))
        (record,) = current(store)
        assert record.get("age") == 2
        assert len(records(store, "ENTITY")) == 3
        assert all(r.get("supersededByHash") for r in records(store, "ENTITY", active=False))

    def test_a_value_that_comes_back_is_current_again(self, store: SqliteStore) -> None:
        settle(store, *(thing(when=at(n), properties={"age": age}) for n, age in enumerate((1, 2, 1))))
        (record,) = current(store)
        assert (record.get("age"), record.get("validFrom")) == (1, at(2))

    def test_the_same_version_again_is_one_record_and_a_duplicate(self, store: SqliteStore) -> None:
        first, again = thing(source="write-1", when=at(0)), thing(source="write-1", when=at(5))
        assert [r.duplicate for r in settle(store, first, first, again)] == [False, True, True]
        assert len(records(store, "ENTITY")) == 1

    @pytest.mark.parametrize("label", ["ENTITY", "TASK", "ARTIFACT"])
    def test_labels_kinds_names_and_scopes_keep_things_apart(self, store: SqliteStore, label: str) -> None:
        settle(
            store,
            thing("a", label=label),
            thing("b", label=label, when=at(1)),
            thing("a", label=label, kind="other", when=at(2)),
            order("entity", scope=OTHER, when=at(3), **{k: v for k, v in thing("a", label=label).event.items()
                  if k in ("label", "kind", "name", "properties", "sourceEventId", "trustClass", "provenance")}),
        )  # fmt: skip
        assert len(current(store, label)) == 4

    @pytest.mark.parametrize(
        "fields",
        [
            {"label": "SESSION"},
            {"name": " "},
            {"kind": 7},
            {"trustClass": "very"},
            {"properties": []},
            {"properties": {"scopeKey": "x"}},
            {"properties": {"agentId": "x"}},
            {"properties": {"Bad Name": "x"}},
            {"properties": {"nested": {"a": 1}}},
            {"properties": {"text": "x" * 6002}},
            {"properties": {"beyondAllDoubles": 10**400}},
            {"properties": {f"p{n}": n for n in range(33)}},
        ],
    )
    def test_what_is_no_thing_is_refused_for_good(self, store: SqliteStore, fields: dict[str, Any]) -> None:
        (result,) = settle(store, thing(**fields))
        assert isinstance(result, Failed)
        assert type(result.error).__name__ == "ContractViolation"
        assert not records(store, "ENTITY")


class TestLinks:
    @pytest.mark.parametrize("deliveries", list(itertools.permutations(range(3))))
    def test_both_ends_are_linked_in_whatever_order_they_and_the_link_arrive(
        self, store: SqliteStore, deliveries: Any
    ) -> None:
        about = fact("ann likes tea")
        three = [given(about), thing(), link(("MEMORY_FACT", id_of(about)), ("ENTITY", key_of()))]
        settle(store, *(three[n] for n in deliveries))
        (source,), (target,) = records(store, "MEMORY_FACT"), records(store, "ENTITY")
        assert edges(store) == [(source.id, target.id)]

    def test_a_link_ordered_twice_is_one_and_costs_no_write_then(self, store: SqliteStore) -> None:
        about = fact("ann likes tea")
        ordered = link(("MEMORY_FACT", id_of(about)), ("ENTITY", key_of()))
        counting = CountingStore(store)
        settle(counting, given(about), thing(), ordered)
        writes = counting.writes
        settle(counting, ordered, link(("MEMORY_FACT", id_of(about)), ("ENTITY", key_of()), when=at(9)))
        assert counting.writes == writes
        assert len(edges(store)) == 1

    def test_a_new_version_of_a_thing_is_linked_as_the_one_before(self, store: SqliteStore) -> None:
        turn = episode("ann called")
        settle(store, given(turn), thing(), link(("EPISODE", id_of(turn)), ("ENTITY", key_of()), type="MENTIONS"))
        settle(store, thing(when=at(5), properties={"age": 8}))
        (source,) = records(store, "EPISODE")
        both = sorted(r.id for r in records(store, "ENTITY"))
        assert len(both) == 2
        assert edges(store, "EPISODE", "MENTIONS") == [(source.id, target) for target in both]

    def test_things_are_linked_to_things(self, store: SqliteStore) -> None:
        settle(
            store,
            link(("TASK", key_of("ship", "TASK")), ("ARTIFACT", key_of("report", "ARTIFACT")), type="PRODUCED"),
            thing("ship", label="TASK"),
            thing("report", label="ARTIFACT"),
        )
        assert len(edges(store, "TASK", "PRODUCED")) == 1

    def test_nothing_of_another_scope_is_linked(self, store: SqliteStore) -> None:
        theirs = fact("bob likes tea", scope=OTHER)
        settle(store, given(theirs), thing(), link(("MEMORY_FACT", id_of(theirs)), ("ENTITY", key_of())))
        settle(store, given(theirs), thing())
        assert edges(store) == []

    def test_a_link_says_nothing_about_being_current(self, store: SqliteStore) -> None:
        one, two = fact("one"), fact("two")
        settle(store, given(one), given(two))
        settle(store, link(("MEMORY_FACT", id_of(one)), ("MEMORY_FACT", id_of(two)), type="CONTRADICTS"))
        assert len(current(store, "MEMORY_FACT")) == 2

    @pytest.mark.parametrize(
        ("type_", "source", "target"),
        [
            ("SUPERSEDES", ("MEMORY_FACT", "1" * 64), ("MEMORY_FACT", "2" * 64)),
            ("about", ("MEMORY_FACT", "1" * 64), ("ENTITY", "2" * 64)),
            ("ABOUT", ("MEMORY_MARK", "1" * 64), ("ENTITY", "2" * 64)),
            ("ABOUT", ("MEMORY_FACT", "constructor"), ("ENTITY", "2" * 64)),
            ("ABOUT", ("ENTITY", "2" * 64), ("ENTITY", "2" * 64)),
        ],
    )
    def test_what_is_no_link_of_the_hosts_own_is_refused_for_good(
        self, store: SqliteStore, type_: str, source: tuple[str, str], target: tuple[str, str]
    ) -> None:
        (result,) = settle(store, link(source, target, type=type_))
        assert isinstance(result, Failed)
        assert not records(store, "MEMORY_MARK")


class TestForgetting:
    def test_a_participants_things_go_with_the_rest_and_stay_out(self, store: SqliteStore) -> None:
        group = {"participant": SCOPE["participantScopeHash"]}
        settle(store, thing(), thing("theirs"), order("forget", group=group, when=at(10)), thing())
        assert not records(store, "ENTITY")

    def test_a_thing_is_forgotten_in_all_its_versions_and_others_stay(self, store: SqliteStore) -> None:
        settle(store, thing(), thing(when=at(1)), thing("bob"))
        settle(store, order("forget", group={"entityKey": key_of()}, when=at(10)), thing(when=at(2), source="late"))
        assert [r.get("name") for r in records(store, "ENTITY")] == ["bob"]

    def test_a_thing_that_is_stated_anew_long_after_it_was_forgotten_is_there(self, store: SqliteStore) -> None:
        settle(store, thing(), order("forget", group={"entityKey": key_of()}, when=at(10)), thing(when=at(1000)))
        (record,) = current(store)
        assert record.get("validFrom") == at(1000)
