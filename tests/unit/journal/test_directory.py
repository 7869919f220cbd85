"""The journal's directory and its id, and the file systems it is refused on."""

from __future__ import annotations

import errno
import stat
import threading
from pathlib import Path

import pytest

from producer import errors
from producer.journal import budget, compaction
from producer.journal.filesystem import REAL, FileSystem
from producer.journal.index import Index
from tests.unit.journal.crashing_filesystem import CrashingFileSystem
from tests.unit.journal.support import Clock, compact, event, open_journal, receipt_of, seal_all, texts


class Without(CrashingFileSystem):
    """A file system on which one operation is not supported."""

    def __init__(self, operation: str, code: int) -> None:
        super().__init__()
        self.missing, self.code = operation, code

    def _step(self, name: str) -> None:
        super()._step(name)
        if name == self.missing:
            raise OSError(self.code, name)


def test_processes_that_start_at_once_agree_on_one_id(tmp_path: Path) -> None:
    started, ids = threading.Barrier(8), []

    def start() -> None:
        started.wait(10)
        with open_journal(REAL, directory=str(tmp_path / "a" / "b" / "journal")) as journal:
            ids.append(journal.journal_id)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(ids) == 8
    assert len(set(ids)) == 1
    assert not list((tmp_path / "a" / "b" / "journal").glob("*.tmp"))


@pytest.mark.parametrize("seed", range(20))
def test_whoever_makes_the_id_makes_the_names_of_all_directories_above_durable_whoever_made_those(seed: int) -> None:
    fs = CrashingFileSystem(seed)
    for path in ("/home", "/home/agent", "/home/agent/journal"):  # as an installer that syncs nothing
        fs.make_directory(path)
    line = open_journal(fs, directory="/home/agent/journal").append_event(event(1))
    fs.crash()
    assert texts(open_journal(fs, directory="/home/agent/journal")) == [line.text]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_at_open(code: int) -> None:
    with pytest.raises(errors.JournalFailed, match="without locks"):
        open_journal(Without("try_lock", code))


def test_where_locks_stop_working_nothing_is_acknowledged_and_no_file_is_left() -> None:
    fs = Without("try_lock", 0)
    fs.missing = ""
    with open_journal(fs) as journal:
        fs.missing, fs.code = "try_lock", errno.ENOLCK
        for number in range(20):
            with pytest.raises(errors.JournalFailed):
                journal.append_event(event(number))
        assert journal.segment_names() == {}
        fs.missing = ""
        line = journal.append_event(event(20))
        assert texts(journal) == [line.text]


def test_where_a_directory_cannot_be_synced_nothing_is_acknowledged_and_no_file_is_left() -> None:
    with pytest.raises(errors.JournalFailed):
        open_journal(Without("sync_directory", errno.EINVAL))
    fs = Without("", 0)
    with open_journal(fs) as journal:
        fs.missing, fs.code = "sync_directory", errno.EINVAL
        for number in range(20):
            with pytest.raises(errors.JournalFailed):
                journal.append_event(event(number))
        assert journal.segment_names() == {}


def test_a_file_system_that_became_read_only_refuses_every_append_and_can_be_read() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs) as journal:
        line = journal.append_event(event(0))
    fs.fail_at, fs.fail_for, fs.fail_with = len(fs.operations), 1 << 30, errno.EROFS
    step = fs._step
    reading = (
        "make_directory",
        "read",
        "listing",
        "open",
        "size_and_links",
        "stands_at",
        "identity_of",
        "try_lock",
        "unlock",
    )
    fs._step = lambda name: fs.operations.append(name) if name in reading else step(name)  # type: ignore[method-assign]
    with open_journal(fs) as journal:
        with pytest.raises(errors.JournalFailed):
            journal.append_event(event(1))
        assert texts(journal) == [line.text]


def test_somebody_elses_file_in_its_place_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("theirs")
    (tmp_path / "journal").chmod(0o644)
    with pytest.raises(errors.JournalFailed):
        open_journal(REAL, directory=str(tmp_path / "journal"))
    assert (tmp_path / "journal").read_text() == "theirs"
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o644


def test_a_link_to_a_directory_is_followed_and_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o755)
    (tmp_path / "journal").symlink_to(tmp_path / "disk")
    with open_journal(REAL, directory=str(tmp_path / "journal")) as journal:
        line = journal.append_event(event(1))
    assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) == 0o700
    with open_journal(REAL, directory=str(tmp_path / "disk")) as journal:
        assert texts(journal) == [line.text]


