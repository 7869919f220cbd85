"""What happens to a dispatcher when receipts, clocks, drainers and directories are not as they should be."""

from __future__ import annotations

import errno
import itertools
import random
import threading
from collections.abc import Iterable, Sequence

import pytest

from producer import dispatcher, message, receipt
from producer.dispatcher import Dispatcher, Publication
from producer.drainer import DrainerLock
from producer.journal import line as lines
from producer.journal import segments
from producer.journal.directory import ID_FILE
from producer.receipt import Receipt, State
from tests.unit.journal.crashing_filesystem import CrashingFileSystem
from tests.unit.journal.support import Clock, compact, event, open_journal, receipt_of, seal_all, texts
from tests.unit.test_dispatcher import KEY, Broker, Host

# Deaf drainers


def beside(host: Host, broker: Broker) -> Dispatcher:
    """Another process on the same directory, with a broker of its own."""
    journal = open_journal(host.fs, host.clock)
    return Dispatcher(journal, broker, broker, key=KEY, monotonic=host.clock, rng=random.Random(2))


@pytest.mark.parametrize("deaf_to", ["is_away", "redis_is_away"])
def test_a_drainer_that_long_reaches_no_broker_or_no_redis_makes_way_for_one_that_does(deaf_to: str) -> None:
    host, good = Host(), Broker()
    host.rounds(1)
    setattr(host.broker, deaf_to, True)
    other = beside(host, good)
    captured = host.capture(3)
    waited = 0
    while not good.published:
        assert waited < 120, "the deaf one keeps the directory"
        host.rounds(1, every_s=1)
        other.run_once()
        waited += 1
    assert waited > 60, "it gave up at the first trouble"
    for line in captured:
        good.receipts.append(receipt.encode(receipt_of(line), journal_id=host.journal.journal_id, key=KEY))
    for _ in range(100):
        host.rounds(1, every_s=1)
        other.run_once()
    assert (host.dispatcher.status().role, other.status().role) == ("none", "drainer")
    assert other.status().receipts == {"stored": 3}
    assert set(good.ids()) == {line.id for line in captured}
    other.close()


def test_a_deaf_drainer_that_is_alone_goes_on_and_delivers_when_the_broker_is_back() -> None:
    host = Host()
    host.rounds(1)
    host.broker.is_away = True
    (line,) = host.capture()
    roles = []
    for _ in range(1000):
        host.rounds(1, every_s=1)
        roles.append(host.dispatcher.status().role)
    aside = [number for number, pair in enumerate(itertools.pairwise(roles)) if pair == ("drainer", "none")]
    assert len(aside) == 4, f"after 60, 120, 240 and 480 s each: {aside}"
    assert roles.count("none") < 4 * 5
    host.broker.is_away = False
    host.rounds(40, every_s=1)
    assert host.broker.ids() == [line.id]


def test_what_a_deaf_drainer_has_in_flight_is_not_published_again_because_it_stood_aside() -> None:
    host = Host()
    host.restart(republish_after_s=100_000)
    host.rounds(1)
    host.capture(5)
    host.rounds(1)
    host.broker.redis_is_away = True
    roles = set()
    for _ in range(1000):
        host.rounds(1, every_s=1)
        roles.add(host.dispatcher.status().role)
    assert roles == {"drainer", "none"}
    assert len(host.broker.items()) == 5


# Receipts


def test_a_line_that_was_moved_while_in_flight_is_published_from_its_new_place_and_gets_its_receipt() -> None:
    host = Host()
    host.rounds(1)
    captured = host.capture(10)
    host.rounds()
    for line in captured[1:]:
        host.receipt(line)
    host.rounds()
    seal_all(host.journal)
    assert compact(host.journal, host.clock).segments_written == 1
    host.broker.take()
    host.rounds(1, every_s=301)
    assert host.broker.ids() == [captured[0].id], "not from its new place"
    host.receipt(captured[0])
    host.rounds()
    assert host.dispatcher.status().pending == 0
    assert host.dispatcher.status().unreadable == 0


def test_receipts_of_lines_that_left_the_journal_are_counted_and_change_nothing() -> None:
    host = Host()
    captured = host.capture(3)
    host.rounds()
    for line in captured:
        host.receipt(line)
    host.rounds()
    seal_all(host.journal)
    compact(host.journal, host.clock)
    host.rounds()
    assert texts(host.journal) == []
    for line in captured:
        host.receipt(line, State.DEFERRED, reason="unsure", delay_s=1)
    host.rounds(5, every_s=10)
    status = host.dispatcher.status()
    assert (status.receipts_unknown, status.pending, status.published) == (3, 0, 3)
    assert host.kinds() == []


