"""One message, from its signature to receipts: every rule of retries, doubts and later looks, on a real SQLite store.

Only the ends are fakes: receipts are collected, and a store above the real one fails where a test says so.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from memory_tasks import (
    breaker,
    children,
    handling,
    incoming,
    ingest,
    results,
    settler,
    shared_store,
    tenants,
    verdicts,
)
from producer import capture, errors, message, receipt
from producer.convergence import delivery
from producer.journal import line as journal_line
from producer.receipt import State
from producer.store import port
from producer.store.sqlite import SqliteStore
from tests import worker_messages as make

KEY = message.Key(id="key", secret=b"s" * 32)
NOW_S = 1_800_000_000.0
HALF_S = 300.0


class CollectedReceipts:
    """Takes receipts as Redis would; fails while `down`."""

    def __init__(self) -> None:
        self.sent: list[receipt.Receipt] = []
        self.journals: set[str] = set()
        self.counted: Counter[str] = Counter()
        self.refusals: list[str] = []
        self.troubles: list[verdicts.Trouble] = []
        self.known_dead: set[str] = set()
        self.stored: list[str] = []
        self.down = False

    def send(self, answer: verdicts.Answer, *, key: message.Key, tenant: str) -> None:
        assert (key, tenant) == (KEY, "local")
        if self.down:
            raise errors.RedisUnavailable("down")
        self.sent += [one for _, one in answer.receipts]
        self.journals |= {journal_id for journal_id, _ in answer.receipts}
        self.counted.update(answer.counted)
        self.troubles += answer.troubles
        self.known_dead |= answer.known_dead
        self.stored += answer.stored

    def refused(self, reason: str) -> None:
        if self.down:
            raise errors.RedisUnavailable("down")
        self.refusals.append(reason)


class FailingStore:
    """The real store, but for what `fail` raises before a call, or after it was done."""

    def __init__(self, real: port.Store) -> None:
        self._real = real
        self.fail: Callable[[str, tuple[Any, ...]], Exception | None] = lambda name, arguments: None
        self.fail_after: Callable[[str, tuple[Any, ...]], Exception | None] = lambda name, arguments: None
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            if (problem := self.fail(name, arguments)) is not None:
                raise problem
            answer = real(*arguments, **named)
            if (problem := self.fail_after(name, arguments)) is not None:
                raise problem
            return answer

        return call


class Recording:
    """Handles items, and notes which; `result` is what becomes of all of them, when it is set."""

    def __init__(self, real: handling.Handles) -> None:
        self._real = real
        self.result: results.Result | None = None
        self.items: list[message.Item] = []

    def handle(self, items: Sequence[message.Item], *arguments: Any, **named: Any) -> list[results.Handled]:
        self.items += items
        if self.result is not None:
            return [results.Handled(entry=incoming.unopened(item), result=self.result) for item in items]
        return self._real.handle(items, *arguments, **named)


class Bench:
    def __init__(self, store: SqliteStore, **limits: Any) -> None:
        self.now_s = 1000.0  # on the delivery clock
        self.real = store
        self.store = FailingStore(store)
        self.receipts = CollectedReceipts()
        shared = shared_store.SharedStore(self.store, now_s=lambda: self.now_s)
        self.settler = settler.Settler({"local": settler.Parts(store=shared)}, forget_margin_s=60.0)
        grant = tenants.Grant(key=KEY, tenant="local", store_url="sqlite:////x", **limits)
        self.here = Recording(handling.Handling(self.settler, poison_deaths=3))
        self.apart = Recording(handling.Handling(self.settler, poison_deaths=3))
        self.breakers = breaker.Breakers(hold_s=30.0, monotonic=lambda: self.now_s)
        self.ingest = ingest.Ingest(
            tenants=tenants.Tenants([grant]),
            here=self.here,
            apart=self.apart,
            breakers=self.breakers,
            receipts=self.receipts,  # type: ignore[arg-type]
            policy=verdicts.Policy(),
            wall_s=lambda: NOW_S,
            chance=lambda: 0.5,
        )

    def receive(
        self,
        *items: message.Item,
        redelivered: bool = False,
        received_s: float | None = None,
        key: message.Key = KEY,
        **more: Any,
    ) -> verdicts.Again | None:
        arguments = message.arguments(items, **more)
        return self.ingest.receive(
            arguments,
            message.sign(arguments, key),
            redelivered=redelivered,
            received_s=self.now_s if received_s is None else received_s,
        )

    def again(self, asked: verdicts.Again, *, redelivered: bool = False) -> verdicts.Again | None:
        """Deliver what was to come again, as Celery would."""
        arguments = asked.arguments()
        return self.ingest.receive(
            arguments, message.sign(arguments, asked.key), redelivered=redelivered, received_s=self.now_s
        )

    @property
    def states(self) -> list[tuple[State, str]]:
        return [(one.state, one.reason) for one in self.receipts.sent]

    def stored(self, event: Mapping[str, Any]) -> int:
        return self.real.find("EPISODE", {"eventId": event["eventId"]}).total


@pytest.fixture
def bench(tmp_path) -> Iterator[Bench]:
    store = SqliteStore(tmp_path / "store.sqlite3")
    yield Bench(store)
    store.close()


EVENT = make.episode()
LINE = make.line(EVENT)


def unavailable(**more: Any) -> Callable[[str, tuple[Any, ...]], Exception | None]:
    return lambda name, arguments: errors.StoreUnavailable("no answer", **more) if name == "find" else None


def unknown_write(name: str, arguments: tuple[Any, ...]) -> Exception | None:
    """The upsert of the episode was done, and its answer lost."""
    if name == "upsert" and arguments[0] == "EPISODE":
        return errors.StoreUnavailable("timed out", outcome_unknown=True)
    return None


# stored


def test_an_event_is_stored_and_receipted_by_its_own_line(bench):
    assert bench.receive(make.item(LINE)) is None
    (got,) = bench.receipts.sent
    assert (got.line_hash, got.id, got.state, got.reason) == (LINE.hash, EVENT["eventId"], State.STORED, "")
    assert bench.receipts.journals == {make.JOURNAL}
    assert bench.stored(EVENT) == 1
    assert bench.receipts.counted == {"stored": 1}


def test_a_second_copy_is_a_duplicate_with_a_receipt_of_its_own(bench):
    bench.receive(make.item(LINE))
    bench.receive(make.item(LINE))
    assert bench.states == [(State.STORED, "")] * 2
    assert bench.stored(EVENT) == 1
    assert bench.receipts.counted == {"stored": 1, "duplicates": 1}


@pytest.mark.parametrize("why", ["item", "redelivered", "retried"])
def test_what_an_earlier_delivery_of_the_line_wrote_and_could_not_tell_is_no_duplicate(bench, why):
    bench.receive(make.item(LINE))
    bench.receipts.counted.clear()
    more = {"redelivered": {"redelivered": True}, "retried": {"tries": 1}}.get(why, {})
    bench.receive(make.item(LINE, unsure=why == "item"), **more)
    assert (bench.receipts.counted["stored"], bench.receipts.counted["duplicates"]) == (1, 0)
    assert bench.receipts.stored == [EVENT["eventId"]] * 2, "Redis knows that it was counted"


def test_other_content_under_the_same_id_is_kept_aside_and_counted(bench):
    """contentHash covers what the id does not, here the summary."""
    bench.receive(make.item(LINE))
    bench.receive(make.item(make.line({**EVENT, "summary": "another"})))
    assert bench.stored(EVENT) == 2
    assert bench.receipts.counted["conflicts"] == 1


def test_an_order_is_carried_out_and_a_forgotten_event_answers_forgotten(bench):
    bench.receive(make.item(LINE))
    order = capture.build_forget_order(scope=make.SCOPE, runtime="custom", at=make.AT, target=EVENT["eventId"])
    bench.receive(make.item(make.order(order)))
    assert bench.stored(EVENT) == 0
    bench.receive(make.item(LINE))
    assert bench.stored(EVENT) == 0
    assert bench.states == [(State.STORED, ""), (State.STORED, ""), (State.FORGOTTEN, "")]


# refused


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "unsigned"),
        ({message.HEADER_KEY_ID: "key"}, "unsigned"),
        ({message.HEADER_KEY_ID: "nobody", message.HEADER_SIGNATURE: "0" * 64}, "unknown_key"),
        ({message.HEADER_KEY_ID: "key", message.HEADER_SIGNATURE: "0" * 64}, "wrong_signature"),
    ],
)
def test_a_message_nobody_signed_is_counted_and_gone(bench, headers, reason):
    arguments = message.arguments([make.item(LINE)])
    assert bench.ingest.receive(arguments, headers, redelivered=False, received_s=0.0) is None
    assert bench.receipts.refusals == [reason]
    assert bench.receipts.sent == []
    assert bench.store.calls == []


def test_changed_arguments_do_not_pass_under_an_old_signature(bench):
    arguments = message.arguments([make.item(LINE)])
    headers = message.sign(arguments, KEY)
    arguments["batch"][0]["deaths"] = 1
    bench.ingest.receive(arguments, headers, redelivered=False, received_s=0.0)
    assert bench.receipts.refusals == ["wrong_signature"]


def test_a_signed_message_of_another_form_is_refused(bench):
    arguments = {"batch": []}
    bench.ingest.receive(arguments, message.sign(arguments, KEY), redelivered=False, received_s=0.0)
    assert bench.receipts.refusals == ["malformed"]


def test_refusing_goes_on_while_redis_is_away(bench):
    bench.receipts.down = True
    assert bench.ingest.receive({}, {}, redelivered=False, received_s=0.0) is None


def test_a_line_that_breaks_the_contract_is_dead_with_its_reason_also_when_it_was_unsure(bench):
    line = make.line({**EVENT, "schemaVersion": 3})
    assert bench.receive(make.item(line, unsure=True), redelivered=True) is None
    assert bench.states == [(State.DEAD, "contract:schemaVersion:is_not_a_version_that_this_software_knows")]
    assert bench.store.calls == []


def test_a_line_of_a_later_version_waits_for_workers_of_that_version(bench):
    checked = LINE.text.replace('{"v":1', '{"v":2', 1).rpartition(',"sum":"')[0]
    later = f'{checked},"sum":"{hashlib.sha256(checked.encode()).hexdigest()[:16]}"}}'
    assert bench.receive(make.item(later)) is None
    (got,) = bench.receipts.sent
    assert (got.state, got.reason, got.id, got.line_hash) == (
        State.DEFERRED,
        "later_version",
        LINE.id,
        journal_line.line_hash(later),
    )
    assert got.delay_s >= 300


def test_a_scope_the_key_may_not_write_is_dead(tmp_path):
    store = SqliteStore(tmp_path / "store.sqlite3")
    bench = Bench(store, agents=frozenset({"other"}))
    bench.receive(make.item(LINE))
    assert bench.states == [(State.DEAD, "scope_not_allowed")]
    store.close()


def test_what_the_store_refuses_for_good_is_dead_once_and_its_neighbours_are_stored(bench):
    events = [make.episode(number) for number in range(8)]
    bad = events[3]["eventId"]
    bench.store.fail = lambda name, arguments: (
        errors.StoreRefused("refused", status=422)
        if name == "upsert" and any(row.get("eventId") == bad for row in arguments[1])
        else None
    )
    bench.receive(*(make.item(make.line(event)) for event in events))
    assert bench.states.count((State.STORED, "")) == 7
    assert [(r.id, r.reason) for r in bench.receipts.sent if r.state is State.DEAD] == [(bad, "store_refused:422")]


def test_a_wrong_key_of_the_store_gives_no_event_up(bench):
    bench.store.fail = lambda name, arguments: errors.StoreDenied("no") if name == "find" else None
    assert bench.receive(make.item(LINE)) is None
    (got,) = bench.receipts.sent
    assert (got.state, got.reason) == (State.DEFERRED, "store_denied")
    assert got.delay_s >= 300


# transient


def test_one_event_in_transient_trouble_comes_again_at_most_three_times_and_is_then_deferred(bench):
    bench.store.fail = unavailable(status=503)
    waits = []
    asked = bench.receive(make.item(LINE))
    while asked is not None:
        waits.append(asked.countdown_s)
        assert (asked.reason, asked.unsure_until, asked.tries) == ("store_unavailable:503", None, len(waits))
        assert bench.receipts.sent == []
        asked = bench.again(asked)
    assert waits == [1.5, 6.0, 22.5]
    (got,) = bench.receipts.sent
    assert (got.state, got.reason) == (State.DEFERRED, "store_unavailable:503")
    assert got.delay_s >= 30
    assert bench.receipts.counted == {
        "retried": 3,
        "failed:store_unavailable:503": 4,
        "deferred": 1,
        "deferred:store_unavailable:503": 1,
    }


def test_retries_end_when_the_store_is_back(bench):
    bench.store.fail = unavailable()
    asked = bench.receive(make.item(LINE))
    bench.store.fail = lambda name, arguments: None
    assert bench.again(asked) is None
    assert bench.states == [(State.STORED, "")]


def test_a_wait_the_store_asks_for_is_kept_and_a_long_one_goes_to_the_journal(bench):
    throttled = errors.StoreThrottled("wait", retry_after_s=20.0, status=429)
    bench.store.fail = lambda name, arguments: throttled if name == "find" else None
    asked = bench.receive(make.item(LINE))
    assert asked is not None
    assert asked.countdown_s == 20.0
    throttled.retry_after_s = 200.0
    assert bench.again(asked) is None
    (got,) = bench.receipts.sent
    assert (got.state, got.reason) == (State.DEFERRED, "store_throttled:429")
    assert got.delay_s >= 200


def test_members_of_a_chunk_in_transient_trouble_are_deferred_at_once(bench):
    bench.store.fail = unavailable(status=503)
    items = [make.item(make.line(make.episode(number))) for number in range(3)]
    assert bench.receive(*items) is None
    assert bench.states == [(State.DEFERRED, "store_unavailable:503")] * 3


# unsure


@pytest.mark.parametrize("why", ["item", "redelivered"])
def test_an_unsure_delivery_that_settles_is_made_once_more_and_only_then_receipted(bench, why):
    asked = bench.receive(make.item(LINE, unsure=why == "item"), redelivered=why == "redelivered")
    assert asked is not None
    assert (asked.reason, asked.countdown_s, asked.unsure_until) == ("later_look", 60.0, NOW_S + 60)
    assert asked.tries == 0
    assert bench.receipts.sent == []
    assert bench.stored(EVENT) == 1
    assert bench.again(asked) is None
    assert bench.states == [(State.STORED, "")]
    assert bench.receipts.counted == {"stored": 1, "looks": 1}


def test_a_write_without_an_answer_that_settled_all_the_same_gets_its_later_look(bench):
    """The driver settles and tells of the doubt: here a settler that says so."""
    bench.here.result = delivery.Settled(state=State.STORED, unsure=True)
    asked = bench.receive(make.item(LINE))
    assert asked is not None
    assert asked.reason == "later_look"
    # Its own doubt again: one more look.
    more = bench.again(asked)
    assert more is not None
    assert more.reason == "later_look"
    bench.here.result = delivery.Settled(state=State.STORED)
    assert bench.again(more) is None
    assert bench.states == [(State.STORED, "")]


def test_a_later_look_that_was_redelivered_is_made_once_more(bench):
    asked = bench.receive(make.item(LINE), redelivered=True)
    more = bench.again(asked, redelivered=True)
    assert more is not None
    assert more.reason == "later_look"
    assert bench.again(more) is None
    assert bench.states == [(State.STORED, "")]


def test_the_later_look_happens_also_for_what_is_forgotten_or_dead(bench):
    for result, state in (
        (delivery.Settled(state=State.FORGOTTEN), State.FORGOTTEN),
        (delivery.Settled(state=State.DEAD, reason="supersedes_itself"), State.DEAD),
        (delivery.Failed(error=errors.StoreRefused("no", status=422)), State.DEAD),
    ):
        bench.apart.result = result
        bench.receipts.sent.clear()
        asked = bench.receive(make.item(LINE, unsure=True))
        assert asked is not None
        assert asked.reason == "later_look"
        assert bench.again(asked) is None
        assert [one.state for one in bench.receipts.sent] == [state]


@pytest.mark.parametrize("why", ["item", "redelivered"])
def test_an_unsure_delivery_that_does_not_settle_is_deferred_for_at_least_the_stores_lateness(bench, why):
    bench.store.fail = unavailable(status=503)
    asked = bench.receive(make.item(LINE, unsure=why == "item"), redelivered=why == "redelivered")
    assert asked is None
    (got,) = bench.receipts.sent
    assert (got.state, got.reason) == (State.DEFERRED, "unsure")
    assert got.delay_s >= 60


def test_a_write_without_an_answer_is_not_retried_but_deferred_as_unsure(bench):
    bench.store.fail_after = unknown_write
    assert bench.receive(make.item(LINE)) is None
    assert bench.states == [(State.DEFERRED, "unsure")]


def test_a_later_look_that_does_not_settle_is_deferred_as_unsure(bench):
    asked = bench.receive(make.item(LINE, unsure=True))
    bench.store.fail = unavailable(status=503)
    assert bench.again(asked) is None
    assert bench.states == [(State.DEFERRED, "unsure")]


def test_a_chunk_comes_again_only_with_those_that_need_their_later_look(bench):
    sure, doubtful = make.line(make.episode(1)), make.line(make.episode(2))
    asked = bench.receive(make.item(sure), make.item(doubtful, unsure=True))
    assert asked is not None
    assert [one.line for one in asked.items] == [doubtful.text]
    assert [one.line_hash for one in bench.receipts.sent] == [sure.hash]
    assert bench.again(asked) is None
    assert [one.line_hash for one in bench.receipts.sent] == [sure.hash, doubtful.hash]


def test_a_later_look_counts_against_no_budget(bench):
    asked = bench.receive(make.item(LINE, unsure=True), tries=3)
    assert asked is not None
    assert asked.tries == 3


# time


def test_nothing_is_sent_once_half_of_the_visibility_timeout_is_over(bench):
    assert bench.receive(make.item(LINE), received_s=bench.now_s - HALF_S - 0.1) is None
    assert bench.states == [(State.DEFERRED, "delivery_too_old")]
    assert "upsert" not in bench.store.calls
    assert "find" not in bench.store.calls


def test_a_delivery_that_grows_too_old_in_the_middle_stops_there(bench):
    def age(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "upsert":
            bench.now_s += HALF_S

    bench.store.fail_after = age
    bench.receive(make.item(LINE), received_s=bench.now_s - 1)
    assert bench.states == [(State.DEFERRED, "delivery_too_old")]
    assert bench.store.calls.count("upsert") == 1


# deaths


def test_an_event_that_killed_its_process_too_often_is_dead_with_its_count(bench):
    bench.receive(make.item(LINE, deaths=3))
    (got,) = bench.receipts.sent
    assert (got.state, got.reason, got.deaths) == (State.DEAD, "poison", 3)
    assert bench.store.calls == []


def test_doubtful_items_are_handled_apart_and_the_others_here(bench):
    lines = [make.line(make.episode(number)) for number in range(5)]
    items = [
        make.item(lines[0]),
        make.item(lines[1], unsure=True),
        make.item(lines[2]),
        make.item(lines[3], deaths=1),
        make.item(lines[4], check=True),
    ]
    bench.receive(*items)
    assert bench.here.items == [items[0], items[2]]
    assert bench.apart.items == [items[1], items[3], items[4]]
    assert [one.line_hash for one in bench.receipts.sent] == [lines[n].hash for n in (0, 2, 3, 4)]


def test_all_of_a_redelivered_message_is_handled_apart_and_so_is_its_later_look_when_it_is_unsure(bench):
    asked = bench.receive(make.item(LINE), redelivered=True)
    assert bench.here.items == []
    assert len(bench.apart.items) == 1
    bench.again(asked)  # it did not kill anybody the first time
    assert (len(bench.here.items), len(bench.apart.items)) == (1, 1)
    asked = bench.receive(make.item(LINE, unsure=True))
    bench.again(asked)
    assert len(bench.apart.items) == 3


@pytest.mark.parametrize(
    ("deaths", "state", "reason"),
    [(0, State.DEFERRED, "unsure"), (1, State.DEFERRED, "unsure"), (2, State.DEAD, "poison")],
)
def test_a_death_is_one_more_and_the_third_is_poison(bench, deaths, state, reason):
    bench.apart.result = results.Died()
    assert bench.receive(make.item(LINE, unsure=True, deaths=deaths)) is None
    (got,) = bench.receipts.sent
    assert (got.id, got.line_hash) == (EVENT["eventId"], LINE.hash)
    assert (got.state, got.reason, got.deaths) == (state, reason, deaths + 1)
    assert got.delay_s >= (60 if state is State.DEFERRED else 0)
    assert bench.receipts.counted["deaths"] == 1
    assert [one.error for one in bench.receipts.troubles] == ["died"]


@pytest.mark.parametrize("error", [errors.DeliveryTooOld("x"), errors.ChildUnavailable("x")])
def test_trouble_with_children_is_transient_and_no_death(bench, error):
    bench.apart.result = delivery.Failed(error=error)
    assert bench.receive(make.item(LINE, unsure=True, deaths=2)) is None
    (got,) = bench.receipts.sent
    assert (got.state, got.reason, got.deaths) == (State.DEFERRED, "unsure", 2)


def test_what_hung_a_child_is_deferred_with_a_reason_that_keeps_it_unsure(bench):
    bench.apart.result = delivery.Failed(error=children.ChildHung("x"), unsure=True)
    assert bench.receive(make.item(LINE, unsure=True)) is None
    assert bench.states == [(State.DEFERRED, "unsure:hung")]
    assert bench.receipts.sent[0].delay_s >= 60
    assert bench.receipts.counted["failed:child_hung"] == 1


def test_a_fault_in_a_child_is_counted_by_its_class_and_deferred_as_unsure(bench):
    bench.apart.result = results.Fault(kind="KeyError")
    assert bench.receive(make.item(LINE, unsure=True)) is None
    assert bench.states == [(State.DEFERRED, "unsure")]
    assert bench.receipts.counted["failed:KeyError"] == 1


# dead lines, asked about


def forget(bench, event: Mapping[str, Any]) -> None:
    order = capture.build_forget_order(scope=make.SCOPE, runtime="custom", at=make.AT, target=event["eventId"])
    bench.receive(make.item(make.order(order)))
    bench.receipts.sent.clear()
    bench.receipts.counted.clear()


def test_a_check_answers_forgotten_or_dead_as_before_and_writes_nothing(bench):
    gone, broken = make.line({**make.episode(1), "visibility": "x"}), make.line({**make.episode(2), "visibility": "x"})
    forget(bench, make.episode(1))
    bench.store.calls.clear()
    reason = "contract:visibility:is_not_one_of_the_allowed_values"
    bench.receive(*(make.item(line, check=True, reason=reason, deaths=1) for line in (gone, broken)))
    assert bench.states == [(State.FORGOTTEN, ""), (State.DEAD, reason)]
    assert bench.receipts.sent[1].deaths == 1
    assert bench.receipts.known_dead == {broken.hash}
    assert set(bench.store.calls) == {"find"}
    assert bench.receipts.counted == {"checked": 2, "forgotten": 1}


def test_a_check_of_poison_does_not_touch_it_beyond_its_marks(bench):
    bench.receive(make.item(LINE, check=True, reason="poison", deaths=3))
    assert bench.states == [(State.DEAD, "poison")]
    assert bench.stored(EVENT) == 0


@pytest.mark.parametrize(
    "result",
    [
        delivery.Failed(error=errors.StoreUnavailable("no answer"), unsure=True),
        results.Died(),
        results.Fault(kind="KeyError"),
        results.Held(delay_s=1.0),
    ],
)
def test_a_check_that_could_not_be_made_answers_nothing(bench, result):
    """Any receipt but those two could take the line out of the dead ones."""
    bench.apart.result = result
    assert bench.receive(make.item(LINE, check=True, reason="poison"), redelivered=True) is None
    assert bench.receipts.sent == []
    assert bench.receipts.troubles == []


def test_a_fault_over_a_check_answers_nothing(bench):
    arguments = message.arguments([make.item(LINE, check=True)])
    bench.ingest.answer_fault(arguments, message.sign(arguments, KEY), KeyError())
    assert bench.receipts.sent == []


# a store that is away


def outage(bench, number: int = 5) -> None:
    """So many messages fail, over more than five seconds."""
    bench.store.fail = unavailable(status=503)
    for _ in range(number):
        bench.receive(make.item(LINE))
        bench.now_s += 1.5
    bench.receipts.sent.clear()
    bench.receipts.counted.clear()
    bench.receipts.troubles.clear()
    bench.store.calls.clear()


def test_an_outage_burns_no_attempts_and_sends_nothing_but_probes(bench):
    outage(bench)
    bench.now_s += 2.0
    assert bench.receive(make.item(LINE)) is None  # the probe: deferred at once, not Celery's to retry
    assert bench.states == [(State.DEFERRED, "store_unavailable:503")]
    assert "find" in bench.store.calls
    bench.store.calls.clear()
    items = [make.item(make.line(make.episode(number))) for number in range(10)]
    assert bench.receive(*items) is None
    assert bench.store.calls == []
    assert bench.states[1:] == [(State.DEFERRED, "held")] * 10
    assert all(one.delay_s >= 30 for one in bench.receipts.sent)
    assert bench.receipts.counted["held"] == 10
    assert "retried" not in bench.receipts.counted
    assert len(bench.receipts.troubles) == 1  # what was held was not attempted


def test_what_is_held_while_it_is_unsure_stays_unsure(bench):
    outage(bench)
    look = {"unsure_until": NOW_S}
    for items, more in (
        ([make.item(LINE, unsure=True)], {}),
        ([make.item(LINE)], {"redelivered": True}),
        ([make.item(LINE)], look),
    ):
        assert bench.receive(*items, **more) is None
    assert bench.states == [(State.DEFERRED, "unsure:held")] * 3
    assert all(one.delay_s >= 60 for one in bench.receipts.sent)


def test_the_store_that_is_back_is_found_by_the_next_probe(bench):
    outage(bench)
    bench.store.fail = lambda name, arguments: None
    bench.now_s += 2.0
    assert bench.receive(make.item(LINE)) is None
    assert bench.receive(make.item(make.line(make.episode(2)))) is None
    assert bench.states == [(State.STORED, "")] * 2


def test_an_outage_is_counted_once_when_it_begins(bench):
    bench.store.fail = unavailable(status=503)
    for _ in range(8):
        bench.receive(make.item(LINE))
        bench.now_s += 1.5
    assert bench.receipts.counted["store_outages"] == 1


def test_refusals_and_a_wrong_key_open_nothing(bench):
    for problem in (errors.StoreRefused("no", status=422), errors.StoreDenied("no")):
        bench.store.fail = lambda name, arguments, problem=problem: problem if name == "find" else None
        for _ in range(8):
            bench.receive(make.item(LINE))
            bench.now_s += 1.5
    assert "held" not in bench.receipts.counted


def test_a_turn_is_given_back_whatever_a_message_ends_in(bench):
    outage(bench)
    bench.now_s += 2.0
    bench.here._real = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        bench.receive(make.item(LINE))
    assert bench.breakers.of("local").enter() is not None


def test_every_failed_attempt_is_told_with_its_code(bench):
    bench.store.fail = unavailable(status=503)
    asked = bench.receive(make.item(LINE))
    bench.again(asked)
    assert [(one.id, one.line_hash, one.error) for one in bench.receipts.troubles] == [
        (EVENT["eventId"], LINE.hash, "store_unavailable:503")
    ] * 2


# receipts that cannot be sent


def test_one_event_whose_receipt_cannot_be_sent_comes_again_within_its_retries(bench):
    bench.receipts.down = True
    asked = bench.receive(make.item(LINE))
    assert asked is not None
    assert (asked.reason, asked.tries) == ("receipts_unavailable", 1)
    bench.receipts.down = False
    assert bench.again(asked) is None
    assert bench.states == [(State.STORED, "")]
    assert bench.stored(EVENT) == 1


def test_after_the_last_retry_the_journal_is_trusted_to_publish_it_again(bench):
    bench.receipts.down = True
    assert bench.receive(make.item(LINE), tries=3) is None
    assert bench.receive(make.item(LINE), make.item(make.line(make.episode(2)))) is None


def test_a_later_look_is_made_also_when_nothing_can_be_told(bench):
    bench.receipts.down = True
    asked = bench.receive(make.item(LINE, unsure=True))
    assert asked is not None
    assert asked.reason == "later_look"


# faults, privacy


def test_a_fault_nobody_foresaw_defers_all_of_it_as_unsure(bench):
    arguments = message.arguments([make.item(LINE), make.item("damaged")])
    bench.ingest.answer_fault(arguments, message.sign(arguments, KEY), KeyError(make.SECRET_WORDS))
    assert bench.states == [(State.DEFERRED, "unsure")] * 2  # none was opened: that may be what failed
    assert bench.receipts.counted["failed:KeyError"] == 2
    with pytest.raises(errors.SignatureRefused):
        bench.ingest.answer_fault(arguments, {}, KeyError())


def test_a_line_without_a_hash_is_counted_and_the_rest_is_answered(bench):
    bench.receive(make.item("dämaged"), make.item(LINE))
    assert bench.states == [(State.STORED, "")]
    assert bench.receipts.counted["damaged"] == 1


def test_no_text_of_an_event_is_logged(bench, caplog):
    caplog.set_level(logging.DEBUG)
    bench.receive(make.item(LINE))
    bench.receive(make.item(make.line({**EVENT, "visibility": make.SECRET_WORDS})))
    bench.store.fail = lambda name, arguments: errors.StoreRefused(make.SECRET_WORDS) if name == "upsert" else None
    bench.receive(make.item(make.line(make.episode(2))))
    bench.receive(make.item(make.SECRET_WORDS))
    assert caplog.text.count("action=handled") == 4
    assert make.SECRET_WORDS not in caplog.text
    assert make.SECRET_WORDS not in "".join(one.reason for one in bench.receipts.sent)
