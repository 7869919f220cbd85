"""One memory by its id, and a fact's versions, on the embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from producer import keys
from producer.convergence import driver
from producer.recall import history
from producer.recall.history import State
from producer.scope import Scope
from producer.store.sqlite import SqliteStore
from tests.unit.convergence.cast import AT, OTHER, SCOPE, SCOPE_KEY, at, episode, fact, given, id_of, order

NOW = at(3600)
ME = Scope.of_fields(SCOPE)
ANOTHER = Scope.of_fields(OTHER)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "store.sqlite3")
    yield opened
    opened.close()


def settle(store: SqliteStore, *deliveries: Any) -> None:
    for delivery in deliveries:
        driver.settle_all(store, [delivery])


def states(found: history.History) -> list[tuple[str, State]]:
    return [(str((v.record or {}).get("text", "")), v.state) for v in found.versions]


class TestHistory:
    def test_shows_a_chain_from_any_of_its_versions_with_what_ended_each(self, store: SqliteStore) -> None:
        tea = fact("tea")
        coffee = fact("coffee", supersedesFactId=id_of(tea), validFrom=at(60))
        water = fact("water", supersedesFactId=id_of(coffee), validFrom=at(120))
        settle(store, given(water), given(tea), given(coffee))
        for asked in (tea, coffee, water):
            found = history.history(store, ME, id_of(asked), now=NOW)
            assert states(found) == [
                ("tea", State.SUPERSEDED),
                ("coffee", State.SUPERSEDED),
                ("water", State.CURRENT),
            ]
            assert [(v.by, v.ended_at) for v in found.versions] == [
                (id_of(coffee), at(60)),
                (id_of(water), at(120)),
                ("", ""),
            ]
            assert not found.cut

    def test_shows_who_said_it(self, store: SqliteStore) -> None:
        settle(store, given(fact("tea", provenance="host:remember", sourceEventId="write-1")))
        (version,) = history.history(store, ME, id_of(fact("tea", sourceEventId="write-1")), now=NOW).versions
        assert version.record is not None
        said = {name: version.record[name] for name in ("provenance", "sourceEventId", "trustClass", "runtime")}
        assert said == {
            "provenance": "host:remember",
            "sourceEventId": "write-1",
            "trustClass": "trusted",
            "runtime": "custom",
        }

    def test_shows_all_values_of_a_line(self, store: SqliteStore) -> None:
        line = keys.line_key_of_subject(scope_key=SCOPE_KEY, subject_key="user", kind="preference")
        values = [fact(f"editor {n}", validFrom=at(n)) for n in range(4)]
        settle(store, *(given(value, line=line) for value in (values[2], values[0], values[3], values[1])))
        found = history.history(store, ME, id_of(values[1]), now=NOW)
        assert states(found) == [
            ("editor 0", State.SUPERSEDED),
            ("editor 1", State.SUPERSEDED),
            ("editor 2", State.SUPERSEDED),
            ("editor 3", State.CURRENT),
        ]

    def test_shows_both_rivals_and_which_one_stands(self, store: SqliteStore) -> None:
        old = fact("old")
        one = fact("one", supersedesFactId=id_of(old), validFrom=at(5))
        two = fact("two", supersedesFactId=id_of(old), validFrom=at(9))
        settle(store, given(old), given(two), given(one))
        assert states(history.history(store, ME, id_of(one), now=NOW)) == [
            ("old", State.SUPERSEDED),
            ("one", State.SUPERSEDED),
            ("two", State.CURRENT),
        ]

    def test_names_a_superseded_fact_that_is_not_there_yet(self, store: SqliteStore) -> None:
        old = fact("old")
        new = fact("new", supersedesFactId=id_of(old), validFrom=at(5))
        settle(store, given(new))
        found = history.history(store, ME, id_of(old), now=NOW)
        assert states(found) == [("new", State.CURRENT), ("", State.MISSING)]
        assert found.versions[1].id == id_of(old)

    def test_tells_a_retracted_fact_and_when(self, store: SqliteStore) -> None:
        tea = fact("tea")
        settle(store, given(tea), order("retract", target=id_of(tea), at=at(30)))
        (version,) = history.history(store, ME, id_of(tea), now=NOW).versions
        assert (version.state, version.ended_at) == (State.RETRACTED, at(30))

    def test_tells_an_expired_fact(self, store: SqliteStore) -> None:
        tea = fact("tea", validUntil=at(60))
        settle(store, given(tea))
        assert history.history(store, ME, id_of(tea), now=at(59)).versions[0].state is State.CURRENT
        (version,) = history.history(store, ME, id_of(tea), now=at(60)).versions
        assert (version.state, version.ended_at) == (State.EXPIRED, at(60))

    def test_keeps_nothing_of_a_forgotten_version_but_its_id(self, store: SqliteStore) -> None:
        tea = fact("tea")
        coffee = fact("coffee", supersedesFactId=id_of(tea), validFrom=at(60))
        settle(store, given(tea), given(coffee), order("forget", target=id_of(tea)))
        found = history.history(store, ME, id_of(coffee), now=NOW)
        assert states(found) == [("coffee", State.CURRENT), ("", State.FORGOTTEN)]
        assert found.versions[1].record is None

    def test_shows_other_content_under_the_same_id_as_kept_aside(self, store: SqliteStore) -> None:
        first = fact("tea")
        other = {**first, "kind": "rule"}
        assert keys.content_hash(first) != keys.content_hash(other)
        settle(store, given(first), given(other))
        found = history.history(store, ME, id_of(first), now=NOW)
        assert sorted(v.state for v in found.versions) == [State.CURRENT, State.KEPT_ASIDE]

    def test_knows_nothing_of_another_scope(self, store: SqliteStore) -> None:
        mine, theirs = fact("tea"), fact("tea", scope=OTHER)
        theirs = {**theirs, "supersedesFactId": id_of(mine)}
        settle(store, given(mine), given(theirs))
        assert states(history.history(store, ME, id_of(mine), now=NOW)) == [("tea", State.CURRENT)]
        found = history.history(store, ANOTHER, id_of(mine), now=NOW)
        assert all((v.record or {}).get("participantScopeHash") in (None, "b" * 64) for v in found.versions)
        assert history.history(store, ME, "0" * 64, now=NOW).versions == ()

    def test_ends_on_a_ring(self, store: SqliteStore) -> None:
        first = fact("tea")
        ring = [{**first}, fact("coffee", supersedesFactId=id_of(first), validFrom=at(5))]
        ring[0]["supersedesFactId"] = id_of(ring[1])
        settle(store, given(ring[0]), given(ring[1]))
        found = history.history(store, ME, id_of(first), now=NOW)
        assert {v.id for v in found.versions} == {id_of(one) for one in ring}

    def test_is_cut_at_a_stated_number_of_versions(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "MAX_VERSIONS", 3)
        chain = [fact("v 0")]
        for n in range(1, 8):
            chain.append(fact(f"v {n}", supersedesFactId=id_of(chain[-1]), validFrom=at(n)))
        settle(store, *(given(one) for one in chain))
        found = history.history(store, ME, id_of(chain[0]), now=NOW)
        assert found.cut
        assert len(found.versions) >= 3

    @pytest.mark.parametrize("asked", [0, 7, 11])
    def test_shows_the_newest_of_a_long_line_and_the_one_asked_for_and_reads_no_more(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, asked: int
    ) -> None:
        monkeypatch.setattr(history, "MAX_VERSIONS", 3)
        monkeypatch.setattr(history, "_KEYS", 2)
        real, read = store.find, []

        def find(label: str, where: Any, *, skip: int = 0, order_by: Any = (("__id", "asc"),)) -> Any:
            page = real(label, where, limit=2, skip=skip, order_by=order_by)
            read.append(len(page.records))
            return page

        line = keys.line_key_of_subject(scope_key=SCOPE_KEY, subject_key="user", kind="preference")
        values = [fact(f"v {n}", validFrom=at(n)) for n in range(12)]
        settle(store, *(given(value, line=line) for value in values))
        settle(store, order("retract", target=id_of(values[10]), at=at(30)))
        monkeypatch.setattr(store, "find", find)
        found = history.history(store, ME, id_of(values[asked]), now=NOW)
        assert found.cut
        shown = sorted({asked, 11, 10}) if asked != 11 else [9, 10, 11]
        assert [(v.record or {}).get("text") for v in found.versions] == [f"v {n}" for n in shown]
        assert [v.state for v in found.versions] == [*[State.SUPERSEDED] * 2, State.CURRENT]
        assert sum(read) <= 30


class TestById:
    def test_finds_an_episode_and_a_fact_of_this_scope_alone(self, store: SqliteStore) -> None:
        turn, tea = episode("hello"), fact("tea")
        settle(store, given(turn), given(tea))
        for event, label in ((turn, "EPISODE"), (tea, "MEMORY_FACT")):
            found = history.by_id(store, ME, id_of(event), now=NOW)
            assert found is not None
            assert (found.label, found.state) == (label, State.CURRENT)
            assert history.by_id(store, ANOTHER, id_of(event), now=NOW) is None

    def test_tells_that_it_was_forgotten_and_nothing_more(self, store: SqliteStore) -> None:
        turn = episode("hello")
        settle(store, given(turn), order("forget", target=id_of(turn)))
        found = history.by_id(store, ME, id_of(turn), now=NOW)
        assert found is not None
        assert (found.state, found.record) == (State.FORGOTTEN, None)
        assert history.by_id(store, ANOTHER, id_of(turn), now=NOW) is None

    def test_tells_a_turn_that_a_later_capture_replaced(self, store: SqliteStore) -> None:
        line = "1" * 64
        first, second = episode("draft"), episode("final", observedAt=at(10))
        settle(store, given(second, line=line), given(first, line=line))
        found = history.by_id(store, ME, id_of(first), now=NOW)
        assert found is not None
        assert (found.state, found.by, found.ended_at) == (State.SUPERSEDED, id_of(second), at(10))
        assert found.since == AT
