"""The index: what became of every line, whatever order its bytes are read in."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer import errors, message
from producer import receipt as receipts
from producer.dispatcher import Dispatcher
from producer.journal import Journal
from producer.journal.filesystem import REAL
from producer.journal.index import Entry, Index
from producer.receipt import Receipt, State
from tests.unit.journal.crashing_filesystem import CrashingFileSystem
from tests.unit.journal.support import Clock, compact, event, open_journal, receipt_of, seal_all
from tests.unit.test_dispatcher import Broker

KEY = message.Key(id="host", secret=b"k" * 32)


def folded(history: list[Receipt]) -> tuple[State | None, int]:
    """What `producer.receipt` says of these, in their order."""
    held: Receipt | None = None
    deaths = 0
    for one in history:
        if receipts.outranks(one, held):
            held = one
        deaths = 0 if one.state is State.REPLAYED else max(deaths, one.deaths)
    return (held.state if held else None), deaths


RECEIPTS = st.builds(
    lambda state, unsure, deaths: Receipt(
        line_hash="", id="", state=state, reason="unsure" if unsure and state is State.DEFERRED else "", deaths=deaths
    ),
    st.sampled_from(list(State)),
    st.booleans(),
    st.integers(0, 3),
)


@settings(max_examples=300, deadline=None)
@given(history=st.lists(RECEIPTS, max_size=7), order=st.randoms(use_true_random=False), copies=st.booleans())
def test_the_state_of_a_line_follows_from_the_stamps_of_its_receipts_whatever_order_they_are_read_in(
    history: list[Receipt], order: random.Random, copies: bool
) -> None:
    stamped = list(enumerate(history)) * (2 if copies else 1)
    order.shuffle(stamped)
    entry = Entry(b"x" * 32, 1)
    for at_ms, receipt in stamped:
        entry._add(at_ms, receipt)
    assert (entry.state, entry.deaths) == folded(history)


@settings(max_examples=300, deadline=None)
@given(history=st.lists(RECEIPTS, max_size=7), data=st.data())
def test_what_compaction_may_drop_of_the_receipts_changes_nothing_now_or_later(
    history: list[Receipt], data: st.DataObject
) -> None:
    entry = Entry(b"x" * 32, 1)
    for at_ms, receipt in enumerate(history):
        entry._add(at_ms, receipt)
    kept = [r for at_ms, r in enumerate(history) if entry.needs(at_ms, r) or data.draw(st.booleans())]
    later = data.draw(st.lists(RECEIPTS, max_size=3))
    assert folded([*kept, *later]) == folded([*history, *later])


def test_receipts_and_sent_may_be_read_before_the_line_they_name() -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as early, open_journal(fs, clock) as late:
        early.append_event(event(0))
        (held,) = early.segment_names()
        holder = fs.open(f"{early.directory}/{held}")
        assert fs.try_lock(holder)
        clock.advance(1)
        line = late.append_event(event(1))  # in a segment that sorts after the one its receipt goes to
        fs.unlock(holder)
        early.append_sent([line])
        early.append_receipts([receipt_of(line)])
        index = Index(early, monotonic=clock)
        index.poll()
        entry = index.entries[bytes.fromhex(line.hash)]
        assert (entry.state, bool(entry.sent_ms), entry.copies) == (State.STORED, True, 1)


def test_polls_report_what_appeared_what_got_receipts_and_what_vanished() -> None:
    clock = Clock()
    with open_journal(CrashingFileSystem(), clock) as journal:
        index = Index(journal, monotonic=clock)
        line = journal.append_event(event(1))
        index.poll()
        changes = index.take_changes()
        (entry,) = changes.appeared
        assert (changes.receipted, changes.vanished) == ([], [])
        index.poll()
        assert not any(index.take_changes())
        journal.append_receipts([receipt_of(line)])
        index.poll()
        assert index.take_changes() == ([], [entry], [])
        seal_all(journal)
        compact(journal, clock)
        index.poll()
        assert index.take_changes() == ([], [], [entry])
        assert index.entries == {}


def test_a_line_that_compaction_copied_neither_appears_again_nor_vanishes() -> None:
    clock = Clock()
    with open_journal(CrashingFileSystem(), clock) as journal:
        index = Index(journal, monotonic=clock)
        lines = [journal.append_event(event(number)) for number in range(4)]
        journal.append_receipts([receipt_of(line) for line in lines[:3]])
        seal_all(journal)
        index.poll()
        index.take_changes()
        compact(journal, clock)
        index.poll()
        changes = index.take_changes()
        assert changes.appeared == []
        assert len(changes.vanished) == 3
        (left,) = index.entries.values()
        assert index.read_line(left).text == lines[3].text


def test_a_listing_that_misses_what_compaction_just_made_costs_no_line() -> None:
    class Racing(CrashingFileSystem):
        hidden = ""

        def listing(self, path: str) -> list[tuple[str, int]]:
            hidden, self.hidden = self.hidden, ""
            return [(name, size) for name, size in super().listing(path) if name != hidden]

    fs, clock = Racing(), Clock()
    with open_journal(fs, clock) as journal:
        lines = [journal.append_event(event(number)) for number in range(4)]
        journal.append_receipts([receipt_of(line) for line in lines[:3]])
        seal_all(journal)
        index = Index(journal, monotonic=clock)
        index.poll()
        index.take_changes()
        compact(journal, clock)
        (fs.hidden,) = journal.segment_names()
        index.poll()
        (left,) = index.entries.values()
        assert index.read_line(left).text == lines[3].text
        assert left not in index.take_changes().vanished


def test_what_is_said_of_lines_that_are_nowhere_is_forgotten() -> None:
    with open_journal(CrashingFileSystem()) as journal:
        index = Index(journal)
        for number in range(100):
            line = open_journal(CrashingFileSystem()).append_event(event(number))
            journal.append_receipts([receipt_of(line)])
        for _ in range(3):
            index.poll()
        assert index.entries == {}


def test_a_line_that_stands_twice_is_one_line_and_survives_the_loss_of_either_copy() -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as journal:
        line = journal.append_event(event(1))
        (first,) = journal.segment_names()
        fs.damage(f"{journal.directory}/{first}", lambda data: data + data.splitlines(keepends=True)[1])
        copy = f"{journal.directory}/{first[:-14]}00000000.jsonl"
        fs.close(fs.create(copy))
        fs.damage(copy, lambda _: fs.contents(f"{journal.directory}/{first}"))
        for gone in (first, copy.rpartition("/")[2]):
            index = Index(journal, monotonic=clock)
            index.poll()
            (entry,) = index.entries.values()
            assert entry.copies == 4
            kept = fs.contents(f"{journal.directory}/{gone}")
            fs.unlink(f"{journal.directory}/{gone}")
            index.poll()
            assert entry.copies == 2
            assert index.read_line(entry).text == line.text
            fs.close(fs.create(f"{journal.directory}/{gone}"))
            fs.damage(f"{journal.directory}/{gone}", lambda _, kept=kept: kept)


@pytest.mark.parametrize("where", ["in one segment", "in two"])
@pytest.mark.parametrize("damaged", [0, 1])
def test_a_line_that_stands_twice_is_read_from_the_copy_that_is_whole(where: str, damaged: int) -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as journal:
        line = journal.append_event(event(1))
        journal.append_receipts([receipt_of(line, State.DEFERRED, reason="unsure", deaths=2)])
        seal_all(journal)
        (first,) = journal.segment_names()
        second = twice(fs, journal, first) if where == "in two" else first
        if second == first:
            fs.damage(f"{journal.directory}/{first}", lambda data: data + data.splitlines(keepends=True)[1])
        index = Index(journal, monotonic=clock).read_all()
        (entry,) = index.entries.values()
        assert entry.copies == 2
        flip(fs, journal, (first, second)[damaged], number=damaged if second == first else 0)
        assert index.read_line(entry).text == line.text
        assert index.read_line(entry).text == line.text, "the second time"
        assert (entry.deaths, entry.is_open) == (2, True)
        if second != first:
            fs.unlink(f"{journal.directory}/{(first, second)[damaged]}")
            index.poll()
            index.poll()
            assert (entry.copies, entry.is_open) == (1, True), "it went with its damaged copy"
            assert index.read_line(entry).text == line.text


def test_a_line_whose_whole_copy_is_removed_is_lost_with_the_damaged_one() -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as journal:
        journal.append_event(event(1))
        seal_all(journal)
        (first,) = journal.segment_names()
        second = twice(fs, journal, first)
        index = Index(journal, monotonic=clock).read_all()
        (entry,) = index.entries.values()
        whole = entry.segment
        flip(fs, journal, first if whole == second else second)
        fs.unlink(f"{journal.directory}/{whole}")
        index.poll()
        with pytest.raises(errors.DamagedLine):
            index.read_line(entry)
        index.lose(entry)
        assert not index.entries


def test_a_disk_that_does_not_give_the_other_copy_now_neither_breaks_a_poll_nor_costs_the_line() -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as journal:
        line = journal.append_event(event(1))
        seal_all(journal)
        (first,) = journal.segment_names()
        twice(fs, journal, first)
        index = Index(journal, monotonic=clock).read_all()
        (entry,) = index.entries.values()
        fs.unlink(f"{journal.directory}/{entry.segment}")
        index.poll()
        fs.fail_at, fs.fail_for = len(fs.operations), 100
        with pytest.raises(OSError, match="open"):
            index.read_line(entry)
        index.poll()
        fs.stop_failing()
        assert index.read_line(entry).text == line.text


def twice(fs: CrashingFileSystem, journal: Journal, name: str) -> str:
    """The name of a second segment with the same bytes, as a crash in compaction leaves it."""
    copy = f"{name[:-14]}ffffffff.jsonl"
    fs.close(fs.create(f"{journal.directory}/{copy}"))
    fs.damage(f"{journal.directory}/{copy}", lambda _: fs.contents(f"{journal.directory}/{name}"))
    return copy


def flip(fs: CrashingFileSystem, journal: Journal, name: str, *, number: int = 0) -> None:
    """Damage the first or second copy of the line in this segment."""
    parts = fs.contents(f"{journal.directory}/{name}").split(b'"userText"')
    parts[number] += b'"userTexT"' + parts.pop(number + 1)
    fs.damage(f"{journal.directory}/{name}", lambda _: b'"userText"'.join(parts))


def test_a_segment_that_cannot_be_read_now_is_read_later() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs) as journal:
        journal.append_event(event(1))
        failures = 0
        for offset in range(20):
            index = Index(journal)
            fs.fail_at = len(fs.operations) + offset
            index.poll()
            failures += index.failed_reads
            assert index.complete is not bool(index.failed_reads)
        assert failures > 2
        fs.stop_failing()
        index.poll()
        assert index.complete
        assert len(index.entries) == 1


def test_what_is_said_of_a_line_is_kept_while_the_segment_of_the_line_cannot_be_read() -> None:
    """Else a dead line would come back as a fresh one, sure and without its deaths, when the disk gives it again."""
    fs = CrashingFileSystem()
    with open_journal(fs) as journal:
        line = journal.append_event(event(1))
        seal_all(journal)
        (first,) = journal.segment_names()
        journal.append_sent([line])
        journal.append_receipts([receipt_of(line, State.DEAD, deaths=3)])
        read = fs.open_to_read

        def refuse_first(path: str) -> int:
            if path.endswith(first):
                raise OSError(errno.EIO, "read")
            return read(path)

        index = Index(journal)
        fs.open_to_read = refuse_first  # type: ignore[method-assign]
        for _ in range(4):
            index.poll()
        fs.open_to_read = read  # type: ignore[method-assign]
        index.poll()
        (entry,) = index.entries.values()
        assert (entry.state, entry.deaths, entry.copies) == (State.DEAD, 3, 1)
        assert entry.sent_ms


def test_a_file_that_got_shorter_makes_the_index_start_over() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs) as journal:
        lines = [journal.append_event(event(number)) for number in range(3)]
        index = Index(journal)
        index.poll()
        before = index.take_changes().appeared
        (name,) = journal.segment_names()
        fs.damage(f"{journal.directory}/{name}", lambda data: data[: -len(lines[2].text) - 1])
        index.poll()
        changes = index.take_changes()
        assert changes.vanished == before
        assert [index.read_line(entry).text for entry in changes.appeared] == [line.text for line in lines[:2]]


def test_a_line_damaged_after_it_was_read_is_lost_and_counted() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs) as journal:
        journal.append_event(event(1))
        index = Index(journal)
        index.poll()
        (entry,) = index.entries.values()
        (name,) = journal.segment_names()
        fs.damage(f"{journal.directory}/{name}", lambda data: data.replace(b"userText", b"userTexT"))
        with pytest.raises(errors.DamagedLine):
            index.read_line(entry)
        index.lose(entry)
        assert index.damaged == 1
        assert not entry.is_open


@pytest.mark.slow
def test_a_hundred_thousand_pending_lines_take_less_than_a_hundred_megabytes(tmp_path: Path) -> None:
    clock = Clock()
    with open_journal(REAL, clock, directory=str(tmp_path / "journal"), max_bytes=1 << 30) as journal:
        name = journal.append_event(event(0)) and next(iter(journal.segment_names()))
        with (tmp_path / "journal" / name).open("ab") as segment:
            for number in range(1, 100_000):
                line = journal._line("event", event(number)["eventId"], {"event": event(number)})
                segment.write(line.text.encode() + b"\n")
                if number in (500, 600, 700):
                    segment.write(b"not a line %d\n" % number)
        broker = Broker()
        dispatcher = Dispatcher(journal, broker, broker, key=KEY, monotonic=clock)
        before = psutil.Process().memory_info().rss
        dispatcher.run_once()
        used = psutil.Process().memory_info().rss - before
        status = dispatcher.status()
        assert (status.pending, status.damaged) == (100_000, 3)
        assert used < 100 << 20
        started = time.monotonic()
        journal.append_event(event(200_000))
        assert time.monotonic() - started < 1.0, "ten times the 100 ms of the benchmark"
        dispatcher.close()


@pytest.mark.parametrize("how", ["vanished", "replaced"])
def test_a_segment_that_vanishes_or_is_replaced_between_listing_and_opening_costs_no_line(how: str) -> None:
    class Racing(CrashingFileSystem):
        act: Callable[[], object] | None = None

        def open_to_read(self, path: str) -> int:
            act, self.act = self.act, None
            if act is not None and "segment-" in path:
                act()
            return super().open_to_read(path)

    fs, clock = Racing(), Clock()
    with open_journal(fs, clock) as journal:
        lines = [journal.append_event(event(number)) for number in range(4)]
        journal.append_receipts([receipt_of(line) for line in lines[:3]])
        seal_all(journal)
        (name,) = journal.segment_names()
        whole = fs.contents(f"{journal.directory}/{name}")

        def act() -> None:
            compact(journal, clock)
            if how == "replaced":  # by a copy of the old one, as somebody who restores a backup would
                fs.write_all(fs.create(f"{journal.directory}/{name}"), whole)

        fs.act = act
        index = Index(journal, monotonic=clock)
        index.poll()
        fs.act = None
        index.poll()
        standing = [entry for entry in index.entries.values() if entry.copies]
        found = {index.read_line(entry).text: entry for entry in standing}
        assert lines[3].text in found
        assert [text for text, entry in found.items() if entry.is_open] == [lines[3].text]
