"""The guarantees of `producer.journal.journal`, one test or more each."""

from __future__ import annotations

import errno
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from producer import errors
from producer.journal import Journal
from producer.journal import line as lines
from producer.journal.filesystem import FileSystem
from producer.receipt import State
from tests.unit.journal.crashing_filesystem import CrashingFileSystem
from tests.unit.journal.support import Clock, compact, event, open_journal, order, receipt_of, seal_all, texts


class Gate(CrashingFileSystem):
    """A disk whose syncs stand still until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.may_go.set()
        self.is_waiting = threading.Event()

    def sync(self, descriptor: int) -> None:
        self.is_waiting.set()
        assert self.may_go.wait(30), "the test did not open the disk"
        super().sync(descriptor)


def real(tmp_path: Path, fs: FileSystem | None = None) -> Journal:
    return open_journal(fs or FileSystem(), directory=str(tmp_path / "state" / "journal"), reserve_bytes=8192)


def damage_count(journal: Journal) -> int:
    return journal.status().damaged


# Durability


@pytest.mark.parametrize("seed", range(20))
def test_what_append_returned_survives_power_loss(seed: int) -> None:
    fs = CrashingFileSystem(seed)
    journal = open_journal(fs)
    appended = [journal.append_event(event(1)), journal.append_order(order(1))]
    journal.append_receipts([receipt_of(appended[0])])
    fs.crash()
    with open_journal(fs) as again:
        assert set(texts(again)) == {line.text for line in appended}
        assert len(texts(again, ["receipt"])) == 1
        assert again.journal_id == journal.journal_id


def test_the_line_returned_is_the_line_on_disk() -> None:
    with open_journal(CrashingFileSystem()) as journal:
        line = journal.append_event(event(1), line_key="ab", session_key="cd")
        (found,) = [located.line for located in journal.scan()]
        assert found == lines.parse(line.text)
        assert (found.kind, found.id, found.hash) == ("event", event(1)["eventId"], line.hash)
        assert found.body == {"event": event(1), "lineKey": "ab", "sessionKey": "cd"}
        assert found.appended_at == "2026-12-01T12:00:00.000Z"


def test_an_order_is_named_by_the_hash_of_its_canonical_json() -> None:
    with open_journal(CrashingFileSystem()) as journal:
        first, second = journal.append_order(order(1)), journal.append_order(dict(reversed(order(1).items())))
        assert first.id == second.id
        assert journal.append_order(order(2)).id != first.id


def test_sent_is_written_without_a_sync_of_its_own() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs) as journal:
        line = journal.append_event(event(1))
        syncs = fs.operations.count("sync")
        journal.append_sent([line])
        assert fs.operations.count("sync") == syncs
        (sent,) = [located.line for located in journal.scan() if located.line.kind == "sent"]
        assert (sent.id, sent.body) == (line.id, {"lineHash": line.hash})


def test_an_event_without_an_id_or_with_what_json_cannot_hold_is_refused_and_nothing_is_written() -> None:
    with open_journal(CrashingFileSystem()) as journal:
        with pytest.raises(errors.ContractViolation):
            journal.append_event({"userText": "x"})
        with pytest.raises(errors.ContractViolation):
            journal.append_event({**event(1), "confidence": float("nan")})
        with pytest.raises(errors.ContractViolation):
            journal.append_event(event(1, length=lines.MAX_LINE_BYTES))
        assert list(journal.scan()) == []


def test_receipts_are_stamped_after_every_receipt_seen_even_when_the_clock_goes_back() -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as journal:
        line = journal.append_event(event(1))
        journal.append_receipts([receipt_of(line, State.DEAD)])
    clock.advance(-7200)
    with open_journal(fs, clock) as journal:
        assert journal.status().dead == 1
        journal.append_receipts([receipt_of(line, State.REPLAYED)])
        assert journal.status().pending == 1


# Group commit


def test_threads_share_one_sync() -> None:
    fs = Gate()
    with open_journal(fs) as journal:
        journal.append_event(event(0))
        fs.may_go.clear()
        fs.is_waiting.clear()
        threads = [threading.Thread(target=journal.append_event, args=(event(number),)) for number in range(1, 17)]
        threads[0].start()
        assert fs.is_waiting.wait(10)
        before = fs.operations.count("sync")
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: len(journal._groups._group.waiting) == 15)
        fs.may_go.set()
        for thread in threads:
            thread.join(10)
        assert fs.operations.count("sync") - before == 2, "one for the first, one for the other fifteen"
        assert len(texts(journal)) == 17


def test_processes_do_not_wait_for_one_another() -> None:
    fs = Gate()
    with open_journal(fs) as mine, open_journal(fs) as theirs:
        fs.may_go.clear()
        fs.is_waiting.clear()
        slow = threading.Thread(target=mine.append_event, args=(event(1),))
        slow.start()
        assert fs.is_waiting.wait(10)
        names = set(theirs.segment_names())
        other = threading.Thread(target=theirs.append_event, args=(event(2),))
        other.start()
        wait_until(lambda: set(theirs.segment_names()) > names)
        fs.may_go.set()
        slow.join(10)
        other.join(10)
        assert len(texts(mine)) == 2


def test_a_segment_that_nobody_holds_is_taken_over_instead_of_making_a_new_one() -> None:
    fs = CrashingFileSystem()
    for number in range(5):
        with open_journal(fs) as journal:
            journal.append_event(event(number))
    assert len(journal.segment_names()) == 1
    assert len(texts(open_journal(fs))) == 5


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("did not happen in time")


# A disk that fails


def test_a_failed_sync_is_never_tried_again_on_the_same_file() -> None:
    fs = CrashingFileSystem()
    journal = open_journal(fs)
    first = journal.append_event(event(1))
    fail_next(fs, "sync")
    second = journal.append_event(event(2))
    assert journal.failed_syncs == 1
    assert len(journal.segment_names()) == 2
    third = journal.append_event(event(3))
    fs.crash()
    with open_journal(fs) as again:
        assert {first.text, second.text, third.text} <= set(texts(again))


def test_the_segment_of_a_failed_sync_is_closed_for_other_processes_too() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs) as journal, open_journal(fs) as other:
        journal.append_event(event(1))
        (failed,) = journal.segment_names()
        fail_next(fs, "sync")
        journal.append_event(event(2))
        before = fs.contents(f"{journal.directory}/{failed}")
        other.append_event(event(3))
        assert fs.contents(f"{journal.directory}/{failed}") == before


def test_a_line_whose_second_sync_fails_too_is_not_acknowledged() -> None:
    class Broken(CrashingFileSystem):
        broken = False

        def sync(self, descriptor: int) -> None:
            if self.broken:
                raise OSError(errno.EIO, "sync")
            super().sync(descriptor)

    fs = Broken()
    with open_journal(fs) as journal:
        journal.append_event(event(1))
        fs.broken = True
        for number in range(2, 6):
            with pytest.raises(errors.JournalFailed):
                journal.append_event(event(number))
        assert len(journal.segment_names()) == 1, "a failing disk fills with segments"
        fs.broken = False
        journal.append_event(event(6))
        assert {located.line.id for located in journal.scan()} >= {event(1)["eventId"], event(6)["eventId"]}
        assert journal.failed == 4


def fail_next(fs: CrashingFileSystem, operation: str) -> None:
    """Let the next operation of this name fail, once."""
    original = type(fs)._step

    class Failing(type(fs)):  # type: ignore[misc]
        def _step(self, name: str) -> None:
            if name == operation and not self.failed_once:
                self.failed_once = True
                self.operations.append(name)
                raise OSError(errno.EIO, name)
            original(self, name)

    fs.failed_once = False  # type: ignore[attr-defined]
    fs.__class__ = Failing


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_writing_thread_that_died_is_replaced() -> None:
    def break_it() -> None:
        raise RuntimeError("a listener that does more than wake somebody")

    with open_journal(CrashingFileSystem()) as journal:
        journal.add_listener(break_it)
        thread = None
        for number in range(3):
            journal.append_event(event(number))
            died, thread = thread, journal._groups._thread
            assert thread is not died
            assert thread is not None
            thread.join(10)
        assert len(texts(journal)) == 3
        journal.remove_listener(break_it)


# A disk that is silent


def test_the_caller_waits_no_longer_than_the_budget_and_the_line_may_still_land() -> None:
    fs = Gate()
    journal = open_journal(fs, sync_budget_s=0.05)
    fs.may_go.clear()
    with pytest.raises(errors.SyncUnknown):
        journal.append_event(event(1))
    fs.may_go.set()
    wait_until(lambda: len(texts(journal)) == 1)
    journal.append_event(event(2))
    assert len(texts(journal)) == 2
    journal.close()


def test_behind_a_disk_that_is_silent_for_longer_than_the_budget_nobody_waits() -> None:
    fs, clock = Gate(), Clock()
    journal = open_journal(fs, clock, sync_budget_s=0.2)
    fs.may_go.clear()
    with pytest.raises(errors.SyncUnknown):
        journal.append_event(event(0))
    clock.advance(1)
    journal._groups._budget_s = 30.0  # would be noticed
    clock.advance(60)
    with pytest.raises(errors.SyncUnknown):
        journal.append_event(event(1))
    fs.may_go.set()
    journal.close()
    assert len(texts(journal)) == 2


def test_what_waits_for_a_silent_disk_is_bounded() -> None:
    fs, clock = Gate(), Clock()
    journal = open_journal(fs, clock, sync_budget_s=0.2, max_bytes=1 << 30)
    fs.may_go.clear()
    with pytest.raises(errors.SyncUnknown):
        journal.append_event(event(0))
    clock.advance(60)
    with pytest.raises(errors.JournalFailed):
        for number in range(1, 100):
            with pytest.raises(errors.SyncUnknown):
                journal.append_event(event(number, length=500_000))
    fs.may_go.set()
    journal.close()


# Room


def test_events_stop_short_of_the_reserve_and_orders_and_receipts_go_on() -> None:
    with open_journal(CrashingFileSystem(), max_bytes=40_000, reserve_bytes=10_000) as journal:
        last = fill(journal)
        assert journal.full > 0
        assert 25_000 < journal.budget.used_bytes() <= 30_000
        journal.append_sent([last])
        journal.append_order(order(1))
        journal.append_receipts([receipt_of(last)])
        with pytest.raises(errors.JournalFull):
            for number in range(100):
                journal.append_order(order(number))
        assert journal.budget.used_bytes() <= 40_000


def test_the_budget_holds_for_many_processes_together() -> None:
    fs = CrashingFileSystem()
    journals = [open_journal(fs, max_bytes=40_000, segment_max_bytes=5000) for _ in range(4)]
    for number in range(200):
        try:
            journals[number % 4].append_event(event(number, length=500))
        except errors.JournalFull:
            continue
    assert journals[0].budget.used_bytes() <= 40_000
    for journal in journals:
        journal.close()


def test_segments_and_reserve_together_stay_within_the_budget() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs, max_bytes=40_000, reserve_bytes=10_000) as journal:
        assert journal.budget.reserve_length() == 10_000
        fill(journal)
        for number in range(10):
            journal.append_order(order(number))
        assert journal.budget.used_bytes() + journal.budget.reserve_length() <= 40_000


def test_on_a_full_disk_orders_and_receipts_spend_the_reserve() -> None:
    fs = CrashingFileSystem(capacity=30_000)
    with open_journal(fs, max_bytes=1 << 20, reserve_bytes=8_000) as journal:
        last = fill(journal)
        journal.append_order(order(1))
        journal.append_receipts([receipt_of(last)])
        assert journal.budget.reserve_length() < 8_000
        assert damage_count(journal) == 0


def test_when_the_disk_fills_within_a_group_the_first_lines_are_durable_and_only_the_rest_refused() -> None:
    fs = Gate()
    with open_journal(fs) as journal:
        journal.append_event(event(0))
        fs.may_go.clear()
        fs.is_waiting.clear()
        results: dict[int, object] = {}

        def append(number: int) -> None:
            try:
                results[number] = journal.append_event(event(number)).text
            except errors.JournalFull as refusal:
                results[number] = refusal

        threads = [threading.Thread(target=append, args=(number,)) for number in range(1, 8)]
        threads[0].start()
        assert fs.is_waiting.wait(10)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: len(journal._groups._group.waiting) == 6)
        fs.capacity = fs._used() + 3 * 330
        fs.may_go.set()
        for thread in threads:
            thread.join(10)
        acknowledged = {text for text in results.values() if isinstance(text, str)}
        assert 3 <= len(acknowledged) < 7
        assert acknowledged < set(texts(journal))
        assert len(texts(journal)) == len(acknowledged) + 1
        assert damage_count(journal) == 0


def test_capture_resumes_by_itself_when_a_full_disk_has_room_again() -> None:
    fs = CrashingFileSystem(capacity=20_000)
    with open_journal(fs) as journal:
        fill(journal)
        for number in range(100):
            with pytest.raises(errors.JournalFull):
                journal.append_event(event(number, length=1000))
        assert damage_count(journal) == 0
        fs.capacity = None
        line = journal.append_event(event(1000))
        assert line.text in texts(journal)


def fill(journal: Journal) -> lines.Line:
    """The last event that found room."""
    last = journal.append_event(event(0))
    with pytest.raises(errors.JournalFull):
        for number in range(1, 1000):
            last = journal.append_event(event(number, length=500))
    return last


# Segments


def test_a_segment_is_sealed_by_size() -> None:
    with open_journal(CrashingFileSystem(), segment_max_bytes=2000) as journal:
        for number in range(20):
            journal.append_event(event(number))
        sizes = journal.segment_names().values()
        assert len(sizes) > 2
        assert max(sizes) < 2000 + 100, "a footer more at most"
        assert len(texts(journal)) == 20


def test_a_segment_is_sealed_after_an_hour() -> None:
    clock = Clock()
    with open_journal(CrashingFileSystem(), clock) as journal:
        journal.append_event(event(1))
        clock.advance(3599)
        journal.append_event(event(2))
        assert len(journal.segment_names()) == 1
        clock.advance(1)
        journal.append_event(event(3))
        assert len(journal.segment_names()) == 2


def test_a_line_longer_than_a_segment_gets_one_of_its_own() -> None:
    with open_journal(CrashingFileSystem(), segment_max_bytes=300) as journal:
        journal.append_event(event(1, length=2000))
        journal.append_event(event(2))
        assert len(texts(journal)) == 2


def test_a_scan_sees_what_compaction_moves_meanwhile() -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock, segment_max_bytes=600) as journal:
        appended = [journal.append_event(event(number)) for number in range(6)]
        journal.append_receipts([receipt_of(line) for line in appended[::2]])
        seal_all(journal)
        scan = journal.scan()
        found = {next(scan).line.text}
        assert compact(journal, clock).segments_removed > 0
        found |= {located.line.text for located in scan}
        assert {line.text for line in appended[1::2]} <= found


# On a real file system


def test_directories_are_closed_to_others_and_so_are_files(tmp_path: Path) -> None:
    with real(tmp_path) as journal:
        journal.append_event(event(1))
        assert stat.S_IMODE(Path(journal.directory).stat().st_mode) == 0o700
        for found in Path(journal.directory).iterdir():
            assert stat.S_IMODE(found.stat().st_mode) == 0o600, found.name


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state" / "journal").mkdir(parents=True, mode=0o755)
    with real(tmp_path) as journal:
        assert stat.S_IMODE(Path(journal.directory).stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.JournalFailed):
        open_journal(FileSystem(), directory=str(tmp_path / "file" / "journal"))


def test_a_damaged_id_is_replaced(tmp_path: Path) -> None:
    with real(tmp_path) as journal:
        journal.append_event(event(1))
    (tmp_path / "state" / "journal" / "journal-id").write_text("")
    with real(tmp_path) as again:
        assert len(again.journal_id) == 32
        assert len(texts(again)) == 1


def test_opening_reads_no_segment() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs) as journal:
        for number in range(10):
            journal.append_event(event(number))
    before = len(fs.operations)
    with open_journal(fs):
        assert fs.operations[before:].count("read") == 1, "the id"


def test_after_closing_appends_are_refused_and_no_thread_or_descriptor_is_left(tmp_path: Path) -> None:
    threads, descriptors = set(threading.enumerate()), len(list(Path("/proc/self/fd").iterdir()))
    journal = real(tmp_path)
    journal.append_event(event(1))
    journal.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert set(threading.enumerate()) <= threads
    with pytest.raises(errors.JournalFailed):
        journal.append_event(event(2))
    journal.close()


def test_the_journal_loads_the_standard_library_only() -> None:
    code = (
        "import sys, producer.journal; "
        "foreign = {m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'producer'}; "
        "print(sorted(m for m in foreign if not m.startswith('_'))); "
        "print('producer.journal.index' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_an_event_captured_while_the_interpreter_shuts_down_is_durable(tmp_path: Path) -> None:
    code = (
        "import atexit, sys\n"
        "from tests.unit.journal.test_journal import real, event\n"
        "from pathlib import Path\n"
        f"journal = real(Path({str(tmp_path)!r}))\n"
        "atexit.register(lambda: print(journal.append_event(event(1)).id))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == event(1)["eventId"], done.stderr
    with real(tmp_path) as journal:
        assert len(texts(journal)) == 1
