"""What the rules promise, one sentence each, on the embedded store."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from producer import errors, keys
from producer.convergence import content, driver, forget, graph, marks, reader, requests
from producer.convergence.delivery import Failed, Settled
from producer.receipt import State
from producer.store import port
from producer.store.sqlite import SqliteStore
from tests.unit.convergence.cast import (
    AT,
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
    session_key,
)

STORED = Settled(state=State.STORED)
FORGOTTEN = Settled(state=State.FORGOTTEN)
FIELDS = ("supersededByFactId", "supersededAt", "retractedAt", "active")


def current(store: port.Store, scope: dict[str, Any] = SCOPE) -> list[Any]:
    """Texts of the facts that a reader of this scope sees."""
    return sorted(r.get("text") for r in reader.keep(records(store, "MEMORY_FACT", **scope, active=True)))


def settle(store: port.Store, *deliveries: Any, **settings: Any) -> list[Any]:
    """Each on its own, in this order."""
    return [driver.settle_all(store, [delivery], **settings)[0] for delivery in deliveries]


def one(store: port.Store, event: dict[str, Any]) -> port.Record:
    label, name = ("MEMORY_FACT", "factId") if event["eventType"] == "fact" else ("EPISODE", "eventId")
    (record,) = records(store, label, **{name: id_of(event)})
    return record


class TestRecords:
    def test_an_episode_is_stored_with_its_own_fields_and_four_keys_and_no_verdict(self, store: SqliteStore) -> None:
        event = episode(observedAt="2026-01-01T14:00:00+02:00")
        settle(store, given(event, line="l"))
        assert one(store, event).properties == {
            **event,
            "observedAt": AT,
            "contentHash": keys.content_hash(event),
            "scopeKey": SCOPE_KEY,
            "sessionKey": session_key(),
            "lineKey": "l",
        }

    def test_a_fact_is_stored_with_active_as_its_verdict(self, store: SqliteStore) -> None:
        event = fact()
        settle(store, given(event, session=session_key()))
        expected = {
            **event,
            "contentHash": keys.content_hash(event),
            "scopeKey": SCOPE_KEY,
            "sessionKey": session_key(),
        }
        assert one(store, event).properties == expected

    def test_a_session_holds_runtime_external_id_and_scope(self, store: SqliteStore) -> None:
        settle(store, given(episode()))
        (session,) = records(store, "SESSION")
        assert session.properties == {
            "sessionKey": session_key(),
            "runtime": "custom",
            "externalSessionId": "s-1",
            **SCOPE,
        }

    def test_a_mark_holds_no_text(self, store: SqliteStore) -> None:
        old = fact("tea")
        new = fact("coffee", supersedesFactId=id_of(old), validFrom=at(5))
        settle(store, given(new))
        (mark,) = records(store, "MEMORY_MARK")
        said = {"what": "superseded", "target": id_of(old), "by": id_of(new), "scopeKey": SCOPE_KEY, "at": at(5)}
        assert mark.properties == {**said, "markKey": keys.mark_key(**_snake(said))}

    def test_a_turn_captured_twice_is_one_record_whatever_the_clock_said(self, store: SqliteStore) -> None:
        event = episode()
        settle(store, given(event), given({**event, "observedAt": at(3)}))
        assert one(store, event).get("observedAt") == AT


class TestSupersession:
    def test_a_changed_fact_makes_the_old_one_inactive_in_every_order(self, store: SqliteStore) -> None:
        old = fact("tea")
        new = fact("coffee", supersedesFactId=id_of(old), validFrom=at(5))
        settle(store, given(new), given(old))
        assert current(store) == ["coffee"]
        was = one(store, old)
        assert [was.get(n) for n in FIELDS] == [id_of(new), at(5), None, False]

    def test_of_rivals_the_latest_stands_in_every_order(self, tmp_path: Any) -> None:
        old = fact("tea")
        rivals = [fact(f"{n}", supersedesFactId=id_of(old), validFrom=at(n)) for n in range(3)]
        for number, events in enumerate(itertools.permutations([old, *rivals])):
            store = SqliteStore(tmp_path / f"{number}.sqlite3")
            settle(store, *map(given, events))
            assert current(store) == ["2"]
            store.close()

    def test_who_superseded_a_loser_competes_on_with_the_winner(self, store: SqliteStore) -> None:
        old = fact("tea")
        loser = fact("milk", supersedesFactId=id_of(old), validFrom=at(1))
        after_loser = fact("cocoa", supersedesFactId=id_of(loser), validFrom=at(9))
        winner = fact("coffee", supersedesFactId=id_of(old), validFrom=at(2))
        settle(store, given(old), given(loser), given(after_loser), given(winner))
        assert current(store) == ["cocoa"]

    def test_a_value_that_is_asserted_again_is_a_new_fact_and_current(self, store: SqliteStore) -> None:
        tea = fact("tea", sourceEventId="write 1")
        coffee = fact("coffee", supersedesFactId=id_of(tea), validFrom=at(1))
        again = fact("tea", sourceEventId="write 2", supersedesFactId=id_of(coffee), validFrom=at(2))
        settle(store, given(tea), given(coffee), given(again), given(tea))
        assert [r.get("factId") for r in records(store, "MEMORY_FACT", active=True)] == [id_of(again)]

    def test_no_fact_of_another_scope_is_superseded_not_even_by_one_that_came_first(self, store: SqliteStore) -> None:
        ours = fact("tea")
        theirs = fact("coffee", scope=OTHER, supersedesFactId=id_of(ours), validFrom=at(9))
        settle(store, given(theirs), given(ours), given(theirs))
        assert current(store) == ["tea"]
        assert current(store, OTHER) == ["coffee"]
        assert not store.edges("MEMORY_FACT", {})

    def test_a_fact_that_supersedes_itself_is_refused(self, store: SqliteStore) -> None:
        event = fact()
        event["supersedesFactId"] = event["factId"]
        assert settle(store, given(event)) == [Settled(state=State.DEAD, reason="supersedes_itself")]
        assert not records(store, "MEMORY_FACT")

    def test_a_circle_that_callers_named_ends(self, store: SqliteStore) -> None:
        a, b = fact("a"), fact("b")
        settle(store, given({**a, "supersedesFactId": id_of(b)}), given({**b, "supersedesFactId": id_of(a)}))
        assert current(store) == []


class TestLines:
    def test_a_later_value_replaces_an_earlier_one_on_its_line_in_every_order(self, tmp_path: Any) -> None:
        values = [fact(f"{n}", validFrom=at(n)) for n in range(3)]
        for number, events in enumerate(itertools.permutations(values)):
            store = SqliteStore(tmp_path / f"{number}.sqlite3")
            settle(store, *(given(event, line="l") for event in events))
            assert current(store) == ["2"]
            store.close()

    def test_values_of_one_line_in_one_batch_leave_one_current(self, store: SqliteStore) -> None:
        batch = [given(fact(f"{n}", validFrom=at(n)), line="l") for n in range(30)]
        assert driver.settle_all(store, batch) == [STORED] * 30
        assert current(store) == ["29"]

    def test_a_later_stop_of_one_prompt_replaces_the_earlier_one(self, store: SqliteStore) -> None:
        first = episode("first", sourceEventId="prompt", assistantText="part")
        second = episode("first", sourceEventId="prompt", assistantText="all of it", observedAt=at(4))
        settle(store, given(second, line="l"), given(first, line="l"))
        assert one(store, first).get("supersededByEventId") == id_of(second)
        assert one(store, first).get("supersededAt") == at(4)
        assert one(store, second).get("supersededByEventId") is None
        assert reader.keep(records(store, "EPISODE")) == [one(store, second)]

    def test_lines_of_other_scopes_do_not_compete(self, store: SqliteStore) -> None:
        settle(store, given(fact("tea"), line="l"), given(fact("milk", scope=OTHER, validFrom=at(9)), line="l"))
        assert (current(store), current(store, OTHER)) == (["tea"], ["milk"])

    def test_an_event_that_names_what_it_supersedes_is_not_beaten_by_a_clock(self, store: SqliteStore) -> None:
        old = fact("tea", validFrom=at(60))
        new = fact("coffee", supersedesFactId=id_of(old))
        settle(store, given(old, line="l"), given(new, line="l"))
        assert current(store) == ["coffee"]
        assert one(store, new).get("lineKey") is None


class TestMarks:
    def test_a_fact_captured_by_two_clocks_is_one_rival_with_the_smaller_time(self) -> None:
        said = [
            marks.Mark("superseded", "t", by, "s", when)
            for by, when in (("a", "3"), ("a", "1"), ("a", "2"), ("b", "2"))
        ]
        for order_ in itertools.permutations(said):
            assert marks.claims(order_, "s") == {("1", "a"), ("2", "b")}


class TestRetraction:
    def test_a_retracted_fact_is_inactive_for_ever_in_every_order(self, store: SqliteStore) -> None:
        event, retract = fact(), order("retract", target=id_of(fact()), when=at(7))
        settle(store, retract, given(event), retract, given(event))
        assert current(store) == []
        assert [one(store, event).get(n) for n in FIELDS] == [None, None, at(7), False]

    def test_an_event_that_says_inactive_is_content_with_a_mark(self, store: SqliteStore) -> None:
        event = fact(active=False)
        assert settle(store, given(event), given({**event, "active": True})) == [
            STORED,
            Settled(state=State.STORED, duplicate=True),
        ]
        assert [one(store, event).get(n) for n in FIELDS] == [None, None, AT, False]

    def test_retracting_does_not_revive_what_was_superseded(self, store: SqliteStore) -> None:
        old = fact("tea")
        new = fact("coffee", supersedesFactId=id_of(old), validFrom=at(1))
        settle(store, given(old), given(new), order("retract", target=id_of(new)))
        assert current(store) == []

    def test_another_scope_can_not_retract(self, store: SqliteStore) -> None:
        settle(store, given(fact()), order("retract", target=id_of(fact()), scope=OTHER))
        assert current(store) == ["likes tea"]


class TestConflicts:
    def test_other_content_under_one_id_is_kept_aside_and_told(self, store: SqliteStore) -> None:
        a, b = fact(), {**fact(), "trustClass": "mixed"}
        stands = min(a, b, key=keys.content_hash)
        assert settle(store, given(a), given(b), given(a)) == [
            STORED,
            Settled(state=State.STORED, conflict=True),
            Settled(state=State.STORED, conflict=True, duplicate=True),
        ]
        found = records(store, "MEMORY_FACT")
        assert {r.get("trustClass"): r.get("active") for r in found} == {
            "trusted": stands is a,
            "mixed": stands is b,
        }

    def test_the_same_id_in_another_scope_is_no_conflict(self, store: SqliteStore) -> None:
        ours = fact()
        theirs = {**ours, "privacyScope": "shared"}
        assert settle(store, given(ours), given(theirs)) == [STORED, STORED]
        assert len(records(store, "MEMORY_FACT", active=True)) == 2


class TestForgetting:
    @pytest.mark.parametrize("event", [episode(), fact()], ids=["episode", "fact"])
    def test_a_forgotten_event_is_gone_and_never_comes_back(self, store: SqliteStore, event: dict[str, Any]) -> None:
        forget = order("forget", target=id_of(event))
        assert settle(store, given(event), forget, given(event), given(event)) == [STORED, STORED, FORGOTTEN, FORGOTTEN]
        assert not records(store, "EPISODE") and not records(store, "MEMORY_FACT")

    def test_forgetting_before_it_arrives_keeps_it_out(self, store: SqliteStore) -> None:
        assert settle(store, order("forget", target=id_of(fact())), given(fact())) == [STORED, FORGOTTEN]

    def test_forgetting_never_revives_an_older_value(self, store: SqliteStore) -> None:
        old = fact("tea")
        new = fact("coffee", supersedesFactId=id_of(old), validFrom=at(1))
        settle(store, order("forget", target=id_of(new)), given(old), given(new))
        assert current(store) == []
        assert one(store, old).get("supersededByFactId") == id_of(new)

    def test_a_host_forgets_in_its_own_scope_only_and_an_operator_everywhere(self, store: SqliteStore) -> None:
        ours = fact()
        theirs = {**ours, "privacyScope": "shared"}
        settle(store, given(ours), given(theirs), order("forget", target=id_of(ours)))
        assert [r.get("privacyScope") for r in records(store, "MEMORY_FACT")] == ["shared"]
        settle(store, order("forget", target=id_of(ours), everywhere=True, scope=None))
        assert not records(store, "MEMORY_FACT")
        assert settle(store, given(theirs)) == [FORGOTTEN]

    @pytest.mark.parametrize(
        "group",
        [
            {"session": session_key()},
            {"participant": SCOPE["participantScopeHash"]},
            {"agentId": SCOPE["agentId"], "profileId": SCOPE["profileId"]},
        ],
        ids=["session", "participant", "profile"],
    )
    def test_a_forgotten_group_is_gone_with_what_arrives_late(self, store: SqliteStore, group: dict[str, Any]) -> None:
        stored = [given(episode(f"turn {n}")) for n in range(3)] + [given(fact(), session=session_key())]
        other = [
            given(episode("not theirs", scope=OTHER)),
            given(fact("milk", scope=OTHER), session=session_key("s-1", OTHER)),
        ]
        driver.settle_all(store, stored + other)
        settle(store, order("forget", group=group))
        late = [
            given(episode("late"), appended_at=at(59)),
            given(fact("late"), session=session_key(), appended_at=at(60)),
        ]
        assert settle(store, *stored, *late) == [FORGOTTEN] * 6
        for label, left in (("EPISODE", 1), ("MEMORY_FACT", 1), ("SESSION", 1)):
            assert [r.get("participantScopeHash") for r in records(store, label)] == [
                OTHER["participantScopeHash"]
            ] * left

    def test_what_was_captured_after_the_margin_is_stored_and_stays_when_the_order_comes_again(
        self, tmp_path: Any
    ) -> None:
        now = 1_767_268_800.0
        store = SqliteStore(tmp_path / "store.sqlite3", clock=lambda: now)
        forget = order("forget", group={"session": session_key()})
        before, after = episode("before"), episode("after", observedAt=at(3600))
        settle(store, given(before), forget)
        now += 3600
        assert settle(store, given(after, appended_at=at(3600))) == [STORED]
        assert settle(store, forget) == [Settled(state=State.STORED, duplicate=True)]
        assert [r.get("userText") for r in records(store, "EPISODE")] == ["after"]
        (session,) = records(store, "SESSION")
        assert [e.target_id for e in store.edges("EPISODE", {})] == [session.id]
        store.close()

    def test_a_turn_covered_by_a_group_stays_out_when_it_is_captured_again_later(self, store: SqliteStore) -> None:
        settle(store, order("forget", group={"session": session_key()}))
        assert settle(store, given(episode()), given(episode(), appended_at=at(3600))) == [FORGOTTEN, FORGOTTEN]

    def test_the_margin_is_a_setting(self, store: SqliteStore) -> None:
        settle(store, order("forget", group={"session": session_key()}))
        assert settle(store, given(episode(), appended_at=at(59)), forget_margin_s=5.0) == [STORED]

    def test_an_operator_forgets_a_participant_in_every_scope(self, store: SqliteStore) -> None:
        shared = {**SCOPE, "privacyScope": "shared"}
        batch = [given(episode("a")), given(episode("b", scope=shared)), given(episode("c", scope=OTHER))]
        driver.settle_all(store, batch)
        group = {"participant": SCOPE["participantScopeHash"]}
        settle(store, order("forget", group=group, everywhere=True, scope=None))
        assert [r.get("userText") for r in records(store, "EPISODE")] == ["c"]
        assert driver.settle_all(store, batch)[:2] == [FORGOTTEN] * 2

    def test_a_group_outside_of_the_orders_scope_is_refused(self, store: SqliteStore) -> None:
        settle(store, given(episode(scope=OTHER)))
        (result,) = settle(store, order("forget", group={"participant": OTHER["participantScopeHash"]}))
        assert result.error.field == "order.group"
        assert len(records(store, "EPISODE")) == 1

    def test_a_group_of_more_than_one_page_is_forgotten_whole(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver.settle_all(store, [given(episode(f"turn {n}")) for n in range(25)])
        real = store.find
        monkeypatch.setattr(store, "find", lambda label, where, **kw: real(label, where, **{"limit": 7, **kw}))
        settle(store, order("forget", group={"session": session_key()}))
        assert not real("EPISODE", {}).records and not real("SESSION", {}).records


class TestOtherAdapters:
    def foreign(self, store: SqliteStore, event: dict[str, Any]) -> None:
        name = "factId" if event["eventType"] == "fact" else "eventId"
        store.upsert("MEMORY_FACT" if name == "factId" else "EPISODE", [event], (name,))

    def test_workers_never_write_to_a_record_that_another_adapter_wrote(self, store: SqliteStore) -> None:
        old = fact("tea")
        self.foreign(store, old)
        before = one(store, old)
        settle(store, given(fact("coffee", supersedesFactId=id_of(old))))
        assert one(store, old) == before

    def test_ours_is_written_beside_theirs(self, store: SqliteStore) -> None:
        self.foreign(store, fact())
        assert settle(store, given(fact())) == [STORED]
        assert {r.get("contentHash") is None for r in records(store, "MEMORY_FACT")} == {True, False}

    def test_it_is_deleted_when_it_is_forgotten_in_its_scope(self, store: SqliteStore) -> None:
        self.foreign(store, fact())
        settle(store, order("forget", target=id_of(fact()), scope=OTHER))
        assert len(records(store, "MEMORY_FACT")) == 1
        settle(store, order("forget", target=id_of(fact())))
        assert not records(store, "MEMORY_FACT")

    def test_a_sessions_forgetting_finds_their_episodes_by_what_they_say(self, store: SqliteStore) -> None:
        self.foreign(store, episode("gone"))
        self.foreign(store, episode("stays", session="s-2"))
        settle(store, order("forget", group={"session": session_key()}))
        assert [r.get("userText") for r in records(store, "EPISODE")] == ["stays"]

    def test_readers_drop_theirs_when_a_mark_or_ours_is_there(self, store: SqliteStore) -> None:
        marked, replaced, free = fact("marked"), fact("replaced"), fact("free")
        for event in (marked, replaced, free):
            self.foreign(store, event)
        settle(store, order("retract", target=id_of(marked)), given({**replaced, "active": False}))
        found = reader.keep(records(store, "MEMORY_FACT", **SCOPE, active=True))
        ids = reader.foreign_ids(found)["MEMORY_FACT"]
        assert sorted(ids) == sorted(map(id_of, (marked, replaced, free)))
        marks_found = records(store, "MEMORY_MARK", target={"$in": ids})
        ours = records(store, "MEMORY_FACT", factId={"$in": ids})
        assert [r.get("text") for r in reader.without_ended(found, marks_found=marks_found, ours=ours)] == ["free"]


class TestGraph:
    def edges(self, store: SqliteStore, label: str = "MEMORY_FACT") -> set[tuple[str, str, str]]:
        return {(e.type, e.source_id, e.target_id) for e in store.edges(label, {})}

    def test_links_are_repaired_when_the_other_end_arrives_later(self, store: SqliteStore) -> None:
        turn = episode()
        old = fact("tea", sourceEventId=id_of(turn))
        new = fact("coffee", sourceEventId=id_of(turn), supersedesFactId=id_of(old), validFrom=at(1))
        settle(store, given(new), given(old), given(turn))
        e, o, n = one(store, turn).id, one(store, old).id, one(store, new).id
        assert self.edges(store) == {("FROM_EPISODE", o, e), ("FROM_EPISODE", n, e), ("SUPERSEDES", n, o)}

    def test_no_edge_leaves_its_scope(self, store: SqliteStore) -> None:
        turn = episode(scope=OTHER)
        settle(store, given(turn), given(fact(sourceEventId=id_of(turn))), given(turn))
        assert self.edges(store) == set()

    def test_sessions_fold_into_the_smallest_id_which_gets_every_episode(self, store: SqliteStore) -> None:
        settle(store, given(episode("one")), given(episode("two")))
        (keep,) = records(store, "SESSION")
        twin = {**keep.properties, "twin": "x"}
        (other,) = store.upsert("SESSION", [twin], ("sessionKey", "twin"))
        spec = graph.in_session(id_of(episode("two")))
        store.link(
            port.LinkSpec(
                type=spec.type,
                source_label="EPISODE",
                source_key="sessionKey",
                source_where={"eventId": id_of(episode("two"))},
                target_label="SESSION",
                target_key="sessionKey",
                target_where={"twin": "x"},
            )
        )
        assert other.id > keep.id
        settle(store, given(episode("three")))
        assert [r.id for r in records(store, "SESSION")] == [keep.id]
        assert {target for _, _, target in self.edges(store, "EPISODE")} == {keep.id}
        assert len(self.edges(store, "EPISODE")) == 3

    def test_a_duplicate_session_is_deleted_only_when_the_survivor_has_its_edges(self, store: SqliteStore) -> None:
        settle(store, given(episode("one")))
        (keep,) = records(store, "SESSION")
        store.upsert("SESSION", [{**keep.properties, "twin": "x"}], ("sessionKey", "twin"))
        seen: list[str] = []
        settle(CountingStore(store, lambda name, label, _: seen.append(f"{name} {label}")), given(episode("one")))
        delete = seen.index("delete SESSION")
        assert seen[delete - 2 : delete] == ["link IN_SESSION", "edges_into SESSION"]

    def test_a_link_that_was_acknowledged_and_not_done_keeps_the_duplicate_session(self, store: SqliteStore) -> None:
        settle(store, given(episode("one")))
        (keep,) = records(store, "SESSION")
        settle(store, given(episode("two")))
        (twin,) = store.upsert("SESSION", [{**keep.properties, "twin": "x"}], ("sessionKey", "twin"))
        steps = graph.fold_sessions([twin, keep])
        (link,) = next(steps)
        assert link.type == "IN_SESSION"
        looks = steps.send([None])
        assert [(look.record_id, look.into) for look in looks] == [(keep.id, True), (twin.id, True)]
        edge = port.Edge(type="IN_SESSION", source_id="e", target_id=twin.id, source_label="", target_label="")
        with pytest.raises(StopIteration) as end:
            steps.send([[], [edge]])  # the survivor did not get it: nothing is deleted, look again
        assert end.value.value is True

    def test_an_episode_stored_while_its_session_is_cleared_gets_it_back(self) -> None:
        late = port.Record(id="1", label="EPISODE", properties={"eventId": "e"})
        session = port.Record(id="2", label="SESSION", properties={"sessionKey": "s"})
        steps = forget.clear_session("s")
        next(steps)
        assert steps.send([port.Page(records=[], total=0), [session]]) == (
            requests.Delete(label="SESSION", record_id="2"),
        )
        steps.send([None])
        look = steps.send([port.Page(records=[late], total=1), []])
        assert look[0] == requests.Find(label="EPISODE", key="eventId", value="e")

    def test_an_episode_whose_session_was_cleared_by_a_copy_that_died_gets_it_back(self, store: SqliteStore) -> None:
        old, late = given(episode("old")), given(episode("late"))
        new = given(episode("new", observedAt=at(500)), appended_at=at(500))
        settle(store, old, order("forget", group={"session": session_key()}))
        row = content.row_of(late.event, scope_key=SCOPE_KEY, session_key=session_key(), line_key="")
        store.upsert("SESSION", [graph.session_upsert(row).row], ("sessionKey",))

        def interfere(name: str, label: str, _: Any) -> None:
            if name == "delete" and label == "SESSION" and not records(store, "EPISODE"):
                settle(store, new)  # it finds the session, and has its receipt before that goes
            elif name == "find" and label == "EPISODE" and records(store, "EPISODE"):
                raise errors.StoreUnavailable("died")

        (died,) = driver.settle_all(CountingStore(store, interfere), [late])
        assert isinstance(died, Failed)
        assert not records(store, "SESSION")
        assert settle(store, late) == [FORGOTTEN]
        (session,), (edge,) = records(store, "SESSION"), store.edges("EPISODE", {})
        assert edge.target_id == session.id

    def test_a_forgotten_episode_still_folds_its_sessions(self, store: SqliteStore) -> None:
        settle(store, given(episode("one")), given(episode("two")), order("forget", target=id_of(episode("two"))))
        (keep,) = records(store, "SESSION")
        store.upsert("SESSION", [{**keep.properties, "twin": "x"}], ("sessionKey", "twin"))
        assert settle(store, given(episode("two"))) == [FORGOTTEN]
        assert [r.id for r in records(store, "SESSION")] == [keep.id]


class TestFolding:
    def test_duplicates_fold_into_the_smallest_record_id_with_its_links(self, store: SqliteStore) -> None:
        turn = episode()
        event = fact(sourceEventId=id_of(turn))
        settle(store, given(turn), given(event))
        keep = one(store, event)
        store.upsert("MEMORY_FACT", [{**keep.properties, "twin": "x"}], ("factId", "twin"))
        assert settle(store, given(event)) == [STORED]
        assert one(store, event).id == keep.id
        assert [e.source_id for e in store.edges("MEMORY_FACT", {})] == [keep.id]


class TestReader:
    def record(self, id_: str, label: str = "MEMORY_FACT", **properties: Any) -> port.Record:
        given = {"factId": "f", "contentHash": "b", "scopeKey": "s", "active": True, **properties}
        return port.Record(id=id_, label=label, properties={k: v for k, v in given.items() if v is not None})

    def test_an_id_is_dropped_if_any_copy_names_a_superseder_or_a_retraction(self) -> None:
        good = self.record("1")
        for name in ("supersededByFactId", "retractedAt"):
            for ended in (self.record("2", **{name: "x"}), self.record("0", **{name: "x"}, active=False)):
                assert reader.keep([good, ended]) == reader.keep([ended, good]) == []

    def test_one_record_per_id_is_kept_the_smallest_hash_then_the_smallest_record_id(self) -> None:
        best = self.record("2", contentHash="a")
        others = [self.record("1"), self.record("3", contentHash="a"), self.record("0", contentHash=None)]
        for order_ in itertools.permutations([best, *others]):
            assert reader.keep(order_) == [best]

    def test_a_fact_that_is_not_active_is_not_shown(self) -> None:
        assert reader.keep([self.record("1", active=None), self.record("2", active=False)]) == []


def _snake(said: dict[str, str]) -> dict[str, str]:
    return {"scope_key" if name == "scopeKey" else name: value for name, value in said.items()}
