"""`check` finds each kind of thing that is not as it must be, and nothing in a store that is."""

from __future__ import annotations

from typing import Any

import pytest

from producer import keys
from producer.convergence import check, content, driver, marks
from producer.convergence.delivery import Delivery
from producer.recall import where as recall_where
from producer.scope import Scope
from producer.store.sqlite import SqliteStore
from tests.unit.convergence.cast import (
    OTHER,
    SCOPE,
    SCOPE_KEY,
    at,
    episode,
    fact,
    given,
    id_of,
    order,
    session_key,
)


def settle(store: SqliteStore, *deliveries: Any) -> None:
    for delivery in deliveries:
        driver.settle_all(store, [delivery])


def found(store: SqliteStore) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(p.code, p.id, p.others) for p in check.check(store, contents={}, marks_where={})]


def put(store: SqliteStore, event: dict[str, Any], *, line: str = "", twin: str = "", **verdict: Any) -> None:
    """A record as a worker that died would leave it."""
    label = content.label_of(event)
    key = session_key() if label == "EPISODE" else ""
    row = content.row_of(event, scope_key=keys.scope_key(event), session_key=key, line_key=line)
    merge_by = content.merge_by(label)
    if twin:
        row["twin"], merge_by = twin, (*merge_by, "twin")
    store.upsert(label, [{**row, **({"active": True} if label == "MEMORY_FACT" else {}), **verdict}], merge_by)


def thing(when: str) -> Delivery:
    said = {"label": "ENTITY", "kind": "person", "name": "ann", "properties": {"seen": when}}
    return order("entity", when=when, sourceEventId=when, trustClass="trusted", provenance="test", **said)


def mark(store: SqliteStore, what: str, target: str, by: str, when: str) -> None:
    row = marks.Mark(what=what, target=target, by=by, scope_key=SCOPE_KEY, at=when).row()
    store.upsert("MEMORY_MARK", [row], ("markKey",))


