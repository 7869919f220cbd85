"""Who drains a journal, on a real file system."""

from __future__ import annotations

import os
from pathlib import Path

from producer.drainer import SILENT_AFTER_S, DrainerLock, Role
from producer.journal.filesystem import REAL


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


def test_a_drainer_whose_directory_was_cleared_claims_it_anew(tmp_path: Path) -> None:
    first, second = DrainerLock(REAL, str(tmp_path)), DrainerLock(REAL, str(tmp_path))
    assert first.role(0) is Role.DRAINER
    (tmp_path / "drainer.lock").unlink()
    assert second.role(1) is Role.DRAINER
    assert first.role(10) is Role.NONE
    second.drop()


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
