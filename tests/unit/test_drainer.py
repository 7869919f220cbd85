"""Who drains a journal, on a real file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from producer.drainer import SILENT_AFTER_S, DrainerLock, Role
from producer.journal.filesystem import REAL
from tests.unit.journal.crashing_filesystem import CrashingFileSystem


def test_one_drains_and_the_next_takes_over_when_it_is_gone(tmp_path: Path) -> None:
    first, second = DrainerLock(REAL, str(tmp_path)), DrainerLock(REAL, str(tmp_path))
    assert first.role(0) is Role.DRAINER
    assert second.role(0) is Role.NONE
    first.drop()
    assert second.role(0.5) is Role.NONE, "it tries once a second"
    assert second.role(1.5) is Role.DRAINER
    assert first.role(3) is Role.NONE
    second.drop()


def test_a_lock_without_heartbeat_makes_a_deputy_and_a_heartbeat_unmakes_it(tmp_path: Path) -> None:
    first, second = DrainerLock(REAL, str(tmp_path)), DrainerLock(REAL, str(tmp_path))
    assert first.role(0) is Role.DRAINER
    assert second.role(0) is Role.NONE
    assert second.role(SILENT_AFTER_S - 1) is Role.NONE
    assert second.role(SILENT_AFTER_S + 1) is Role.DEPUTY
    assert first.role(SILENT_AFTER_S + 2) is Role.DRAINER
    assert second.role(SILENT_AFTER_S + 3) is Role.NONE
    first.drop()
    assert second.role(SILENT_AFTER_S + 5) is Role.DRAINER
    second.drop()


def test_of_many_one_is_the_deputy_and_the_next_takes_over_when_it_is_gone(tmp_path: Path) -> None:
    drainer, *others = (DrainerLock(REAL, str(tmp_path)) for _ in range(5))

    def roles(now_s: float) -> list[Role]:
        return [other.role(now_s) for other in others]

    assert drainer.role(0) is Role.DRAINER
    assert roles(0) == [Role.NONE] * 4
    for second in range(61, 400, 2):
        assert roles(second) == [Role.DEPUTY, Role.NONE, Role.NONE, Role.NONE]
    others.pop(0).drop()
    assert roles(402) == [Role.DEPUTY, Role.NONE, Role.NONE]
    assert drainer.role(403) is Role.DRAINER
    assert roles(404) == [Role.NONE] * 3
    drainer.drop()
    assert roles(406) == [Role.DRAINER, Role.NONE, Role.NONE]
    for other in others:
        other.drop()


def test_where_drainer_and_deputy_are_frozen_all_others_stand_in(tmp_path: Path) -> None:
    frozen, frozen_too, third, fourth = (DrainerLock(REAL, str(tmp_path)) for _ in range(4))
    assert frozen.role(0) is Role.DRAINER
    assert [lock.role(0) for lock in (frozen_too, third, fourth)] == [Role.NONE] * 3
    assert frozen_too.role(60) is Role.DEPUTY
    assert [third.role(60), fourth.role(60)] == [Role.NONE] * 2
    assert [third.role(119), fourth.role(119)] == [Role.NONE] * 2
    assert [third.role(121), fourth.role(121)] == [Role.DEPUTY] * 2
    assert frozen_too.role(122) is Role.DEPUTY
    assert [third.role(123), fourth.role(123)] == [Role.NONE] * 2
    for lock in (frozen, frozen_too, third, fourth):
        lock.drop()


def test_a_drainer_whose_directory_was_cleared_claims_it_anew(tmp_path: Path) -> None:
    first, second = DrainerLock(REAL, str(tmp_path)), DrainerLock(REAL, str(tmp_path))
    assert first.role(0) is Role.DRAINER
    (tmp_path / "drainer.lock").unlink()
    assert second.role(1) is Role.DRAINER
    assert first.role(10) is Role.NONE
    second.drop()


def test_a_drainer_whose_directory_was_moved_away_does_not_drain_the_one_that_came_in_its_place(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    directory.mkdir()
    first, second = DrainerLock(REAL, str(directory)), DrainerLock(REAL, str(directory))
    assert first.role(0) is Role.DRAINER
    directory.rename(tmp_path / "moved")
    directory.mkdir()
    assert second.role(1) is Role.DRAINER
    assert first.role(10) is Role.NONE
    second.drop()
    assert first.role(12) is Role.DRAINER
    first.drop()


def test_a_disk_that_fails_to_lock_costs_no_descriptors() -> None:
    fs = CrashingFileSystem()
    fs.make_directory("/state")
    lock = DrainerLock(fs, "/state")
    assert lock.role(0) is Role.DRAINER
    lock.drop()
    open_before = len(fs.open_files)
    fs.try_lock = _no_locks  # type: ignore[method-assign]
    for second in range(2, 100, 2):
        assert lock.role(second) is Role.NONE
    assert len(fs.open_files) == open_before


def _no_locks(descriptor: int) -> bool:
    raise OSError(errno.ENOLCK, "no locks")


def test_a_forked_child_neither_drains_nor_keeps_the_lock(tmp_path: Path) -> None:
    lock, other = DrainerLock(REAL, str(tmp_path)), DrainerLock(REAL, str(tmp_path))
    assert lock.role(0) is Role.DRAINER
    reading, writing = os.pipe()
    is_ready, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.write(ready, b"n" if lock.role(100) is Role.NONE else b"y")
        os.read(reading, 1)
        os._exit(0)
    assert os.read(is_ready, 1) == b"n"
    assert lock.role(1) is Role.DRAINER, "the child unlocked it"
    lock.drop()
    assert other.role(2) is Role.DRAINER
    other.drop()
    for descriptor in (reading, writing, is_ready, ready):
        os.close(descriptor)
    os.waitpid(child, 0)