class TestCheck:
    def test_finds_nothing_in_a_store_that_settled(self, store: SqliteStore) -> None:
        tea = fact("tea")
        coffee = fact("coffee", supersedesFactId=id_of(tea), validFrom=at(60))
        line = keys.line_key_of_subject(scope_key=SCOPE_KEY, subject_key="user", kind="preference")
        settle(
            store,
            *(given(event) for event in (coffee, tea, episode(), fact("tea", scope=OTHER))),
            *(given(fact(f"editor {n}", validFrom=at(n)), line=line) for n in (2, 0, 1)),
            order("retract", target=id_of(coffee)),
            order("forget", target=id_of(tea)),
        )
        assert found(store) == []

    def test_duplicate_is_several_records_of_one_content(self, store: SqliteStore) -> None:
        tea = fact("tea")
        put(store, tea, twin="1")
        put(store, tea, twin="2")
        assert found(store) == [("duplicate", id_of(tea), ())]
        settle(store, given(tea))
        assert found(store) == []

    def test_unsettled_is_a_record_that_does_not_say_what_its_marks_ask_for(self, store: SqliteStore) -> None:
        tea = fact("tea")
        put(store, tea)
        mark(store, marks.RETRACTED, id_of(tea), "order", at(5))
        assert found(store) == [("unsettled", id_of(tea), ())]
        settle(store, given(tea))
        assert found(store) == []

    def test_forgotten_remains_is_a_record_under_a_forgotten_id(self, store: SqliteStore) -> None:
        turn = episode()
        put(store, turn)
        mark(store, marks.FORGOTTEN, id_of(turn), "order", at(5))
        assert found(store) == [("forgotten_remains", id_of(turn), ())]
        settle(store, given(turn))
        assert found(store) == []

    def test_an_operators_forgetting_counts_in_every_scope(self, store: SqliteStore) -> None:
        tea = fact("tea", scope=OTHER)
        put(store, tea)
        row = marks.Mark(
            what=marks.FORGOTTEN, target=id_of(tea), by="order", scope_key=marks.EVERYWHERE, at=at(5)
        ).row()
        store.upsert("MEMORY_MARK", [row], ("markKey",))
        assert found(store) == [("forgotten_remains", id_of(tea), ())]

    def test_conflict_is_other_content_under_one_id_of_one_scope(self, store: SqliteStore) -> None:
        tea = fact("tea")
        settle(store, given(tea), given({**tea, "kind": "rule"}))
        assert found(store) == [("conflict", id_of(tea), ())]

    def test_versions_of_a_thing_are_checked_like_facts(self, store: SqliteStore) -> None:
        versions = [thing(at(n)) for n in range(3)]
        settle(store, *versions)
        assert found(store) == []
        for record in store.find("ENTITY", {}).records[:2]:
            store.upsert("ENTITY", [{**record.properties, "active": True}], ("entityKey", "contentHash"))
            store.upsert("ENTITY", [{**record.properties, "twin": "1"}], ("entityKey", "twin"))
        assert {code for code, _, _ in found(store)} == {"duplicate", "unsettled"}
        settle(store, *versions)
        assert found(store) == []

    def test_cycle_is_a_ring_without_a_current_fact(self, store: SqliteStore) -> None:
        tea, coffee = fact("tea"), fact("coffee", validFrom=at(5))
        ring = sorted([id_of(tea), id_of(coffee)])
        settle(
            store,
            given({**tea, "supersedesFactId": id_of(coffee)}),
            given({**coffee, "supersedesFactId": id_of(tea)}),
        )
        assert ("cycle", ring[0], (ring[1],)) in found(store)

    def test_a_chain_is_no_cycle(self, store: SqliteStore) -> None:
        chain = [fact("v 0")]
        for n in range(1, 30):
            chain.append(fact(f"v {n}", supersedesFactId=id_of(chain[-1]), validFrom=at(n)))
        settle(store, *(given(one) for one in chain))
        assert found(store) == []

    def test_superseder_missing_is_a_mark_by_what_is_not_there(self, store: SqliteStore) -> None:
        tea, coffee = fact("tea"), fact("coffee")
        settle(store, given(tea))
        mark(store, marks.SUPERSEDED, id_of(tea), id_of(coffee), at(60))
        settle(store, given(tea))
        assert found(store) == [("superseder_missing", id_of(tea), (id_of(coffee),))]

    def test_a_superseder_that_was_forgotten_is_not_missing(self, store: SqliteStore) -> None:
        tea = fact("tea")
        coffee = fact("coffee", supersedesFactId=id_of(tea), validFrom=at(60))
        settle(store, given(tea), given(coffee), order("forget", target=id_of(coffee)))
        assert found(store) == []

    def test_target_missing_is_a_name_that_nothing_answers_to(self, store: SqliteStore) -> None:
        tea = fact("tea")
        coffee = fact("coffee", supersedesFactId=id_of(tea), validFrom=at(60))
        settle(store, given(coffee))
        assert found(store) == [("target_missing", id_of(coffee), (id_of(tea),))]

    @pytest.mark.parametrize("target", ["a line", "a fact"])
    def test_two_current_is_more_than_one_that_stands(self, store: SqliteStore, target: str) -> None:
        old = fact("old")
        key = "2" * 64 if target == "a line" else id_of(old)
        if target == "a fact":
            settle(store, given(old))
        both = [fact(f"new {n}", validFrom=at(n + 1)) for n in range(2)]
        for event in both:
            put(store, event, line=key if target == "a line" else "")
            mark(store, marks.SUPERSEDED, key, id_of(event), event["validFrom"])
        if target == "a fact":
            settle(store, given(old))  # compete over nothing: it only takes its verdict
        assert ("two_current", key, tuple(sorted(id_of(event) for event in both))) in found(store)

    def test_clock_skew_is_a_superseder_that_began_to_hold_long_before_what_it_replaced(
        self, store: SqliteStore
    ) -> None:
        tea = fact("tea", validFrom=at(1000))
        near = fact("near", supersedesFactId=id_of(tea), validFrom=at(1000 - check.SKEW_S))
        settle(store, given(tea), given(near))
        assert found(store) == []
        far = fact("far", supersedesFactId=id_of(near), validFrom=at(1000 - 2 * check.SKEW_S - 1))
        settle(store, given(far))
        assert found(store) == [("clock_skew", id_of(near), (id_of(far),))]

    def test_clock_skew_is_a_time_long_after_the_store_took_it(self, store: SqliteStore) -> None:
        ahead = fact("ahead", validFrom="2999-01-01T00:00:00.000Z")
        settle(store, given(ahead))
        assert found(store) == [("clock_skew", id_of(ahead), ())]

    def test_a_scope_is_checked_by_its_own_records_and_marks_alone(self, store: SqliteStore) -> None:
        for event in (fact("tea"), fact("tea", scope=OTHER)):
            put(store, event, twin="1")
            put(store, event, twin="2")
        for scope in (SCOPE, OTHER):
            mine = Scope.of_fields(scope)
            (problem,) = check.check(store, contents=recall_where.within(mine), marks_where=recall_where.marks_of(mine))
            assert (problem.code, problem.scope_key) == ("duplicate", mine.key)

    def test_a_problem_holds_no_text(self, store: SqliteStore) -> None:
        tea = fact("a secret wish", kind="preference")
        put(store, tea, twin="1")
        put(store, tea, twin="2")
        assert "secret" not in repr(check.check(store, contents={}, marks_where={}))
