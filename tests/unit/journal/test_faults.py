"""One life of a journal, with every single operation failing in turn, and the machine stopping at every one."""

from __future__ import annotations

import ast
import errno
from collections import Counter
from pathlib import Path

import pytest

from producer import errors
from producer.journal import filesystem
from tests.unit.journal.crashing_filesystem import Crash, CrashingFileSystem
from tests.unit.journal.life import REFUSALS, History, check, check_end, live
from tests.unit.journal.support import Clock, event, open_journal, texts

CODES = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EINTR]
WINDOWS = [1, 2, 3, 12, 10_000]  # for how many operations it fails

# Calls whose failure changes nothing that the journal could do about it.
NEVER_FAILS = {
    "close": "the kernel takes the descriptor back all the same, and what matters was synced before",
    "is_directory": "answers False",
    "real_path": "answers the path",
}


def undisturbed() -> tuple[CrashingFileSystem, History]:
    fs, history = CrashingFileSystem(), History()
    live(fs, Clock(), history)
    return fs, history


def test_undisturbed_everything_is_acknowledged_and_compacted() -> None:
    fs, history = undisturbed()
    assert len(history.acknowledged) == 9, "all but the one for which there was no room"
    assert sum(history.settled.values()) == 6
    with open_journal(fs) as journal:
        assert set(texts(journal)) == history.acknowledged - set(history.settled)
        assert journal.budget.reserve_length() == 2000
        assert fs.listing("/state/journal/quarantine"), "the junk was not kept"
    check(fs, Clock(), history)
    check_end(fs, Clock(), history)


def failing(
    number: int, *, code: int, window: int, call: tuple[tuple[str, int], int] | None = None
) -> tuple[CrashingFileSystem, bool]:
    """A life in which this operation fails, and its sequels; whether something was refused."""
    fs, clock, history = CrashingFileSystem(number), Clock(), History()
    fs.fail_at, fs.fail_call = (None, call) if call else (number, None)
    fs.fail_with, fs.fail_for = code, window
    try:
        live(fs, clock, history)
    except errors.JournalFailed:
        pass  # could not be opened, or not be read
    except OSError:
        fs.open_files.clear()  # a reader of the tests gave up in the middle
    refused = len(history.acknowledged) < 9
    check(fs, clock, history)
    fs.crash()
    check(fs, clock, history)
    clock.advance(7200)
    check_end(fs, clock, history)
    return fs, refused


def test_whichever_call_of_the_file_system_fails_nothing_acknowledged_is_lost() -> None:
    """Every call in the journal's code fails here, alone or with what follows; every operation in the slow tests."""
    refused, failed = 0, set()
    for turn, call in enumerate(first_and_last_of_each_call()):
        code, window = CODES[turn % len(CODES)], WINDOWS[turn // 2 % len(WINDOWS)]
        fs, was_refused = failing(turn, call=call, code=code, window=window)
        refused += was_refused
        failed |= fs.failed
    assert refused, "no failure reached an append"
    never = [
        (file, line, name)
        for file, line, end, name in calls_of_the_file_system()
        if name not in NEVER_FAILS and not any(file == where and line <= at <= end for where, at in failed)
    ]
    assert never == []


def first_and_last_of_each_call() -> list[tuple[tuple[str, int], int]]:
    fs = CrashingFileSystem()
    fs.callers = []
    live(fs, Clock(), History())
    often = Counter(fs.callers)
    return sorted({*dict.fromkeys(often, 1).items(), *often.items()})


def calls_of_the_file_system() -> list[tuple[str, int, int, str]]:
    """File, first and last line and operation of each call through the seam."""
    found = []
    for path in sorted(Path(filesystem.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            receiver = ast.unparse(node.func.value).rpartition(".")[2]
            if receiver in ("fs", "_fs"):
                found.append((path.name, node.lineno, node.end_lineno or 0, node.func.attr))
    assert len(found) > 50
    return found


EVERY = [
    *(pytest.param(1, seed, marks=pytest.mark.slow) for seed in range(10)),
    (11, 0),
]  # every operation, or each eleventh


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_whichever_operations_fail_in_whichever_way_nothing_acknowledged_is_lost(code: int, window: int) -> None:
    for number in range(len(undisturbed()[0].operations)):
        failing(number, code=code, window=window)


@pytest.mark.parametrize(("step", "seed"), EVERY)
def test_at_whichever_operation_the_machine_stops_nothing_acknowledged_is_lost(step: int, seed: int) -> None:
    operations = len(undisturbed()[0].operations)
    for number in range(seed % step, operations, step):
        fs, clock, history = stopped(seed * 10_000 + number, number)
        fs.crash()
        check(fs, clock, history)
        fs.crash()  # and again, without anything having been synced since
        check(fs, clock, history)
        clock.advance(7200)
        check_end(fs, clock, history)


@pytest.mark.parametrize(("step", "seed"), EVERY)
def test_at_whichever_operation_a_process_is_killed_what_the_next_one_acknowledges_survives_power_loss(
    step: int, seed: int
) -> None:
    operations = len(undisturbed()[0].operations)
    for number in range(seed % step, operations, step):
        fs, clock, history = stopped(seed * 10_000 + number, number)
        fs.kill()
        fs.stop_failing()
        fs.capacity = None
        live(fs, clock, history, first=20)
        assert len(history.acknowledged) >= 9, "the next process was refused"
        fs.crash()
        check(fs, clock, history)
        clock.advance(7200)
        check_end(fs, clock, history)


def stopped(seed: int, number: int) -> tuple[CrashingFileSystem, Clock, History]:
    """A life that ends at this operation."""
    fs, clock, history = CrashingFileSystem(seed), Clock(), History()
    fs.crash_at = number
    try:
        live(fs, clock, history)
    except (Crash, errors.JournalFailed):
        pass
    return fs, clock, history


def test_writes_that_take_a_part_at_a_time_lose_nothing() -> None:
    for seed in range(5):
        fs, clock, history = CrashingFileSystem(seed), Clock(), History()
        fs.short_writes = True
        live(fs, clock, history)
        assert len(history.acknowledged) == 9
        fs.crash()
        check(fs, clock, history)


def test_a_refused_append_leaves_no_part_of_its_line() -> None:
    for number in range(len(undisturbed()[0].operations)):
        fs, clock = CrashingFileSystem(number), Clock()
        with open_journal(fs, clock) as journal:
            journal.append_event(event(0))
            start = len(fs.operations)
            fs.fail_at, fs.fail_with = start + number, errno.ENOSPC
            try:
                journal.append_event(event(1))
            except REFUSALS:
                pass
            else:
                if start + number >= len(fs.operations):
                    return  # beyond the append's last operation
            fs.stop_failing()
            whole = sum(b"\n" in fs.contents(f"{journal.directory}/{name}")[-1:] for name in journal.segment_names())
            assert whole == len(journal.segment_names())
            assert journal.status().damaged == 0
