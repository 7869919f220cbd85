"""What compaction removes, what it keeps, and in which order."""

from __future__ import annotations

import errno
from collections.abc import Container

import pytest

from producer.journal import Journal, compaction, segments
from producer.journal.index import RECENTLY_SENT_S, Index
from producer.journal.line import Line
from producer.receipt import State
from tests.unit.journal.crashing_filesystem import CrashingFileSystem, File
from tests.unit.journal.support import LONG_S, Clock, compact, event, open_journal, order, receipt_of, seal_all, texts


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fs() -> CrashingFileSystem:
    return CrashingFileSystem()


def appended(journal: Journal, count: int) -> list[Line]:
    return [journal.append_event(event(number)) for number in range(count)]


def kinds(journal: Journal) -> list[str]:
    return [located.line.kind for located in journal.scan()]


@pytest.mark.parametrize("state", [State.STORED, State.FORGOTTEN, State.DISCARDED])
def test_a_segment_whose_every_line_is_settled_is_removed(fs: CrashingFileSystem, clock: Clock, state: State) -> None:
    with open_journal(fs, clock) as journal:
        lines = [*appended(journal, 3), journal.append_order(order(1))]
        journal.append_sent(lines)
        journal.append_receipts([receipt_of(line, state) for line in lines])
        seal_all(journal)
        done = compact(journal, clock)
        assert done.segments_removed == 1
        assert done.bytes_freed > 0
        assert journal.segment_names() == {}


