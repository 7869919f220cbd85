"""One history of a journal, with every single operation failing in turn, and the machine stopping at every one."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

import pytest

from producer import errors
from producer.journal import Journal, compaction
from producer.journal.index import Index
from producer.journal.line import Line
from producer.receipt import State
from tests.unit.journal.crashing_filesystem import Crash, CrashingFileSystem
from tests.unit.journal.support import LONG_S, Clock, event, open_journal, order, receipt_of, seal_all, texts

REFUSALS = (errors.JournalFailed, errors.JournalFull, errors.SyncUnknown)


@dataclass
class History:
    """What the host was told."""

    offered: int = 0
    acknowledged: set[str] = field(default_factory=set)
    settled: dict[str, bool] = field(default_factory=dict)  # text of a line -> its terminal receipt was acknowledged


def live(fs: CrashingFileSystem, clock: Clock, history: History) -> None:
    """What a host does, giving up on errors: append, publish, get receipts, rotate, compact, append again."""
    with open_journal(fs, clock, segment_max_bytes=900, reserve_bytes=2000) as journal:
        stored = [append(journal, history, event(number)) for number in range(4)]
        ordered = append(journal, history, order(7))
        settle(journal, history, [*stored[:2], ordered])
        seal_all(journal)
        compact_all(journal, clock)
        stored += [append(journal, history, event(number)) for number in range(4, 7)]
        settle(journal, history, stored[3:5])
        seal_all(journal)
        compact_all(journal, clock)
        append(journal, history, event(8))


def append(journal: Journal, history: History, what: dict[str, object]) -> Line | None:
    history.offered += 1
    try:
        line = journal.append_order(what) if "nonce" in what else journal.append_event(what)
    except REFUSALS:
        return None
    history.acknowledged.add(line.text)
    return line


def settle(journal: Journal, history: History, appended: list[Line | None]) -> None:
    lines = [line for line in appended if line is not None]
    try:
        journal.append_sent(lines)
    except REFUSALS:
        pass
    history.settled |= dict.fromkeys([line.text for line in lines], False)
    try:
        journal.append_receipts([receipt_of(line) for line in lines[1:]])
        journal.append_receipts([receipt_of(line, State.FORGOTTEN) for line in lines[:1]])
    except REFUSALS:
        return
    history.settled |= dict.fromkeys([line.text for line in lines], True)


def compact_all(journal: Journal, clock: Clock) -> None:
    index = Index(journal, monotonic=clock)
    index.poll()
    compaction.heal_tails(journal, index)
    compaction.compact(journal, index, now_s=clock() + LONG_S, everything=True)


def check(fs: CrashingFileSystem, clock: Clock, history: History) -> None:
    """What must hold afterwards, whatever happened."""
    fs.stop_failing()
    with open_journal(fs, clock) as journal:
        found = list(journal.scan())
        lines = [located.line for located in found if located.line.kind in ("event", "order")]
        receipted = {located.line.body["lineHash"] for located in found if located.line.kind == "receipt"}
        assert len({line.text for line in lines}) <= history.offered
        missing = history.acknowledged - {line.text for line in lines}
        assert missing <= set(history.settled), "an acknowledged line without a receipt is gone"
        for line in lines:
            assert not history.settled.get(line.text) or line.hash in receipted, "a receipt went before its line"
        again = journal.append_event(event(99))
        assert again.text in texts(journal), "the journal does not go on"
    history.offered += 1
    assert not fs.open_files, "descriptors are left open"


def undisturbed() -> tuple[CrashingFileSystem, History]:
    fs, history = CrashingFileSystem(), History()
    live(fs, Clock(), history)
    return fs, history


def test_undisturbed_everything_is_acknowledged_and_compacted() -> None:
    fs, history = undisturbed()
    assert len(history.acknowledged) == 9
    assert sum(history.settled.values()) == 5
    with open_journal(fs) as journal:
        assert set(texts(journal)) == history.acknowledged - set(history.settled)
    check(fs, Clock(), history)


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.slow)], ids=["EIO", "ENOSPC"])
def test_whichever_operation_fails_nothing_acknowledged_is_lost(code: int) -> None:
    operations = len(undisturbed()[0].operations)
    refused = 0
    for number in range(operations):
        fs, clock, history = CrashingFileSystem(number), Clock(), History()
        fs.fail_at, fs.fail_with = number, code
        try:
            live(fs, clock, history)
        except (errors.JournalFailed, OSError):
            fs.open_files.clear()  # could not be opened, or could not be listed by a reader
        refused += len(history.acknowledged) < 9
        check(fs, clock, history)
        fs.crash()
        check(fs, clock, history)
    assert refused, "no failure reached an append"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_at_whichever_operation_the_machine_stops_nothing_acknowledged_is_lost(seed: int) -> None:
    operations = len(undisturbed()[0].operations)
    for number in range(operations):
        fs, clock, history = CrashingFileSystem(seed * 10_000 + number), Clock(), History()
        fs.crash_at = number
        try:
            live(fs, clock, history)
        except (Crash, errors.JournalFailed):
            pass
        fs.crash()
        check(fs, clock, history)
        fs.crash()  # and again, without anything having been synced since
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
