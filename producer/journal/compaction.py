"""Compaction: what nobody needs any more leaves the disk. Only the one drainer of a directory does it.

What may leave a segment:

- an event or order that is stored, forgotten or discarded, and was not sent within the last five minutes; a dead one
  stays until an operator replays or discards it
- a `sent` or receipt of a line that stands nowhere any more: an event goes before its receipt, never after
- a `sent` that a later one of the same line replaced, a deferral that a later deferral replaced
- damage, once it was offered to the quarantine

How, each a guarantee with a test of its name:

- only a sealed segment whose lock is free is touched, and it is locked meanwhile
- a segment with nothing left is removed; of one that is at least half waste, or in which a line was forgotten, the
  survivors are copied forward byte for byte into a new sealed segment, synced with its directory before the old goes
- what is removed is gone durably before anything that only spoke of it may go; where the directory cannot be synced,
  nothing is removed
- a line or segment of a later version stays, and so does every receipt, which may speak of it
- many small segments become one
- no more than 32 segments are held at once, nor the survivors of more than two full ones: descriptors and memory are
  the host's
- a segment is sealed when it is older than its age, or when a line in it was forgotten
- a crash at any step loses nothing: at worst lines stand twice. Copies of what cannot be removed do not pile up
- on a full disk removing needs no room, and copying may use the reserve
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from producer import errors
from producer import receipt as receipts
from producer.journal import quarantine, segments
from producer.journal.filesystem import NO_SPACE
from producer.journal.index import Entry, Index, SegmentView
from producer.journal.journal import Journal
from producer.receipt import State

__all__ = ["Compacted", "compact", "heal_tails", "seal_finished", "sweep_drafts"]

_LOOK_AGAIN_S = 60.0
_LOOK_AGAIN_MAX_S = 86_400.0
_MANY_SMALL = 16
_HELD_AT_ONCE = 32
_DRAFT_MAX_AGE_S = 3600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compacted:
    segments_removed: int = 0
    segments_written: int = 0
    bytes_freed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sorted:
    """A sealed segment that we hold, sorted into what stays and what goes."""

    segment: segments.Segment
    view: SegmentView
    kept: bytes  # whole lines
    waste: int
    must_go: bool  # holds text that was ordered to be forgotten
    waits: bool  # some of it may go a little later

    @property
    def is_worth_copying(self) -> bool:
        return self.must_go or self.waste >= len(self.kept)


def compact(journal: Journal, index: Index, *, now_s: float, everything: bool = False) -> Compacted:
    """One pass. The index is polled before and after. `everything`: also look at segments looked at a moment ago.

    Never raises for a segment that cannot be read, copied or removed: it stays, and is logged.
    """
    index.poll()
    looked: list[_Sorted] = []
    before = sum(view.size for view in index.views.values())
    removed = written = 0
    try:
        small = _small(journal, index)
        for view in list(index.views.values()):
            if not everything and view.looked_at_s and now_s - view.looked_at_s < _look_again_s(view):
                continue
            if not view.sealed or view.unreadable:
                continue
            view.looked_at_s = now_s
            if view not in small and not _may_hold_waste(view, now_s):
                continue
            sorted_ = _sort(journal, index, view, now_s)
            if sorted_ is None:
                continue
            if not sorted_.kept:
                looked.append(sorted_)  # to be closed
                # What the listing did not show may come back with a crash until this, and need a receipt in here.
                journal.fs.sync_directory(journal.directory)
                removed += _remove(journal, [sorted_])
                looked.pop().segment.close()
                index.poll()  # its lines are gone now: receipts of them, in the segments to come, are waste
            elif sorted_.waits or not (sorted_.is_worth_copying or view in small):
                sorted_.segment.close()
            else:
                looked.append(sorted_)
            if len(looked) >= _HELD_AT_ONCE or sum(len(one.kept) for one in looked) >= journal.segment_max_bytes:
                done = _rewrite(journal, looked)
                written, removed = written + done[0], removed + done[1]
        done = _rewrite(journal, looked)
        written, removed = written + done[0], removed + done[1]
    except OSError as problem:
        _log_failure("remove", problem)
    finally:
        for one in looked:
            one.segment.close()
        index.poll()
    freed = before - sum(view.size for view in index.views.values())
    return Compacted(segments_removed=removed, segments_written=written, bytes_freed=max(0, freed))


def _rewrite(journal: Journal, looked: list[_Sorted]) -> tuple[int, int]:
    """Copy survivors forward, remove their sources and let all go; segments written, and removed.

    Raises `OSError` as `_remove` does; what is held then is for the caller to close.
    """
    written = removed = 0
    for group in _groups(looked, journal.segment_max_bytes):
        if len(group) == 1 and not group[0].is_worth_copying:
            continue
        copy = _copy_forward(journal, group)
        if copy is None:
            continue
        gone = _remove(journal, group)
        if gone:
            written += 1
            removed += gone
        else:
            _take_back(journal, copy, group)
    while looked:
        looked.pop().segment.close()
    return written, removed


def _take_back(journal: Journal, copy: str, group: Sequence[_Sorted]) -> None:
    """Remove a copy none of whose sources could be removed: the next pass makes one more.

    Each source is looked for: an unlink that failed may have been done, and then the copy is the only one.
    """
    try:
        all_stand = all(one.segment.stands_here() for one in group)
    except OSError:
        return
    if all_stand:
        _remove_if_there(journal, copy)


def _look_again_s(view: SegmentView) -> float:
    """Longer and longer when it cannot be removed: each time its survivors may be copied once more, to stay."""
    return min(_LOOK_AGAIN_S * 2.0 ** min(view.failed_removals, 16), _LOOK_AGAIN_MAX_S)


def _may_hold_waste(view: SegmentView, now_s: float) -> bool:
    return view.others > 0 or not view.entries or any(entry.is_removable(now_s) for entry in view.entries)


def _small(journal: Journal, index: Index) -> list[SegmentView]:
    """Sealed segments worth joining, when there are many."""
    small_bytes = journal.segment_max_bytes // 4
    found = [view for view in index.views.values() if view.sealed and not view.unreadable and view.size < small_bytes]
    return found if len(found) >= _MANY_SMALL else []


def _sort(journal: Journal, index: Index, view: SegmentView, now_s: float) -> _Sorted | None:
    """Hold the segment and sort it; None when it is not to be had."""
    try:
        segment = segments.Segment.open(journal.fs, journal.directory, view.name, journal_id=journal.journal_id)
    except OSError:
        return None
    held: _Sorted | None = None
    try:
        if segment.hold_sealed():
            held = _sort_held(journal, index, view, segment, now_s)
    except OSError:
        index.failed_reads += 1
    finally:
        if held is None:
            segment.close()
    return held


def _sort_held(journal: Journal, index: Index, view: SegmentView, segment: segments.Segment, now_s: float) -> _Sorted:
    # Pieces hold their bytes; a segment is bounded, and so is what is kept of it.
    pieces = list(segment.reader().pieces(to_end=True))
    going: Counter[bytes] = Counter()
    for piece in pieces:
        if piece.line is not None and piece.line.kind in ("event", "order"):
            entry = index.entries.get(bytes.fromhex(piece.line.hash))
            if entry is not None and entry.is_removable(now_s):
                going[entry.hash] += 1
    kept: list[bytes] = []
    waste, must_go, waits = 0, False, False
    for piece in pieces:
        line = piece.line
        if piece.is_later:
            kept.append(piece.raw)
            continue
        if line is None:
            quarantine.keep(journal.fs, journal.directory, piece.raw)
            waste += len(piece.raw)
            continue
        hash_ = _hash_of(line.hash if line.kind in ("event", "order") else line.body.get("lineHash"))
        entry = index.entries.get(hash_)
        if line.kind in ("event", "order"):
            stays = hash_ not in going
            if entry is not None and entry.state is State.FORGOTTEN:
                must_go = True
            waits |= stays and entry is not None and entry.is_terminal and entry.state is not State.DEAD
        elif entry is None or entry.copies <= going[hash_]:
            stays = not index.complete
        else:
            stays = _is_needed(entry, line.kind, segments.ms_of_iso(line.appended_at), line.id, line.body)
        if stays:
            kept.append(piece.raw)
        else:
            waste += len(piece.raw) + 1
    return _Sorted(
        segment=segment,
        view=view,
        kept=b"".join(raw + b"\n" for raw in kept),
        waste=waste,
        must_go=must_go and bool(going),
        waits=waits,
    )


def _hash_of(text: object) -> bytes:
    try:
        return bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""


def _is_needed(entry: Entry, kind: str, at_ms: int, id_: str, body: object) -> bool:
    if kind == "sent":
        return at_ms >= entry.sent_ms
    try:
        return entry.needs(at_ms, receipts.of_body(id_, body))  # type: ignore[arg-type]
    except errors.DamagedLine:
        return False


def _groups(looked: Sequence[_Sorted], max_bytes: int) -> list[list[_Sorted]]:
    groups: list[list[_Sorted]] = []
    room = 0
    for one in looked:
        if not groups or len(one.kept) > room:
            groups.append([])
            room = max_bytes
        groups[-1].append(one)
        room -= len(one.kept)
    return groups


def _copy_forward(journal: Journal, group: Sequence[_Sorted]) -> str | None:
    """The path of the new sealed segment in which the survivors stand, durable; None when they do not.

    It is named as old as the oldest source, so that old lines stay first.
    """
    fs, directory = journal.fs, journal.directory
    data = b"".join(one.kept for one in group)
    at_ms = min(segments.created_ms(one.segment.name) for one in group)
    draft = f"{directory}/compact.{os.urandom(4).hex()}.tmp"
    target = f"{directory}/{segments.segment_name(at_ms)}"
    whole = segments.header(journal.journal_id, at_ms) + data + segments.footer(journal.now_ms())
    while True:
        try:
            if journal.budget.used_bytes() + len(whole) > journal.budget.max_bytes:
                return None
            _write_draft(journal, draft, whole)
            fs.rename(draft, target)
            fs.sync_directory(directory)
        except OSError as problem:
            for path in (draft, target):  # each pass would leave one more
                _remove_if_there(journal, path)
            if problem.errno in NO_SPACE and journal.budget.spend(len(whole)):
                continue
            _log_failure("copy", problem)
            return None
        return target


def _remove_if_there(journal: Journal, path: str) -> None:
    try:
        journal.fs.unlink(path)
    except OSError:
        pass


def _log_failure(what: str, problem: OSError) -> None:
    _log.warning(
        "compaction could not %s a segment (errno %s); it stays and is tried again",
        what,
        problem.errno,
        extra={"action": "journal_compact_failed"},
    )


def _write_draft(journal: Journal, draft: str, data: bytes) -> None:
    descriptor = journal.fs.create(draft)
    try:
        journal.fs.write_all(descriptor, data)
        journal.fs.sync(descriptor)
    finally:
        journal.fs.close(descriptor)


def _remove(journal: Journal, group: Sequence[_Sorted]) -> int:
    """Remove segments that we hold, durably: what is removed next may be a receipt of a line in these.

    Raises `OSError` when they are gone and the directory cannot be synced.
    """
    removed = 0
    for one in group:
        try:
            journal.fs.unlink(f"{journal.directory}/{one.segment.name}")
            removed += 1
        except OSError as problem:
            one.view.failed_removals += 1
            _log_failure("remove", problem)
    if removed:
        journal.fs.sync_directory(journal.directory)
    return removed


def seal_finished(journal: Journal, index: Index) -> int:
    """Seal segments that nobody holds and that are too old, or in which a line was forgotten. How many were sealed."""
    sealed = 0
    for view in index.views.values():
        if view.sealed or view.unreadable:
            continue
        if journal.is_old(view.name) or any(entry.state is State.FORGOTTEN for entry in view.entries):
            sealed += _with_held(journal, view, lambda segment: segment.seal(journal.now_ms()))
    return sealed


def heal_tails(journal: Journal, index: Index) -> int:
    """End torn tails of segments that nobody holds with a newline, so that they are read. How many were healed."""
    torn = [view for view in index.views.values() if view.has_tail and not view.sealed]
    return sum(_with_held(journal, view, lambda segment: segment.heal()) for view in torn)


def _with_held(journal: Journal, view: SegmentView, act: Callable[[segments.Segment], None]) -> bool:
    try:
        segment = segments.Segment.open(journal.fs, journal.directory, view.name, journal_id=journal.journal_id)
    except OSError:
        return False
    try:
        if not segment.hold():
            return False
        act(segment)
        segment.let_go()
    except OSError:
        return False
    finally:
        segment.close()
    return True


def sweep_drafts(journal: Journal) -> int:
    """Remove drafts that a crash left, after an hour. How many were removed."""
    try:
        listed = journal.fs.listing(journal.directory)
    except OSError:
        return 0
    removed = 0
    for name, _ in listed:
        if not name.endswith(".tmp"):
            continue
        path = f"{journal.directory}/{name}"
        try:
            age_s = journal.now_ms() / 1000 - journal.fs.modified_ns(path) / 1e9
            if abs(age_s) > _DRAFT_MAX_AGE_S:  # the clock may have gone back
                journal.fs.unlink(path)
                removed += 1
        except OSError:
            continue
    return removed