def test_a_directory_that_cannot_be_closed_to_others_is_refused() -> None:
    class Theirs(FileSystem):
        def make_directory(self, path: str) -> bool:
            raise PermissionError(errno.EPERM, "chmod")

    with pytest.raises(errors.JournalFailed):
        open_journal(Theirs(), directory="/")


# The budget


def test_how_much_is_used_is_measured_by_listing_so_a_crash_leaves_no_wrong_sum() -> None:
    for seed in range(10):
        fs = CrashingFileSystem(seed)
        journal = open_journal(fs, segment_max_bytes=2000)
        for number in range(30):
            journal.append_event(event(number))
        fs.crash()
        with open_journal(fs) as again:
            again.append_event(event(30))
            sizes = again.segment_names().values()
            assert again.budget.used_bytes() == again.budget._used == sum(sizes) or len(sizes) > 1


def test_a_reserve_that_was_lost_is_made_again_by_the_drainer() -> None:
    fs = CrashingFileSystem()
    with open_journal(fs, reserve_bytes=4000) as journal:
        fs.unlink(f"{journal.directory}/{budget.RESERVE}")
        assert journal.budget.reserve_length() == 0
        assert journal.append_event(event(1)).text in texts(journal), "capture needs no reserve"
        assert journal.budget.refill()
        assert journal.budget.reserve_length() == 4000


# The clock


def test_a_segment_is_sealed_when_the_clock_went_back_behind_its_making() -> None:
    fs, clock = CrashingFileSystem(), Clock()
    clock.advance(365 * 86_400)
    with open_journal(fs, clock) as journal:
        line = journal.append_event(event(1))
        clock.advance(-365 * 86_400)
        later = journal.append_event(event(2))
        assert len(journal.segment_names()) == 2
        journal.append_receipts([receipt_of(line)])
        index = Index(journal, monotonic=clock)
        index.poll()
        compaction.seal_finished(journal, index)
        compact(journal, clock)
        assert texts(journal) == [later.text]


def test_the_five_minutes_count_from_the_last_sent_though_the_clock_went_back_before_it() -> None:
    wall, monotonic = Clock(), Clock()
    with open_journal(CrashingFileSystem(), wall, monotonic=monotonic) as journal:
        line = journal.append_event(event(1))
        journal.append_sent([line])
        index = Index(journal, monotonic=monotonic)
        index.poll()
        monotonic.advance(400)
        wall.advance(400 - 7200)
        journal.append_sent([line])
        journal.append_receipts([receipt_of(line)])
        index.poll()
        seal_all(journal)
        monotonic.advance(299)
        wall.advance(299)
        compaction.compact(journal, index, now_s=monotonic(), everything=True)
        assert texts(journal) == [line.text], "it was sent a moment ago"
        monotonic.advance(1)
        wall.advance(1)
        compaction.compact(journal, index, now_s=monotonic(), everything=True)
        assert texts(journal) == []


def test_a_directory_that_was_replaced_is_written_to_as_what_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(REAL, directory=str(path)) as journal:
        journal.append_event(event(1))
        path.rename(tmp_path / "aside")
        with open_journal(REAL, directory=str(path)) as other:
            line = journal.append_event(event(2))
            assert texts(other) == [line.text]
            assert journal.journal_id == other.journal_id


def test_a_directory_that_was_emptied_gets_a_new_id(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(REAL, directory=str(path)) as journal:
        journal.append_event(event(1))
        for file in path.iterdir():
            file.unlink()
        line = journal.append_event(event(2))
        assert texts(journal) == [line.text]
        assert (path / "journal-id").read_text().strip() == journal.journal_id


def test_where_the_disk_of_a_journal_is_not_mounted_nothing_is_acknowledged_until_it_is_back(tmp_path: Path) -> None:
    path, aside = tmp_path / "journal", tmp_path / "aside"
    with open_journal(REAL, directory=str(path)) as journal:
        first = journal.append_event(event(1))
        path.rename(aside)
        path.mkdir()  # the mount point, as it is without its disk
        with pytest.raises(errors.JournalFailed):
            journal.append_event(event(2))
        assert not list(path.iterdir())
        path.rmdir()
        aside.rename(path)
        later = journal.append_event(event(3))
        assert texts(journal) == [first.text, later.text]