def test_at_start_all_waiting_receipts_come_first_however_many_there_are() -> None:
    host = Host(max_bytes=1 << 22)
    host.rounds(1)
    captured = host.capture(600)
    host.rounds(20)
    for line in captured[:-1]:
        host.receipt(line, State.DEFERRED, reason="held", delay_s=3600)
        host.receipt(line)
    host.restart()
    host.broker.take()
    host.rounds(5)
    assert host.broker.ids() == [captured[-1].id]
    host.dispatcher.close()


class Endless(Broker):
    """A list that never gets shorter, whoever pops."""

    def __init__(self, entries: Iterable[str]) -> None:
        super().__init__()
        self._entries = [entry.encode() for entry in entries]
        self.popped = 0

    def pop(self, journal_id: str, max_entries: int) -> list[bytes]:
        self.popped += max_entries
        return (self._entries * max_entries)[:max_entries]


@pytest.mark.parametrize("flood", ["wrong signature", "not a receipt", "of no line here"])
def test_a_flood_of_receipts_keeps_no_line_from_being_published(flood: str) -> None:
    """Also at the start, where receipts come first: as many as a list may hold."""
    host = Host()
    unknown = Receipt(line_hash="a" * 64, id="b" * 64, state=State.STORED)
    stranger = message.Key(id=KEY.id, secret=b"x" * 32)
    host.broker = Endless(
        {
            "wrong signature": [receipt.encode(unknown, journal_id=host.journal.journal_id, key=stranger)],
            "not a receipt": ["{}"],
            "of no line here": [receipt.encode(unknown, journal_id=host.journal.journal_id, key=KEY)],
        }[flood]
    )
    host.restart()
    (found,) = host.capture(1)
    host.rounds(receipt.MAX_LISTED // 1000)
    assert host.broker.ids() == [found.id]
    (fresh,) = host.capture(1, start=1)
    host.rounds(1)
    assert host.broker.ids() == [found.id, fresh.id]
    status = host.dispatcher.status()
    assert status.receipts_refused + status.receipts_unknown == host.broker.popped
    assert host.kinds().count("receipt") == 0
    host.dispatcher.close()


def test_when_receipts_fell_off_the_list_their_lines_are_published_again_and_no_others() -> None:
    host = Host()
    captured = host.capture(20)
    host.rounds()
    for line in captured[:12]:
        host.receipt(line)
    del host.broker.receipts[:5]  # trimmed
    host.rounds()
    assert host.dispatcher.status().in_flight == 13
    host.broker.take()
    host.rounds(2, every_s=301)
    assert set(host.broker.ids()) == {line.id for line in (*captured[:5], *captured[12:])}
    assert all(item["unsure"] for item in host.broker.items())


# Lines in flight that cannot be published again


def test_a_line_in_flight_that_the_disk_does_not_give_keeps_no_round_busy_and_comes_again_when_it_does() -> None:
    host = Host()
    host.rounds(1)
    (line,) = host.capture(1)
    host.rounds()
    host.broker.take()
    read = host.fs.open_to_read

    def refuse(path: str) -> int:
        raise OSError(errno.EIO, "read")

    host.fs.open_to_read = refuse  # type: ignore[method-assign]
    host.clock.advance(301)
    assert [host.dispatcher.run_once() for _ in range(5)][1:] == [False] * 4
    host.fs.open_to_read = read  # type: ignore[method-assign]
    host.rounds(2, every_s=10)
    assert host.broker.ids() == [line.id]
    assert host.broker.items()[0]["unsure"]
    host.receipt(line)
    host.rounds()
    assert host.dispatcher.status().pending == 0
    host.dispatcher.close()


def test_a_line_in_flight_that_brings_out_a_bug_is_tried_now_and_then_and_not_on_and_on() -> None:
    host = Host()
    host.rounds(1)
    (line,) = host.capture(1)
    host.rounds()
    publish = host.broker.publish

    def allergic(publications: Sequence[Publication]) -> None:
        raise ZeroDivisionError

    host.broker.publish = allergic  # type: ignore[method-assign]
    host.clock.advance(301)
    host.rounds(20)
    assert host.dispatcher.status().failed_rounds == 1
    host.broker.publish = publish  # type: ignore[method-assign]
    host.broker.take()
    host.rounds(2, every_s=31)
    assert host.broker.ids() == [line.id]
    host.dispatcher.close()


# Rounds that fail again and again


def test_rounds_that_fail_after_publishing_do_not_publish_what_is_in_flight_again_and_again() -> None:
    host = Host()
    host.broker.waiting = 5000  # no worker runs
    captured = host.capture(50)
    (deferred,) = host.capture(1, start=50)
    host.rounds()
    host.receipt(deferred, State.DEFERRED, reason="held", delay_s=1)
    host.rounds(3, every_s=10)
    published = len(host.broker.items())
    assert published == 52

    def fail(now_s: float) -> None:
        raise ZeroDivisionError

    maintain = host.dispatcher._maintain
    host.dispatcher._maintain = fail  # type: ignore[method-assign]
    for _ in range(20):
        host.clock.advance(30)
        assert not host.dispatcher._run_guarded()
    assert host.dispatcher.status().failed_rounds == 20
    assert len(host.broker.items()) == published
    assert host.dispatcher.status().pending == 51
    host.dispatcher._maintain = maintain  # type: ignore[method-assign]
    for line in (*captured, deferred):
        host.receipt(line)
    host.rounds(2)
    assert host.dispatcher.status().pending == 0
    host.dispatcher.close()


def test_after_a_round_that_failed_what_is_in_flight_comes_again_by_the_rules_and_as_unsure() -> None:
    host = Host()
    (line,) = host.capture(1)
    host.rounds()
    host.broker.take()
    maintain, calls = host.dispatcher._maintain, []

    def fail_once(now_s: float) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        maintain(now_s)

    host.dispatcher._maintain = fail_once  # type: ignore[method-assign]
    for _ in range(29):
        host.clock.advance(10)
        host.dispatcher._run_guarded()
    assert host.broker.published == []
    for _ in range(3):
        host.clock.advance(10)
        host.dispatcher._run_guarded()
    assert host.broker.ids() == [line.id]
    assert host.broker.items()[0]["unsure"]
    host.dispatcher.close()


# Flush


def asked_to_flush(host: Host) -> threading.Event:
    """As `flush` asks, without its thread."""
    flush = dispatcher._Flush()
    host.dispatcher._flushes.append(flush)
    return flush.done


def test_a_flush_waits_for_its_lines_also_when_the_journal_is_read_anew_meanwhile_in_another_order() -> None:
    host = Host()
    drainer = DrainerLock(host.fs, host.journal.directory)
    drainer.role(host.clock())
    others = open_journal(host.fs, host.clock)
    others.append_receipts([receipt_of(others.append_event(event(1)))])
    (older,) = others.segment_names()
    held = segments.Segment.open(host.fs, others.directory, older, journal_id=others.journal_id)
    assert held.hold()
    host.clock.advance(1)
    (awaited,) = host.capture(start=2)
    held.close()
    done = asked_to_flush(host)
    host.rounds(1)
    later = [others.append_event(event(number)) for number in (3, 4)]
    assert list(others.segment_names()) == sorted(others.segment_names()) and len(others.segment_names()) == 2
    drainer.drop()
    host.rounds(2, every_s=2)
    assert set(host.broker.ids()) == {line.id for line in (awaited, *later)}
    for line in later:
        host.receipt(line)
    host.rounds()
    assert not done.is_set(), "the line that was captured before is pending"
    host.receipt(awaited)
    host.rounds()
    assert done.is_set()
    others.close()
    host.dispatcher.close()


def test_a_flush_is_not_done_while_the_disk_does_not_give_what_it_may_wait_for() -> None:
    host = Host()
    (line,) = host.capture()
    read = host.fs.open_to_read

    def refuse(path: str) -> int:
        raise OSError(errno.EIO, "read")

    host.fs.open_to_read = refuse  # type: ignore[method-assign]
    done = asked_to_flush(host)
    host.rounds()
    assert not done.is_set()
    host.fs.open_to_read = read  # type: ignore[method-assign]
    host.rounds()
    assert not done.is_set()
    host.receipt(line)
    host.rounds()
    assert done.is_set()
    host.dispatcher.close()


# Clocks


class TwoClocks(Host):
    """Wall time apart from monotonic time, which stands while the machine sleeps."""

    def __init__(self) -> None:
        self.awake = Clock()
        super().__init__()

    def dispatch(self, *arguments: object, **options: object) -> Dispatcher:
        return super().dispatch(*arguments, monotonic=self.awake, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("jump_s", [8 * 3600.0, -8 * 3600.0])
def test_neither_sleep_nor_a_wrong_clock_ends_a_wait_early_or_holds_anything_up(jump_s: float) -> None:
    host = TwoClocks()
    host.rounds(1)
    in_flight, deferred = host.capture(2)
    host.rounds()
    host.receipt(deferred, State.DEFERRED, reason="store_throttled:429", delay_s=60)
    host.rounds()
    host.broker.take()
    host.clock.advance(jump_s)
    host.rounds(3)
    assert host.broker.published == []
    (fresh,) = host.capture(1, start=2)
    host.rounds()
    assert host.broker.ids() == [fresh.id]
    assert host.broker.take()[0].queue == message.QUEUE
    host.awake.advance(61)
    host.rounds()
    assert host.broker.ids() == [deferred.id]
    host.broker.take()
    host.awake.advance(240)
    host.rounds()
    assert in_flight.id in host.broker.ids()


# Drainers


def test_a_drainer_that_was_frozen_and_its_deputy_deliver_everything_between_them_and_the_deputy_hands_back() -> None:
    host = Host()
    host.rounds(1)
    deputy = host.dispatch(open_journal(host.fs, host.clock))
    deputy.run_once()
    captured = host.capture(40)
    host.rounds(1)  # all of them are in flight; now the drainer is frozen
    captured += host.capture(40, start=40)
    for _ in range(120):
        host.clock.advance(1)
        deputy.run_once()
    assert deputy.status().role == "deputy"
    assert set(host.broker.ids()) == {line.id for line in captured}, "the deputy knows what the drainer had published"
    for line in captured[:60]:
        host.receipt(line)
    deputy.run_once()
    for line in captured[60:]:
        host.receipt(line)
    for _ in range(10):  # thawed: both, until the deputy sees the heartbeat
        host.rounds(1, every_s=1)
        deputy.run_once()
    assert (host.dispatcher.status().role, deputy.status().role) == ("drainer", "none")
    assert host.dispatcher.status().pending == 0
    assert deputy.status().pending == 0
    assert host.kinds().count("receipt") == 80, "each is journaled once, by whoever popped it"
    seal_all(host.journal)
    host.rounds(10, every_s=120)
    assert texts(host.journal) == []
    deputy.close()
    host.dispatcher.close()


# Two directories with one id


class Clones:
    """A journal, and its clone on another machine, over one broker and one list of receipts."""

    def __init__(self, captured_before: int) -> None:
        self.first = Host()
        self.before = self.first.capture(captured_before)
        self.second = Host()
        path = f"{self.second.journal.directory}/{ID_FILE}"
        self.second.fs = CrashingFileSystem()
        self.second.fs.now_ns = self.first.fs.now_ns
        for name, _ in self.first.fs.listing(self.first.journal.directory):
            self._copy(name)
        assert self.first.fs.contents(path) == self.second.fs.contents(path)
        self.second.clock = self.first.clock
        self.second.broker = self.first.broker
        self.second.journal = open_journal(self.second.fs, self.first.clock)
        self.second.dispatcher = self.second.dispatch()
        self.hosts = (self.first, self.second)

    def _copy(self, name: str) -> None:
        source = f"{self.first.journal.directory}/{name}"
        target_directory = self.first.journal.directory
        for path in ("/state", target_directory):
            if not self.second.fs.is_directory(path):
                self.second.fs.make_directory(path)
        descriptor = self.second.fs.create(f"{target_directory}/{name}")
        self.second.fs.write(descriptor, self.first.fs.contents(source))
        self.second.fs.close(descriptor)

    def work(self, published: set[str]) -> None:
        """Store what was published; both get at the receipts in any order."""
        for publication in self.first.broker.take():
            for item in publication.kwargs["batch"]:
                line = lines.parse(str(item["line"]))
                published.add(line.id)
                self.first.receipt(line)


@pytest.mark.parametrize("seed", range(3))
def test_two_directories_with_one_id_take_each_others_receipts_and_both_are_delivered_all_the_same(seed: int) -> None:
    """A cloned machine, or a backup restored beside its original."""
    rng = random.Random(seed)
    clones = Clones(captured_before=30)
    assert clones.first.journal.journal_id == clones.second.journal.journal_id
    own = [host.capture(50, start=1000 * number) for number, host in enumerate(clones.hosts, 1)]
    published: set[str] = set()
    for _round in range(400):
        clones.first.clock.advance(30)
        for host in rng.sample(clones.hosts, 2):
            host.dispatcher.run_once()
        clones.work(published)
        if not any(host.journal.status().pending for host in clones.hosts):
            break
    assert [host.journal.status().pending for host in clones.hosts] == [0, 0]
    assert published == {line.id for lines_ in (clones.before, *own) for line in lines_}
    assert sum(host.dispatcher.status().receipts_unknown for host in clones.hosts) > 0, "status shows that it is so"
    for host in clones.hosts:
        host.dispatcher.close()
