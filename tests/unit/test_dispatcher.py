"""The guarantees of `producer.dispatcher`, on a fake broker and with time that moves when told."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from producer import errors, message, receipt
from producer.dispatcher import Dispatcher, Publication
from producer.journal import Journal
from producer.journal import line as lines
from producer.journal.line import Line
from producer.receipt import Receipt, State
from tests.unit.journal.crashing_filesystem import CrashingFileSystem
from tests.unit.journal.support import Clock, event, open_journal, receipt_of, texts

KEY = message.Key(id="host", secret=b"k" * 32)


class Broker:
    """A publisher and a receipt source that hold everything in lists, and can be away."""

    def __init__(self) -> None:
        self.published: list[Publication] = []
        self.calls = 0
        self.is_away = False
        self.takes_half = False
        self.redis_is_away = False
        self.receipts: list[str] = []
        self.waiting = 0
        self.closed = 0
        self.on_publish = lambda: None

    def publish(self, publications: Sequence[Publication]) -> None:
        self.calls += 1
        self.on_publish()
        if self.takes_half:
            self.published += publications[: len(publications) // 2]
        if self.is_away or self.takes_half:
            raise errors.BrokerUnavailable("away")
        self.published += publications

    def pop(self, journal_id: str, max_entries: int) -> list[bytes]:
        if self.redis_is_away:
            raise errors.RedisUnavailable("away")
        taken, self.receipts = self.receipts[:max_entries], self.receipts[max_entries:]
        return [text.encode() for text in taken]

    def queue_length(self) -> int:
        if self.redis_is_away:
            raise errors.RedisUnavailable("away")
        return self.waiting

    def close(self) -> None:
        self.closed += 1

    def items(self) -> list[dict[str, object]]:
        """Every line that was published, in order."""
        return [item for publication in self.published for item in publication.kwargs["batch"]]

    def ids(self) -> list[str]:
        return [lines.parse(str(item["line"])).id for item in self.items()]

    def take(self) -> list[Publication]:
        taken, self.published = self.published, []
        return taken


class Host:
    """A journal, a broker, and dispatchers over them."""

    def __init__(self, **journal_options: object) -> None:
        self.clock = Clock()
        self.fs = CrashingFileSystem()
        self.fs.now_ns = lambda: int(self.clock() * 1e9)
        self.journal = open_journal(self.fs, self.clock, **journal_options)
        self.broker = Broker()
        self.dispatcher = self.dispatch()

    def dispatch(self, journal: Journal | None = None, **options: object) -> Dispatcher:
        return Dispatcher(
            journal or self.journal,
            self.broker,
            self.broker,
            key=KEY,
            **{"monotonic": self.clock, "rng": random.Random(1), **options},  # type: ignore[arg-type]
        )

    def restart(self, **options: object) -> None:
        """Another process takes over."""
        self.dispatcher.close()
        self.dispatcher = self.dispatch(**options)

    def capture(self, count: int = 1, *, start: int = 0, length: int = 20) -> list[Line]:
        return [self.journal.append_event(event(start + number, length=length)) for number in range(count)]

    def rounds(self, count: int = 3, *, every_s: float = 0.0) -> None:
        for _ in range(count):
            self.clock.advance(every_s)
            self.dispatcher.run_once()

    def receipt(self, line: Line, state: State = State.STORED, **fields: object) -> None:
        made = receipt_of(line, state, **fields)
        self.broker.receipts.append(receipt.encode(made, journal_id=self.journal.journal_id, key=KEY))

    def kinds(self) -> list[str]:
        return [located.line.kind for located in self.journal.scan()]


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    made.rounds(1)
    yield made
    made.dispatcher.close()
    made.journal.close()


# Publishing


def test_a_fresh_event_goes_alone_under_its_own_id_signed_and_sure(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    (publication,) = host.broker.published
    assert publication.task_id == line.id
    assert publication.queue == message.QUEUE
    assert publication.count == 1
    assert publication.kwargs == message.arguments(
        [message.Item(line=line.text, journal_id=host.journal.journal_id, unsure=False, deaths=0)]
    )
    assert message.verify(publication.kwargs, publication.headers, {KEY.id: KEY.secret}.get) == KEY.id


def test_an_event_in_flight_is_not_published_again(host: Host) -> None:
    host.capture(5)
    host.rounds(50, every_s=1)
    assert len(host.broker.items()) == 5


def test_what_is_found_at_the_start_is_backlog_and_goes_in_chunks() -> None:
    host = Host(segment_max_bytes=1 << 20)
    captured = host.capture(250)
    host.rounds()
    assert [publication.count for publication in host.broker.published] == [100, 100, 50]
    assert {publication.queue for publication in host.broker.published} == {message.BACKLOG_QUEUE}
    assert all(publication.task_id.startswith("chunk-") for publication in host.broker.published)
    assert len({publication.task_id for publication in host.broker.published}) == 3
    assert host.broker.ids() == [line.id for line in captured]


def test_a_chunk_is_bounded_in_bytes_too() -> None:
    host = Host(max_bytes=1 << 25, segment_max_bytes=1 << 23)
    host.capture(10, length=300_000)
    host.rounds()
    assert [publication.count for publication in host.broker.published] == [3, 3, 3, 1]


def test_a_line_is_marked_sent_before_it_is_published(host: Host) -> None:
    host.capture(3)
    seen = []
    host.broker.on_publish = lambda: seen.append(host.kinds().count("sent"))
    host.rounds()
    assert seen == [3]


def test_a_full_disk_does_not_stop_publishing(host: Host) -> None:
    (line,) = host.capture()
    host.fs.capacity = 0
    host.rounds()
    assert host.broker.ids() == [line.id]
    assert host.dispatcher.status().unmarked == 1


def test_what_other_processes_append_is_noticed(host: Host) -> None:
    hook = open_journal(host.fs, host.clock)
    line = hook.append_event(event(7))
    hook.close()
    host.rounds(1)
    assert host.broker.ids() == [line.id]
    assert host.broker.published[0].queue == message.QUEUE


# The window


def test_no_more_than_the_window_is_in_the_broker_at_once() -> None:
    host = Host()
    host.restart(in_flight_events=40)
    captured = host.capture(200)
    host.rounds(10)
    assert len(host.broker.items()) == 30, "three quarters of it for a backlog"
    for line in captured[:20]:
        host.receipt(line)
    host.rounds(10)
    assert len(host.broker.items()) == 50


def test_the_window_is_bounded_in_bytes_too() -> None:
    host = Host(max_bytes=1 << 22)
    host.restart(in_flight_bytes=10_000)
    host.capture(50, length=1000)
    host.rounds(10)
    assert sum(len(str(item["line"])) for item in host.broker.items()) <= 7_500
    assert host.dispatcher.status().in_flight_bytes <= 7_500


def test_a_line_larger_than_the_window_goes_when_nothing_else_is_in_flight() -> None:
    host = Host(max_bytes=1 << 22)
    host.restart(in_flight_bytes=1000)
    host.capture(2, length=5000)
    host.rounds(10)
    assert len(host.broker.items()) == 1


def test_fresh_events_are_not_starved_by_a_backlog() -> None:
    host = Host()
    host.restart(in_flight_events=40)
    host.capture(1000)
    host.rounds(10)
    host.broker.take()
    (line,) = host.capture(1, start=5000)
    host.rounds(1)
    assert host.broker.ids() == [line.id]


def test_a_fresh_event_that_waited_too_long_is_backlog(host: Host) -> None:
    host.broker.is_away = True
    host.capture(5)
    host.rounds(3, every_s=10)
    host.broker.is_away = False
    host.rounds(10, every_s=31)
    assert {publication.queue for publication in host.broker.published} == {message.BACKLOG_QUEUE}
    assert len(set(host.broker.ids())) == 5


# Receipts


@pytest.mark.parametrize("state", [State.STORED, State.DEAD, State.FORGOTTEN])
def test_a_terminal_receipt_ends_a_line_and_is_journaled(host: Host, state: State) -> None:
    (line,) = host.capture()
    host.rounds()
    host.receipt(line, state, reason="why")
    host.rounds(5, every_s=4000)
    assert len(host.broker.items()) == 1
    status = host.dispatcher.status()
    assert (status.pending, status.in_flight, status.dead) == (0, 0, int(state is State.DEAD))
    assert status.receipts == {state.value: 1}
    assert host.journal.status().dead == int(state is State.DEAD)


def test_settled_lines_leave_the_disk_dead_ones_stay(host: Host) -> None:
    stored, dead = host.capture(2)
    host.rounds()
    host.receipt(stored)
    host.receipt(dead, State.DEAD)
    host.rounds(40, every_s=120)
    assert texts(host.journal) == [dead.text]
    assert host.dispatcher.status().dead == 1


def test_receipts_that_are_not_ours_are_refused_and_counted(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    other = message.Key(id="host", secret=b"x" * 32)
    made, id_ = receipt_of(line), host.journal.journal_id
    host.broker.receipts += [
        receipt.encode(made, journal_id=id_, key=other),
        receipt.encode(made, journal_id="another journal", key=KEY),
        receipt.encode(made, journal_id=id_, key=message.Key(id="stranger", secret=KEY.secret)),
        receipt.encode(Receipt(line_hash="zz", id="x", state=State.STORED), journal_id=id_, key=KEY),
        receipt.encode(receipt_of(line, State.DISCARDED), journal_id=id_, key=KEY),
        "not json",
        "[]",
        "[" * 100_000,
        '{"keyId": "host", "signature": "", "receipt": ' + "[" * 900 + "]" * 900 + "}",
    ]
    host.rounds()
    assert host.dispatcher.status().receipts_refused == 9
    assert host.dispatcher.status().in_flight == 1
    assert host.kinds().count("receipt") == 0


def test_receipts_of_lines_that_are_not_here_and_repeated_ones_are_not_journaled(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    host.receipt(open_journal(CrashingFileSystem()).append_event(event(99)))
    for _ in range(3):
        host.receipt(line)
    host.rounds()
    host.receipt(line)
    host.rounds(6, every_s=1)
    assert host.kinds().count("receipt") <= 3


def test_receipts_count_in_memory_when_the_disk_refuses_them(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    host.fs.capacity = 0
    host.receipt(line)
    host.rounds()
    status = host.dispatcher.status()
    assert (status.in_flight, status.pending, status.receipts_unjournaled) == (0, 0, 1)


def test_a_full_disk_heals_by_receipts_alone() -> None:
    host = Host(reserve_bytes=0, segment_max_bytes=2000)
    captured = host.capture(20)
    host.fs.capacity = host.fs._used()
    host.rounds()
    for line in captured:
        host.receipt(line)
    host.rounds(50, every_s=120)
    with pytest.raises(errors.JournalFull):
        host.journal.append_event(event(100, length=host.fs.capacity))
    host.journal.append_event(event(101))
    assert len(texts(host.journal)) < 20


# Coming back


def test_a_deferred_line_comes_back_singly_and_sure_after_its_delay(host: Host) -> None:
    first, second = host.capture(2)
    host.rounds()
    host.broker.take()
    host.receipt(first, State.DEFERRED, reason="unsure", delay_s=60)
    host.receipt(second, State.DEFERRED, reason="store_unavailable", delay_s=60)
    host.rounds(59, every_s=1)
    assert host.broker.published == []
    host.rounds(10, every_s=1)
    assert [publication.task_id for publication in host.broker.published] == [first.id, second.id]
    assert [item["unsure"] for item in host.broker.items()] == [False, False]
    assert host.dispatcher.status().receipts == {"deferred": 2}


@pytest.mark.parametrize("reason", ["held", "unsure:held"])
def test_lines_held_for_the_stores_sake_come_back_in_chunks(reason: str) -> None:
    host = Host(segment_max_bytes=1 << 20)
    captured = host.capture(250)
    host.rounds()
    host.broker.take()
    for number, line in enumerate(captured):
        host.receipt(line, State.DEFERRED, reason=reason, delay_s=60 + number / 100)  # each with its own jitter
    host.rounds()
    assert host.dispatcher.status().deferred == 250
    host.rounds(1, every_s=59)
    assert host.broker.published == []
    host.rounds(2, every_s=8)
    assert sorted(publication.count for publication in host.broker.published) == [50, 100, 100]
    assert sorted(host.broker.ids()) == sorted(line.id for line in captured)
    assert {publication.queue for publication in host.broker.published} == {message.BACKLOG_QUEUE}


def test_a_held_line_that_killed_a_process_goes_alone() -> None:
    host = Host()
    captured = host.capture(3)
    host.rounds()
    host.broker.take()
    for line in captured[:2]:
        host.receipt(line, State.DEFERRED, reason="held", delay_s=60)
    host.receipt(captured[2], State.DEFERRED, reason="unsure:held", delay_s=60, deaths=1)
    host.rounds()
    host.rounds(2, every_s=70)
    assert sorted(publication.count for publication in host.broker.published) == [1, 2]
    (alone,) = [publication for publication in host.broker.published if publication.count == 1]
    assert [item["deaths"] for item in alone.kwargs["batch"]] == [1]


@pytest.mark.parametrize("reason", ["store_unavailable:503", "unsure", "store_throttled:429", "died"])
def test_whatever_may_be_the_lines_own_fault_comes_back_singly_also_to_the_next_drainer(reason: str) -> None:
    """Members of a chunk share its requests: one that the store fails on would hold up the others for ever."""
    host = Host()
    captured = host.capture(5)
    host.rounds()
    for restarted in (False, True):
        host.broker.take()
        for line in captured:
            host.receipt(line, State.DEFERRED, reason=reason, delay_s=60)
        host.rounds()
        if restarted:
            host.restart()
        host.rounds(3, every_s=33)
        assert [publication.count for publication in host.broker.published] == [1] * 5


def test_at_start_held_lines_go_in_chunks_once_what_is_left_of_their_delay_is_over() -> None:
    host = Host()
    captured = host.capture(5)
    host.rounds()
    for line in captured:
        host.receipt(line, State.DEFERRED, reason="held", delay_s=60)
    host.rounds()
    host.broker.take()
    host.restart()
    host.rounds(3)
    assert host.broker.published == []
    host.rounds(2, every_s=66)
    assert [publication.count for publication in host.broker.published] == [5]


def test_a_line_that_hung_a_workers_child_comes_back_singly_and_unsure_every_time(host: Host) -> None:
    """Sure, it would be handled by a thread of the worker, and hang it for good."""
    captured = host.capture(2)
    reasons = ("unsure:hung", "unsure", "unsure:hung", "unsure:held", "unsure", "unsure")
    for number, reason in enumerate(reasons):
        host.rounds()
        host.broker.take()
        for line in captured:
            host.receipt(line, State.DEFERRED, reason=reason, delay_s=60)
        if number == 2:
            host.rounds()
            host.restart()
        host.rounds(20, every_s=10)
        assert sorted(host.broker.ids()) == sorted(line.id for line in captured)
        assert all(item["unsure"] for item in host.broker.items())
        assert reason == "unsure:held" or [one.count for one in host.broker.published] == [1, 1]


def test_an_unsure_line_that_comes_back_deferred_to_its_drainer_is_sure(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    host.restart()
    host.rounds()
    host.receipt(line, State.DEFERRED, reason="unsure", delay_s=60)
    host.rounds(1)
    host.rounds(1, every_s=61)
    assert [item["unsure"] for item in host.broker.items()] == [False, True, False]


def test_intervals_of_deferrals_grow_with_jitter_up_to_a_bound(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    intervals = []
    for _ in range(12):
        host.broker.take()
        host.receipt(line, State.DEFERRED, reason="store_unavailable")
        host.rounds(1)
        start = host.clock()
        while not host.broker.published:
            host.rounds(1, every_s=0.5)
            assert host.clock() - start < 400
        intervals.append(host.clock() - start)
    assert intervals[0] <= 5.5
    assert 140 <= max(intervals) <= 301
    assert intervals[:4] == sorted(intervals[:4])
    assert len({round(one) for one in intervals[-6:]}) > 2


def test_deaths_are_carried_and_a_line_that_killed_goes_alone() -> None:
    host = Host()
    captured = host.capture(3)
    host.rounds()
    host.receipt(captured[1], State.DEFERRED, reason="killed", deaths=2)
    host.broker.take()
    host.rounds(3, every_s=90)
    (publication,) = host.broker.take()
    assert [item["deaths"] for item in publication.kwargs["batch"]] == [2]
    host.restart()
    host.rounds()
    alone = [publication for publication in host.broker.published if publication.count == 1]
    assert [publication.kwargs["batch"][0]["deaths"] for publication in alone] == [2]


def test_the_greatest_count_of_deaths_holds(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    for deaths in (2, 1, 0):
        host.receipt(line, State.DEFERRED, reason="killed", deaths=deaths)
        host.rounds(1)
    host.rounds(3, every_s=300)
    assert host.broker.items()[-1]["deaths"] == 2


def test_a_reopened_line_is_delivered_again(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    host.receipt(line)
    host.rounds()
    host.broker.take()
    host.receipt(line, State.DEFERRED, reason="unsure", delay_s=60)
    host.rounds(3, every_s=61)
    assert host.broker.ids() == [line.id]


def test_a_replayed_line_is_delivered_again_as_unsure_and_without_deaths(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    host.receipt(line, State.DEAD, deaths=3)
    host.rounds()
    host.broker.take()
    assert host.dispatcher.status().dead == 1
    operator = open_journal(host.fs, host.clock)
    operator.append_receipts([receipt_of(line, State.REPLAYED)])
    host.rounds()
    (item,) = host.broker.items()
    assert (item["unsure"], item["deaths"]) == (True, 0)
    assert host.dispatcher.status().dead == 0


# Starting over


def test_at_start_a_line_that_was_sent_is_published_as_unsure_and_apart_from_sure_ones(host: Host) -> None:
    sent = host.capture(3)
    host.rounds()
    host.broker.take()
    host.dispatcher.close()
    unsent = host.capture(2, start=10)
    host.restart()
    host.rounds()
    by_chunk = [[item["unsure"] for item in publication.kwargs["batch"]] for publication in host.broker.published]
    assert sorted(by_chunk) == [[False, False], [True, True, True]]
    assert sorted(host.broker.ids()) == sorted(line.id for line in [*sent, *unsent])


def test_at_start_receipts_are_read_before_anything_is_published(host: Host) -> None:
    captured = host.capture(5)
    host.rounds()
    host.broker.take()
    for line in captured[:4]:
        host.receipt(line)
    host.restart()
    host.rounds()
    assert host.broker.ids() == [captured[4].id]


def test_a_dispatcher_killed_between_mark_and_publish_leaves_an_unsure_line(host: Host) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    host.capture()
    host.broker.on_publish = die
    with pytest.raises(Killed):
        host.rounds()
    host.broker.on_publish = lambda: None
    host.restart()
    host.rounds()
    assert [item["unsure"] for item in host.broker.items()] == [True]


def test_at_start_a_deferred_line_waits_for_what_is_left_of_its_delay(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    host.receipt(line, State.DEFERRED, reason="throttled", delay_s=200)
    host.rounds()
    host.broker.take()
    host.clock.advance(50)
    host.restart()
    host.rounds(1)
    host.rounds(1, every_s=140)
    assert host.broker.published == []
    host.rounds(2, every_s=11)
    assert [item["unsure"] for item in host.broker.items()] == [True]


# Published again without a receipt


def test_a_line_is_published_again_when_one_published_much_later_got_its_receipt(host: Host) -> None:
    host.broker.waiting = 10
    (lost,) = host.capture()
    host.rounds()
    (early,) = host.capture(1, start=1)
    host.rounds(1, every_s=299)
    (late,) = host.capture(1, start=2)
    host.rounds(1, every_s=1)
    host.broker.take()
    host.receipt(early)
    host.rounds(3, every_s=100)
    assert host.broker.published == [], "what was published within 300 s of it overtakes nobody"
    host.receipt(late)
    host.rounds(3)
    assert host.broker.ids() == [lost.id]
    assert host.broker.items()[0]["unsure"] is True
    assert host.broker.published[0].queue == message.BACKLOG_QUEUE
    assert host.dispatcher.status().republished == 1


def test_a_line_is_published_again_when_the_queue_is_empty(host: Host) -> None:
    (line,) = host.capture()
    host.rounds()
    host.broker.take()
    host.rounds(29, every_s=10)
    assert host.broker.published == []
    host.rounds(3, every_s=10)
    assert host.broker.ids() == [line.id]


def test_a_line_waits_for_an_hour_while_the_queue_is_long_or_nobody_can_say(host: Host) -> None:
    host.broker.waiting = 1
    (line,) = host.capture()
    host.rounds()
    host.broker.take()
    host.rounds(30, every_s=100)
    host.broker.redis_is_away = True
    host.rounds(5, every_s=100)
    assert host.broker.published == []
    host.rounds(3, every_s=100)
    assert host.broker.ids() == [line.id]


def test_a_backlog_does_not_grow_itself() -> None:
    host = Host()
    host.broker.waiting = 5000
    host.capture(500)
    host.rounds(35, every_s=100)
    assert len(host.broker.items()) == 500
    host.rounds(30, every_s=100)
    assert len(host.broker.items()) == 1000, "once an hour"


def test_the_receipt_of_a_republished_line_overtakes_nobody(host: Host) -> None:
    host.broker.waiting = 1
    (first,) = host.capture()
    host.rounds(30, every_s=100)
    (second,) = host.capture(1, start=1)
    host.rounds(7, every_s=100)
    assert host.broker.ids() == [first.id, second.id, first.id]
    host.receipt(first)  # of its first copy, maybe
    host.rounds(3, every_s=1)
    assert host.broker.ids().count(second.id) == 1


# Trouble


def test_a_broker_that_is_away_costs_one_message_per_attempt_at_growing_intervals(host: Host) -> None:
    host.broker.is_away = True
    host.capture(50)
    host.rounds(1)
    calls, tried_at = host.broker.calls, []
    for _ in range(3000):
        host.rounds(1, every_s=0.1)
        if host.broker.calls > calls:
            calls = host.broker.calls
            tried_at.append(host.clock())
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried_at)]
    assert gaps[0] < 3
    assert max(gaps) <= 31
    assert len(tried_at) < 25
    assert host.kinds().count("sent") < 50 + 15, "an outage fills the disk with marks"
    assert host.dispatcher.status().broker_failures == host.broker.calls


def test_after_an_outage_every_line_is_published_once_and_unsure_only_where_it_was_tried(host: Host) -> None:
    host.broker.is_away = True
    tried = host.capture(5)
    host.rounds(1)
    untried = host.capture(20, start=100)
    host.rounds(5, every_s=5)
    host.broker.is_away = False
    host.rounds(10, every_s=31)
    unsure = {lines.parse(str(item["line"])).id for item in host.broker.items() if item["unsure"]}
    assert sorted(host.broker.ids()) == sorted(line.id for line in [*tried, *untried])
    assert unsure == {line.id for line in tried}


def test_lines_of_a_publish_that_half_arrived_come_again_as_unsure(host: Host) -> None:
    host.broker.takes_half = True
    captured = host.capture(4)
    host.rounds(1)
    host.broker.takes_half = False
    host.rounds(10, every_s=10)
    assert sorted(host.broker.ids()[2:]) == sorted(line.id for line in captured)
    assert all(item["unsure"] for item in host.broker.items()[2:])


def test_receipts_out_of_reach_do_not_stop_publishing_and_are_asked_for_at_growing_intervals(host: Host) -> None:
    host.broker.redis_is_away = True
    (line,) = host.capture()
    host.rounds(300, every_s=0.1)
    assert host.broker.ids() == [line.id]
    assert 3 <= host.dispatcher.status().redis_failures <= 12


def test_a_line_whose_bytes_were_damaged_meanwhile_is_counted_and_blocks_nothing(host: Host) -> None:
    host.broker.is_away = True
    bad, good = host.capture(2)
    host.rounds(1)
    host.broker.is_away = False
    (name,) = host.journal.segment_names()
    host.fs.damage(f"{host.journal.directory}/{name}", lambda data: data.replace(b'"userText":"0', b'"userText":"9'))
    host.rounds(10, every_s=10)
    assert host.broker.ids() == [good.id]
    assert host.dispatcher.status().unreadable == 1
    host.receipt(good)
    host.rounds(3)
    assert host.dispatcher.status().pending == 0
    assert bad.id not in host.broker.ids()


def test_damage_is_quarantined_by_the_drainer_and_everything_else_delivered() -> None:
    host = Host()
    captured = host.capture(5)
    (name,) = host.journal.segment_names()
    host.fs.damage(f"{host.journal.directory}/{name}", lambda data: data.replace(b'"userText":"2', b'"userText":"9'))
    host.rounds()
    assert host.broker.ids() == [line.id for n, line in enumerate(captured) if n != 2]
    assert host.dispatcher.status().damaged == 1
    assert host.journal.status().quarantined_bytes == len(captured[2].text)


def test_a_torn_line_that_is_whole_but_for_its_newline_is_delivered() -> None:
    host = Host()
    captured = host.capture(2)
    (name,) = host.journal.segment_names()
    host.fs.damage(f"{host.journal.directory}/{name}", lambda data: data[:-1])
    host.rounds(3, every_s=6)
    assert host.broker.ids() == [line.id for line in captured]


def test_errors_of_the_disk_in_any_round_lose_nothing(host: Host) -> None:
    captured = host.capture(3)
    for offset in range(60):
        host.fs.fail_at = len(host.fs.operations) + offset
        host.dispatcher._run_guarded()
        host.clock.advance(6)
    host.fs.stop_failing()
    host.rounds(5, every_s=60)
    assert {line.id for line in captured} <= set(host.broker.ids())


# Roles


def test_of_two_dispatchers_one_drains(host: Host) -> None:
    other = host.dispatch(open_journal(host.fs, host.clock))
    host.capture(3)
    for _ in range(5):
        other.run_once()
        host.rounds(1)
    assert len(host.broker.items()) == 3
    assert (host.dispatcher.status().role, other.status().role) == ("drainer", "none")
    host.dispatcher.close()
    host.clock.advance(2)
    other.run_once()
    assert other.status().role == "drainer"
    other.close()
    host.dispatcher = host.dispatch()


def test_a_silent_drainer_is_stood_in_for_by_a_deputy_that_publishes_and_never_compacts(host: Host) -> None:
    other = host.dispatch(open_journal(host.fs, host.clock))
    (line,) = host.capture()
    for _ in range(62):
        host.clock.advance(1)
        other.run_once()
    assert other.status().role == "deputy"
    assert host.broker.ids() == [line.id]
    host.receipt(line)
    for _ in range(50):
        host.clock.advance(120)
        other.run_once()
    assert other.status().receipts == {"stored": 1}
    assert texts(host.journal) == [line.text], "a deputy compacted"
    host.rounds(2)
    host.clock.advance(2)
    other.run_once()
    assert other.status().role == "none"
    other.close()


def test_a_drainer_that_beats_is_not_stood_in_for(host: Host) -> None:
    other = host.dispatch(open_journal(host.fs, host.clock))
    for _ in range(200):
        host.rounds(1, every_s=1)
        other.run_once()
        assert other.status().role == "none"
    other.close()


# The thread


@pytest.fixture
def threaded() -> Iterator[Host]:
    made = Host()
    made.dispatcher = Dispatcher(made.journal, made.broker, made.broker, key=KEY, poll_interval_s=0.02)
    yield made
    made.dispatcher.close()
    made.journal.close()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("did not happen in time")


def answer_everything(host: Host) -> None:
    """A worker: receipts for whatever is published."""

    def answer() -> None:
        for located in host.journal.scan():
            if located.line.kind == "event":
                host.receipt(located.line)

    host.broker.on_publish = answer


def test_flush_waits_until_everything_captured_so_far_has_its_receipt(threaded: Host) -> None:
    threaded.capture(20)
    assert not threaded.dispatcher.flush(0.3)
    answer_everything(threaded)
    threaded.capture(1, start=100)
    assert threaded.dispatcher.flush(10)
    assert threaded.dispatcher.status().pending == 0


def test_flush_of_an_empty_journal_is_done_at_once(threaded: Host) -> None:
    assert threaded.dispatcher.flush(10)


def test_flush_in_a_process_that_does_not_drain_waits_for_the_one_that_does(threaded: Host) -> None:
    threaded.dispatcher.start()
    assert threaded.dispatcher.flush(10)
    journal = open_journal(threaded.fs, threaded.clock)
    other = Dispatcher(journal, Broker(), Broker(), key=KEY, poll_interval_s=0.02)
    journal.append_event(event(1))
    assert not other.flush(0.2)
    answer_everything(threaded)
    journal.append_event(event(2))
    assert other.flush(10)
    assert other.close()
    journal.close()


def test_an_append_of_this_process_wakes_the_thread_at_once() -> None:
    host = Host()
    host.dispatcher = Dispatcher(host.journal, host.broker, host.broker, key=KEY, poll_interval_s=60)
    host.dispatcher.start()
    published = threading.Event()
    host.broker.on_publish = published.set
    assert host.dispatcher.flush(10)
    host.capture()
    assert published.wait(10)
    assert host.dispatcher.close()


def test_close_is_bounded_and_closes_publisher_and_source(threaded: Host) -> None:
    released = threading.Event()
    threaded.broker.on_publish = lambda: released.wait(30) and None
    threaded.capture()
    threaded.dispatcher.start()
    assert not threaded.dispatcher.flush(0.2)
    assert not threaded.dispatcher.close(0.1)
    released.set()
    assert threaded.dispatcher.close(10)
    assert threaded.broker.closed == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "memory-dispatcher"]


def test_a_line_that_brings_out_a_bug_holds_up_nobody(host: Host) -> None:
    host.broker.is_away = True
    captured = host.capture(5)
    host.rounds(3, every_s=10)
    host.broker.is_away = False
    publish = host.broker.publish

    def allergic(publications: Sequence[Publication]) -> None:
        if any(captured[2].id in str(publication.kwargs) for publication in publications):
            raise ZeroDivisionError
        publish(publications)

    host.broker.publish = allergic  # type: ignore[method-assign]
    host.rounds(10, every_s=31)
    assert set(host.broker.ids()) == {line.id for n, line in enumerate(captured) if n != 2}
    assert host.dispatcher.status().failed_rounds > 1
    assert host.dispatcher.status().pending == 5


def test_after_a_round_that_failed_the_journal_is_read_again_and_nothing_is_missed(host: Host) -> None:
    captured = host.capture(3)
    note, calls = host.dispatcher._pending.appeared, []

    def fail_once(*arguments: object, **options: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        note(*arguments, **options)  # type: ignore[arg-type]

    host.dispatcher._pending.appeared = fail_once  # type: ignore[method-assign, assignment]
    for _ in range(5):
        host.dispatcher._run_guarded()
    assert {line.id for line in captured} == set(host.broker.ids())


def test_a_bug_in_a_round_is_counted_and_the_thread_lives_on(threaded: Host) -> None:
    def fail_once() -> None:
        threaded.broker.on_publish = lambda: None
        answer_everything(threaded)
        raise ZeroDivisionError

    threaded.broker.on_publish = fail_once
    threaded.capture()
    threaded.dispatcher.start()
    threaded.dispatcher.flush(0.2)
    threaded.capture(1, start=1)
    wait_until(lambda: len(threaded.broker.items()) == 1)
    assert threaded.dispatcher.status().failed_rounds == 1
