"""Asking about dead lines: what counts as forgotten, however broken the line, and that nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from memory_tasks import checking, tenants
from producer import capture, keys, message
from producer.convergence import delivery, driver
from producer.journal import line as lines
from producer.receipt import State
from producer.store import port
from producer.store.sqlite import SqliteStore
from tests import worker_messages as make

KEY = message.Key(id="key", secret=b"s" * 32)
EVENT = make.episode()


class ReadOnlyStore:
    """The real store for finds; everything else is a fault of the test's subject."""

    def __init__(self, real: port.Store) -> None:
        self._real = real
        self.finds = 0

    def find(self, *arguments: Any, **named: Any) -> port.Page:
        self.finds += 1
        return self._real.find(*arguments, **named)


@pytest.fixture
def store(tmp_path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "store.sqlite3")
    yield made
    made.close()


def carry_out(store: SqliteStore, **order: Any) -> None:
    made = capture.build_forget_order(**{"scope": make.SCOPE, "runtime": "custom", "at": make.AT, **order})
    line = make.order(made)
    asked = delivery.Delivery(line_hash=line.hash, id=line.id, kind="order", event=made, appended_at=line.appended_at)
    (result,) = driver.settle_all(store, [asked])
    assert isinstance(result, delivery.Settled)
    assert result.state is State.STORED


def ask(store: SqliteStore, *asked: lines.Line | str, **limits: Any) -> list[bool | None]:
    grant = tenants.Grant(key=KEY, tenant="local", store_url="x", **limits)
    questions = [checking.question_of(make.item(of), grant) for of in asked]
    answers = iter(checking.forgotten(ReadOnlyStore(store), [q for q in questions if q], margin_s=60.0))
    return [None if question is None else next(answers) for question in questions]


SESSION_KEY = keys.session_key(runtime="custom", external_session_id="session-1", scope=make.SCOPE)
GROUPS = [
    {"target": EVENT["eventId"]},
    {"group": {"session": SESSION_KEY}},
    {"group": {"participant": make.SCOPE.participant_scope_hash}},
    {"group": {"agentId": "agent", "profileId": "default"}},
]


@pytest.mark.parametrize("order", GROUPS)
@pytest.mark.parametrize("scope", [make.SCOPE, None])
def test_a_line_is_forgotten_by_its_id_and_by_every_group_it_belongs_to_also_by_an_operator(store, order, scope):
    carry_out(store, scope=scope, **order)
    broken = {**EVENT, "visibility": "no such thing"}
    stranger = {**make.episode(2, external_session_id="other", scope=make.OTHER_SCOPE), "visibility": "x"}
    assert ask(store, make.line(EVENT), make.line(broken), make.line(stranger)) == [True, True, False]


def test_nothing_is_forgotten_in_an_empty_store(store):
    assert ask(store, make.line(EVENT)) == [False]


def test_a_facts_line_is_found_by_the_session_that_its_journal_names(store):
    carry_out(store, group={"session": SESSION_KEY})
    fact = make.fact()
    assert ask(store, make.line(fact, sessionKey=SESSION_KEY), make.line(fact)) == [True, False]


def test_what_was_appended_after_a_group_was_forgotten_is_not_covered(store):
    carry_out(store, group={"session": SESSION_KEY})
    text = lines.encode(
        kind="event", id=EVENT["eventId"], appended_at="2026-12-01T12:01:00.001Z", body={"event": EVENT}
    )
    no_time = lines.encode(kind="event", id=EVENT["eventId"], appended_at="soon", body={"event": EVENT})
    assert ask(store, text, no_time) == [False, False]


def test_without_a_whole_scope_only_an_operators_order_counts(store):
    nameless = make.line({name: value for name, value in EVENT.items() if name != "privacyScope"})
    carry_out(store, target=EVENT["eventId"])
    assert ask(store, nameless) == [False]
    carry_out(store, scope=None, target=EVENT["eventId"])
    assert ask(store, nameless) == [True]


def test_nobody_asks_about_damage_orders_or_scopes_that_are_not_the_keys(store):
    order = make.order(capture.build_retract_order(scope=make.SCOPE, runtime="custom", target="a" * 64, at=make.AT))
    no_event = lines.encode(kind="event", id="a" * 64, appended_at=make.AT, body={"event": [1]})
    assert ask(store, order, "damaged", "dämaged", no_event) == [None] * 4
    assert ask(store, make.line(EVENT), agents=frozenset({"other"})) == [None]


def test_many_lines_are_asked_about_in_few_finds(store):
    grant = tenants.Grant(key=KEY, tenant="local", store_url="x")
    events = [make.episode(number) for number in range(100)]
    carry_out(store, target=events[7]["eventId"])
    questions = [checking.question_of(make.item(make.line(event)), grant) for event in events]
    counting = ReadOnlyStore(store)
    answers = checking.forgotten(counting, [q for q in questions if q], margin_s=60.0)
    assert [number for number, answer in enumerate(answers) if answer] == [7]
    assert counting.finds == 1


def test_more_marks_than_one_answer_holds_are_all_read(store, monkeypatch):
    """Two pages for one target, and halves for several."""
    events = [make.episode(number) for number in range(3)]
    for event in events:
        for minute in range(3):
            carry_out(store, target=event["eventId"], at=f"2026-12-01T12:0{minute}:00.000Z")
    real = store.find
    monkeypatch.setattr(store, "find", lambda label, where, skip=0: real(label, where, limit=2, skip=skip))
    assert ask(store, *(make.line(event) for event in events), make.line(make.episode(9))) == [True] * 3 + [False]
