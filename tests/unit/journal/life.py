"""One life of a journal, everything in it that touches a disk, and what must hold after it, whatever happened in it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from producer import errors
from producer.journal import Journal, compaction, quarantine
from producer.journal.groups import Waiting
from producer.journal.index import Index
from producer.journal.line import Line
from producer.receipt import State
from tests.unit.journal.crashing_filesystem import CrashingFileSystem
from tests.unit.journal.support import LONG_S, Clock, event, open_journal, order, receipt_of, seal_all

REFUSALS = (errors.JournalFailed, errors.JournalFull, errors.SyncUnknown)
DIRECTORY = "/state/journal"
JUNK = b"junk that is no line"


@dataclass
class History:
    """What the host was told."""

    offered: int = 0
    acknowledged: set[str] = field(default_factory=set)
    settled: dict[str, bool] = field(default_factory=dict)  # text of a line -> its terminal receipt was acknowledged


def live(fs: CrashingFileSystem, clock: Clock, history: History, *, first: int = 0) -> None:
    """What hosts and a drainer do, giving up on refusals.

    Append alone and together, publish, get receipts, rotate, heal, quarantine, compact by copying and by removing, fill
    the disk and spend the reserve, lose reserve and id and make them again, and append on.
    """
    fs.now_ns = lambda: int(clock() * 1e9)
    with open_journal(fs, clock, segment_max_bytes=900, reserve_bytes=2000) as journal:
        stored = [append(journal, history, event(first)), *together(journal, history, first + 1, 3)]
        ordered = append(journal, history, order(first + 7))
        settle(journal, history, [*stored[:2], ordered])
        draft = f"{DIRECTORY}/compact.0123.tmp"
        leave(fs, draft, b"x")
        damage(fs, journal, JUNK + b"\n")
        damage(fs, journal, JUNK[::-1])  # a torn tail
        clock.advance(compaction._DRAFT_MAX_AGE_S + 1)
        drain(journal, clock)
        stored += [append(journal, history, event(first + number)) for number in range(4, 7)]
        settle(journal, history, stored[3:5])
        fs.capacity = fs._used() + 200
        append(journal, history, event(first + 8, length=1000))
        settle(journal, history, stored[5:6])
        drain(journal, clock)
    fs.capacity = None
    leave(fs, f"{DIRECTORY}/journal-id", b"damaged")
    leave(fs, f"{DIRECTORY}/quarantine/{quarantine.name_of(JUNK * 2)}", JUNK)  # a part of it, left by a crash
    leave(fs, f"{DIRECTORY}/reserve", None)
    with open_journal(fs, clock, segment_max_bytes=900, reserve_bytes=2000) as journal:
        damage(fs, journal, JUNK * 2 + b"\n")
        drain(journal, clock)
        leave(fs, f"{DIRECTORY}/journal-id", None)
        append(journal, history, event(first + 9))


def append(journal: Journal, history: History, what: dict[str, object]) -> Line | None:
    history.offered += 1
    try:
        line = journal.append_order(what) if "nonce" in what else journal.append_event(what)
    except REFUSALS:
        return None
    history.acknowledged.add(line.text)
    return line


def together(journal: Journal, history: History, first: int, count: int) -> list[Line | None]:
    """What several threads append at once, as the one group that the writing thread gets."""
    events = [event(first + number) for number in range(count)]
    lines = [journal._line("event", str(one["eventId"]), {"event": one}) for one in events]
    waiting = [Waiting(f"{line.text}\n".encode(), is_event=True, is_privileged=False) for line in lines]
    history.offered += count
    with journal._groups._writing:
        journal._commit(waiting, True)
    history.acknowledged |= {line.text for line, one in zip(lines, waiting, strict=True) if one.problem is None}
    return [line if one.problem is None else None for line, one in zip(lines, waiting, strict=True)]


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


def drain(journal: Journal, clock: Clock) -> Index:
    """What a drainer does now and then."""
    index = Index(journal, monotonic=clock, on_damage=lambda data: quarantine.keep(journal.fs, journal.directory, data))
    index.poll()
    for entry in list(index.open_entries()):
        with contextlib.suppress(OSError):
            index.read_line(entry)
    with contextlib.suppress(errors.JournalFailed):
        list(journal.scan())
    compaction.heal_tails(journal, index)
    seal_all(journal)
    compaction.compact(journal, index, now_s=clock() + LONG_S, everything=True)
    compaction.sweep_drafts(journal)
    journal.budget.refill()
    return index


def leave(fs: CrashingFileSystem, path: str, data: bytes | None) -> None:
    """Put a file there, or take it away, by somebody else's hand."""
    try:
        folder, name = fs._parent(path)
    except FileNotFoundError:
        return
    for names in (folder.names, folder.durable):
        names.pop(name, None)
    if data is not None:
        file = fs.file(data)
        folder.names[name] = folder.durable[name] = file


def damage(fs: CrashingFileSystem, journal: Journal, junk: bytes) -> None:
    """Junk behind the last line of the youngest segment."""
    try:
        found = [name for name in fs._parent(f"{DIRECTORY}/x")[0].names if name.startswith("segment-")]
    except FileNotFoundError:
        return
    if found and not fs.crashed:
        fs.damage(f"{DIRECTORY}/{max(found)}", lambda data: data + junk)


def check(fs: CrashingFileSystem, clock: Clock, history: History) -> None:
    """Nothing acknowledged is gone without a receipt, no receipt before its line, and the journal goes on."""
    fs.stop_failing()
    fs.capacity = None
    with open_journal(fs, clock) as journal:
        found = list(journal.scan())
        lines = [located.line for located in found if located.line.kind in ("event", "order")]
        receipted = {located.line.body["lineHash"] for located in found if located.line.kind == "receipt"}
        assert len({line.text for line in lines}) <= history.offered
        missing = history.acknowledged - {line.text for line in lines}
        assert missing <= set(history.settled), "an acknowledged line without a receipt is gone"
        for line in lines:
            assert not history.settled.get(line.text) or line.hash in receipted, "a receipt went before its line"
        again = append(journal, history, event(99 + history.offered))
        assert again is not None, "the journal does not go on"
        assert again.text in {located.line.text for located in journal.scan()}
    assert not fs.open_files, "descriptors are left open"


def check_end(fs: CrashingFileSystem, clock: Clock, history: History) -> None:
    """Once everything has its receipt nothing is left, and no damage is found again and again."""
    with open_journal(fs, clock) as journal:
        left = {
            located.line.text: located.line for located in journal.scan() if located.line.kind in ("event", "order")
        }
        journal.append_receipts([receipt_of(line) for line in left.values()])
        for _ in range(3):
            index = drain(journal, clock)
        assert journal.segment_names() == {}, "something stays for ever"
        assert index.damaged == 0, "damage is found again and again"
        assert not [name for name, _ in fs.listing(DIRECTORY) if name.endswith(".tmp")] or clock() < 0
    assert not fs.open_files, "descriptors are left open"
