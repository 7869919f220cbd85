"""Records that others put into the same store: whatever they hold, no delivery of ours fails over it, nor its batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from producer import keys
from producer.convergence import driver, reader
from producer.convergence.delivery import Settled
from producer.receipt import State
from producer.store.sqlite import SqliteStore
from tests.unit.convergence.cast import OTHER, SCOPE, SCOPE_KEY, episode, fact, given, id_of, order, records

STORED = Settled(state=State.STORED)
ODD = [5, 1.5, True, ""]
EPISODE, FACT = episode(), fact()


@pytest.mark.parametrize("content_hash", ODD)
@pytest.mark.parametrize(("label", "event"), [("EPISODE", EPISODE), ("MEMORY_FACT", FACT)])
def test_a_record_with_a_content_hash_of_its_own_is_left_alone(
    store: SqliteStore, label: str, event: Mapping[str, Any], content_hash: Any
) -> None:
    theirs = {**event, "contentHash": content_hash, "scopeKey": SCOPE_KEY}
    store.create(label, [theirs])
    results = driver.settle_all(store, [given(event), given(episode("other")), given(fact("other"))])
    assert [result.state for result in results if isinstance(result, Settled)] == [State.STORED] * 3
    assert theirs in [dict(record.properties) for record in records(store, label)] or content_hash == ""


@pytest.mark.parametrize("value", [*ODD, None])
def test_half_a_record_with_our_keys_fails_nobody(store: SqliteStore, value: Any) -> None:
    named = {} if value is None else {"sessionKey": value, "sourceEventId": value, "supersedesFactId": value}
    ours = {"contentHash": "0" * 64, "scopeKey": SCOPE_KEY, **named}
    store.create("EPISODE", [{**ours, "eventId": id_of(EPISODE)}])
    store.create("MEMORY_FACT", [{**ours, "factId": id_of(FACT)}])
    results = driver.settle_all(store, [given(EPISODE), given(FACT), given(episode("other")), given(fact("other"))])
    assert [result.state for result in results if isinstance(result, Settled)] == [State.STORED] * 4


@pytest.mark.parametrize("value", [*ODD, None])
def test_a_record_without_an_id_may_name_ours(store: SqliteStore, value: Any) -> None:
    ours = {"contentHash": "0" * 64, "scopeKey": SCOPE_KEY, **({} if value is None else {"factId": value})}
    store.create("MEMORY_FACT", [{**ours, "sourceEventId": id_of(EPISODE)}, {**ours, "supersedesFactId": id_of(FACT)}])
    assert driver.settle_all(store, [given(EPISODE), given(FACT)]) == [STORED] * 2


def test_an_episode_whose_session_cannot_be_read_whole_is_stored_without_it(store: SqliteStore) -> None:
    given_one = given(EPISODE)
    driver.settle_all(store, [given_one])
    (record,), (session,) = records(store, "EPISODE"), records(store, "SESSION")
    hidden = {name: value for name, value in record.properties.items() if name != "externalSessionId"}
    store.delete("EPISODE", record.id)
    store.delete("SESSION", session.id)
    store.create("EPISODE", [hidden])  # as RushDB 2.11 reads a session named "constructor"
    (result,) = driver.settle_all(store, [given_one])
    assert isinstance(result, Settled) and result.state is State.STORED


def test_forgetting_deletes_a_record_that_has_a_content_hash_but_no_scope_key(store: SqliteStore) -> None:
    store.create("MEMORY_FACT", [{**FACT, "contentHash": "md5 of theirs"}, {**FACT, **OTHER, "contentHash": "another"}])
    assert driver.settle_all(store, [order("forget", target=id_of(FACT))]) == [STORED]
    (left,) = records(store, "MEMORY_FACT")
    assert left.get("participantScopeHash") == OTHER["participantScopeHash"]


@pytest.mark.parametrize("at", ["", "yesterday", "2026-01-01"])
def test_a_mark_on_a_group_whose_time_is_none_covers_nothing_and_fails_nobody(store: SqliteStore, at: str) -> None:
    group = keys.group_participant(SCOPE["participantScopeHash"])  # type: ignore[arg-type]
    mark = {"markKey": "k", "what": "forgotten", "target": group, "by": "x", "scopeKey": SCOPE_KEY, "at": at}
    store.create("MEMORY_MARK", [mark])
    assert driver.settle_all(store, [given(EPISODE), given(FACT)]) == [STORED] * 2


def test_a_record_of_theirs_that_is_linked_on_order_has_not_ended_and_one_that_is_retracted_has(
    store: SqliteStore,
) -> None:
    linked, retracted = fact("linked"), fact("retracted")
    store.create("MEMORY_FACT", [linked, retracted])
    ends = {name: {"label": "MEMORY_FACT", "key": id_of(one)} for name, one in (("from", linked), ("to", retracted))}
    settled = driver.settle_all(
        store, [order("link", type="CONTRADICTS", **ends), order("retract", target=id_of(retracted))]
    )
    assert settled == [STORED] * 2
    found = reader.keep(records(store, "MEMORY_FACT"))
    marks_found = records(store, "MEMORY_MARK")
    assert {mark.get("what") for mark in marks_found} >= {"link:CONTRADICTS:out:MEMORY_FACT", "retracted"}
    assert [r.get("text") for r in reader.without_ended(found, marks_found=marks_found, ours=[])] == ["linked"]