def test_a_dead_line_stays_until_it_is_replayed_or_discarded(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        replayed, discarded = appended(journal, 2)
        journal.append_receipts([receipt_of(line, State.DEAD, reason="contract") for line in (replayed, discarded)])
        seal_all(journal)
        compact(journal, clock)
        assert journal.status().dead == 2
        journal.append_receipts([receipt_of(replayed, State.REPLAYED), receipt_of(discarded, State.DISCARDED)])
        compact(journal, clock)
        assert texts(journal) == [replayed.text]
        assert journal.status().pending == 1


def test_a_line_stays_for_five_minutes_after_its_last_sent(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        (line,) = appended(journal, 1)
        index = Index(journal, monotonic=clock)
        journal.append_sent([line])
        index.poll()
        clock.advance(100)
        journal.append_sent([line])
        journal.append_receipts([receipt_of(line)])
        seal_all(journal)
        index.poll()
        clock.advance(RECENTLY_SENT_S - 1)
        compaction.compact(journal, index, now_s=clock(), everything=True)
        assert texts(journal) == [line.text]
        clock.advance(1)
        compaction.compact(journal, index, now_s=clock(), everything=True)
        assert texts(journal) == []


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_jump_of_the_wall_clock_neither_shortens_those_five_minutes_nor_makes_them_endless(
    fs: CrashingFileSystem, jump_s: float
) -> None:
    wall, monotonic = Clock(), Clock()
    with open_journal(fs, wall, monotonic=monotonic) as journal:
        (line,) = appended(journal, 1)
        journal.append_sent([line])
        journal.append_receipts([receipt_of(line)])
        seal_all(journal)
        index = Index(journal, monotonic=monotonic)
        index.poll()
        wall.advance(jump_s)
        compaction.compact(journal, index, now_s=monotonic(), everything=True)
        assert texts(journal) == [line.text]
        monotonic.advance(RECENTLY_SENT_S)
        compaction.compact(journal, index, now_s=monotonic(), everything=True)
        assert texts(journal) == []


def test_survivors_are_copied_forward_byte_for_byte(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        lines = appended(journal, 10)
        journal.append_receipts([receipt_of(line) for line in lines[:8]])
        seal_all(journal)
        done = compact(journal, clock)
        assert (done.segments_removed, done.segments_written) == (1, 1)
        assert texts(journal) == [line.text for line in lines[8:]]


def test_a_segment_that_is_mostly_needed_stays_as_it_is(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        lines = appended(journal, 10)
        journal.append_receipts([receipt_of(lines[0])])
        seal_all(journal)
        before = journal.segment_names()
        compact(journal, clock)
        assert journal.segment_names() == before


def test_a_segment_with_a_forgotten_line_is_rewritten_however_small_the_waste(
    fs: CrashingFileSystem, clock: Clock
) -> None:
    with open_journal(fs, clock) as journal:
        lines = appended(journal, 10)
        journal.append_receipts([receipt_of(lines[4], State.FORGOTTEN)])
        seal_all(journal)
        compact(journal, clock)
        assert texts(journal) == [line.text for line in lines if line is not lines[4]]
        assert all(b"4 \\u00e9" not in fs.contents(f"{journal.directory}/{name}") for name in journal.segment_names())


def test_a_segment_is_sealed_when_a_line_in_it_was_forgotten(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        line = journal.append_event(event(1))
        index = Index(journal, monotonic=clock)
        index.poll()
        assert compaction.seal_finished(journal, index) == 0
        journal.append_receipts([receipt_of(line, State.FORGOTTEN)])
        index.poll()
        assert compaction.seal_finished(journal, index) == 1
        assert compaction.compact(journal, index, now_s=clock() + LONG_S).segments_removed == 1


def test_a_segment_is_sealed_when_it_is_an_hour_old_whoever_made_it(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        journal.append_event(event(1))
        index = Index(journal, monotonic=clock)
        index.poll()
        clock.advance(3600)
        assert compaction.seal_finished(journal, index) == 1
        index.poll()
        assert [view.sealed for view in index.views.values()] == [True]


def test_only_sealed_segments_whose_lock_is_free_are_touched(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        lines = appended(journal, 2)
        journal.append_receipts([receipt_of(line) for line in lines])
        assert compact(journal, clock).segments_removed == 0
        seal_all(journal)
        (name,) = journal.segment_names()
        holder = fs.open(f"{journal.directory}/{name}")
        assert fs.try_lock(holder)
        assert compact(journal, clock).segments_removed == 0
        fs.unlock(holder)
        assert compact(journal, clock).segments_removed == 1


def test_a_receipt_lives_as_long_as_its_line_and_goes_after_it(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        lines = appended(journal, 2)
        seal_all(journal)
        journal.append_sent(lines)
        journal.append_receipts([receipt_of(lines[0]), receipt_of(lines[1], State.DEAD)])
        seal_all(journal)
        events = next(iter(journal.segment_names()))
        holder = fs.open(f"{journal.directory}/{events}")
        assert fs.try_lock(holder)
        compact(journal, clock)
        assert kinds(journal).count("receipt") == 2, "a receipt went although its line could not"
        fs.unlock(holder)
        compact(journal, clock)
        assert texts(journal) == [lines[1].text]
        compact(journal, clock)
        assert kinds(journal).count("receipt") == 1
        assert kinds(journal).count("sent") == 1


def test_of_many_sent_and_deferred_only_the_last_stay(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        (line,) = appended(journal, 1)
        seal_all(journal)
        for number in range(20):
            clock.advance(60)
            journal.append_sent([line])
            journal.append_receipts([receipt_of(line, State.DEFERRED, reason="store_unavailable", delay_s=number)])
        seal_all(journal)
        compact(journal, clock)
        found = [located.line for located in journal.scan()]
        assert [one.body["delayS"] for one in found if one.kind == "receipt"] == [19]
        assert [one.kind for one in found].count("sent") == 1
        assert journal.status().deferred == 1


def test_the_greatest_count_of_deaths_is_kept(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        (line,) = appended(journal, 1)
        seal_all(journal)
        for deaths in (1, 2, 0, 0, 0, 0, 0, 0):
            journal.append_receipts([receipt_of(line, State.DEFERRED, reason="unsure", deaths=deaths)])
        seal_all(journal)
        compact(journal, clock)
        index = Index(journal)
        index.poll()
        (entry,) = index.entries.values()
        assert entry.deaths == 2
        assert kinds(journal).count("receipt") == 2


def test_a_reopened_line_stays_open_whatever_is_compacted(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        (line,) = appended(journal, 1)
        seal_all(journal)
        journal.append_receipts([receipt_of(line)])
        seal_all(journal)
        journal.append_receipts([receipt_of(line, State.DEFERRED, reason="unsure")])
        journal.append_receipts([receipt_of(line, State.DEFERRED, reason="store_unavailable")])
        seal_all(journal)
        for _ in range(3):
            compact(journal, clock)
            assert journal.status().pending == 1
        assert texts(journal) == [line.text]


def test_damage_leaves_with_its_segment_and_stays_in_the_quarantine(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        lines = appended(journal, 2)
        (name,) = journal.segment_names()
        fs.damage(f"{journal.directory}/{name}", lambda data: data.replace(b'"userText":"0', b'"userText":"9'))
        journal.append_receipts([receipt_of(line) for line in lines])
        seal_all(journal)
        assert compact(journal, clock).segments_removed == 1
        status = journal.status()
        assert (status.damaged, status.segments) == (1, 0)
        assert status.quarantined_bytes == len(lines[0].text)


def test_many_small_segments_become_one(fs: CrashingFileSystem, clock: Clock) -> None:
    lines = []
    with open_journal(fs, clock) as journal:
        for number in range(20):
            lines.append(journal.append_event(event(number)))
            seal_all(journal)
            clock.advance(1)
        assert len(journal.segment_names()) == 20
        compact(journal, clock)
        assert len(journal.segment_names()) == 1
        assert texts(journal) == [line.text for line in lines]
        before = journal.segment_names()
        compact(journal, clock)
        assert journal.segment_names() == before


def test_a_segment_of_a_later_version_stays_and_so_do_receipts_of_lines_that_may_stand_in_it(
    fs: CrashingFileSystem, clock: Clock
) -> None:
    with open_journal(fs, clock) as journal:
        (line,) = appended(journal, 1)
        seal_all(journal)
        (name,) = journal.segment_names()
        later = segments._summed(b'{"segment":2') + b"\n" + segments.footer(0)
        fs.damage(f"{journal.directory}/{name}", lambda _: later)
        journal.append_receipts([receipt_of(line)])
        seal_all(journal)
        compact(journal, clock)
        assert len(journal.segment_names()) == 2
        assert journal.status().unreadable_segments == 1
        assert kinds(journal) == ["receipt"]


def test_on_a_full_disk_settled_segments_are_removed_and_others_rewritten_from_the_reserve(
    fs: CrashingFileSystem, clock: Clock
) -> None:
    with open_journal(fs, clock, reserve_bytes=20_000, segment_max_bytes=3000) as journal:
        lines = appended(journal, 40)
        seal_all(journal)
        journal.append_receipts([receipt_of(line) for n, line in enumerate(lines) if n < 10 or n % 4])
        seal_all(journal)
        fs.capacity = fs._used()
        done = compact(journal, clock)
        assert done.segments_removed > 2
        assert done.segments_written > 0
        assert set(texts(journal)) == {line.text for n, line in enumerate(lines) if n >= 10 and n % 4 == 0}


def test_drafts_that_a_crash_left_are_swept_after_an_hour(fs: CrashingFileSystem, clock: Clock) -> None:
    with open_journal(fs, clock) as journal:
        fs.now_ns = lambda: int(clock() * 1e9)
        fs.close(fs.create(f"{journal.directory}/compact.0123.tmp"))
        assert compaction.sweep_drafts(journal) == 0
        clock.advance(3601)
        assert compaction.sweep_drafts(journal) == 1
        assert not [name for name, _ in fs.listing(journal.directory) if name.endswith(".tmp")]


def test_where_the_directory_cannot_be_synced_no_receipt_goes_after_its_line() -> None:
    class Unsynced(CrashingFileSystem):
        fails = False

        def sync_directory(self, path: str) -> None:
            if self.fails:
                raise OSError(5, "sync_directory")
            super().sync_directory(path)

    came_back = 0
    for seed in range(30):
        fs, clock = Unsynced(seed), Clock()
        with open_journal(fs, clock) as journal:
            line = journal.append_event(event(1))
            seal_all(journal)
            journal.append_receipts([receipt_of(line, State.FORGOTTEN)])
            seal_all(journal)
            fs.fails = True
            for _ in range(3):
                compact(journal, clock)
            fs.fails = False
            assert kinds(journal).count("receipt") == 1
            fs.crash()
        with open_journal(fs, clock) as journal:
            came_back += line.text in texts(journal)
            assert journal.status().pending == 0, "it came back without its receipt"
            seal_all(journal)
            compact(journal, clock)
            compact(journal, clock)
            assert journal.segment_names() == {}
    assert came_back, "no crash brought the line back"


def test_while_the_directory_cannot_be_synced_copies_do_not_pile_up() -> None:
    class Unsynced(CrashingFileSystem):
        fails = False

        def sync_directory(self, path: str) -> None:
            if self.fails:
                raise OSError(5, "sync_directory")
            super().sync_directory(path)

    fs, clock = Unsynced(), Clock()
    with open_journal(fs, clock) as journal:
        lines = appended(journal, 4)
        journal.append_receipts([receipt_of(line) for line in lines[:3]])
        seal_all(journal)
        fs.fails = True
        for _ in range(20):
            compact(journal, clock)
        assert len(journal.segment_names()) <= 2
        assert lines[3].text in texts(journal)


class Watched(CrashingFileSystem):
    """Counts descriptors, and has only so many."""

    limit, most = 1 << 30, 0

    def _opened(self, file: File) -> int:
        if len(self.open_files) >= self.limit:
            raise OSError(errno.EMFILE, "open")
        descriptor = super()._opened(file)
        self.most = max(self.most, len(self.open_files))
        return descriptor


def test_of_hundreds_of_small_segments_few_are_open_at_once(clock: Clock) -> None:
    fs = Watched()
    with open_journal(fs, clock) as journal:
        lines = []
        for number in range(200):
            lines.append(journal.append_event(event(number)))
            seal_all(journal)
            clock.advance(1)
        fs.limit = 40
        assert compact(journal, clock).segments_removed == 200
        assert len(journal.segment_names()) == 7
        assert texts(journal) == [line.text for line in lines]


def test_of_many_survivors_few_are_in_memory_at_once(clock: Clock) -> None:
    fs = Watched()
    with open_journal(fs, clock, segment_max_bytes=10_000) as journal:
        lines = []
        for number in range(20):
            pair = [journal.append_event(event(2 * number + half, length=3000)) for half in range(2)]
            journal.append_receipts([receipt_of(pair[1])])
            seal_all(journal)
            clock.advance(1)
            lines.append(pair[0])
        fs.most = 0
        assert compact(journal, clock).segments_removed == 20
        assert fs.most <= 6, "as many segments as fill one, and what is open besides"
        assert texts(journal) == [line.text for line in lines]


class Unremovable(CrashingFileSystem):
    """Refuses to unlink segments of these names."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: Container[str] = ()
        self.has_done_it = False

    def unlink(self, path: str) -> None:
        if path.rpartition("/")[2] in self.refused:
            if self.has_done_it:
                super().unlink(path)
            raise OSError(errno.EIO, "unlink")
        super().unlink(path)


class Everything:
    def __contains__(self, name: object) -> bool:
        return True


def half_waste(journal: Journal) -> Line:
    """The one line of a sealed segment that is still needed."""
    lines = appended(journal, 4)
    journal.append_receipts([receipt_of(line) for line in lines[:3]])
    seal_all(journal)
    return lines[3]


def test_while_a_segment_cannot_be_removed_copies_of_it_do_not_pile_up(clock: Clock) -> None:
    fs = Unremovable()
    with open_journal(fs, clock) as journal:
        line = half_waste(journal)
        before = fs.refused = journal.segment_names()
        for _ in range(5):
            assert compact(journal, clock) == compaction.Compacted()
            assert journal.segment_names() == before
        fs.refused = ()
        assert compact(journal, clock).segments_removed == 1
        assert texts(journal) == [line.text]


def test_where_nothing_can_be_removed_copies_become_rarer_and_rarer(clock: Clock) -> None:
    fs = Unremovable()
    with open_journal(fs, clock) as journal:
        line = half_waste(journal)
        fs.refused = Everything()
        index = Index(journal, monotonic=clock)
        for _ in range(24 * 12):
            clock.advance(300)
            compaction.compact(journal, index, now_s=clock())
        assert 2 < len(journal.segment_names()) < 14
        fs.refused = ()
        clock.advance(compaction._LOOK_AGAIN_MAX_S)
        compaction.compact(journal, index, now_s=clock())
        assert set(texts(journal)) == {line.text}
        assert index.read_line(index.entries[bytes.fromhex(line.hash)]).text == line.text


def test_a_removal_that_failed_and_was_done_all_the_same_costs_no_line(clock: Clock) -> None:
    fs = Unremovable()
    with open_journal(fs, clock) as journal:
        line = half_waste(journal)
        fs.refused, fs.has_done_it = journal.segment_names(), True
        compact(journal, clock)
        assert texts(journal) == [line.text]


def test_of_segments_joined_the_one_that_cannot_be_removed_takes_no_line_of_the_others_with_it(clock: Clock) -> None:
    fs = Unremovable()
    with open_journal(fs, clock) as journal:
        lines = []
        for number in range(20):
            lines.append(journal.append_event(event(number)))
            seal_all(journal)
            clock.advance(1)
        fs.refused = list(journal.segment_names())[7:8]
        assert compact(journal, clock).segments_removed == 19
        assert set(texts(journal)) == {line.text for line in lines}
        assert len(texts(journal)) == 21
