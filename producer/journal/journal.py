"""The journal: lines become durable here before anybody is told that they are.

    <directory>/                 0700
      journal-id                 32 random hex digits, made once
      segment-….jsonl            0600, see producer.journal.segments
      reserve                    preallocated bytes, given back to a full disk for orders, receipts and compaction
      quarantine/                damaged bytes, see producer.journal.quarantine
      prompts/                   see producer.journal.prompts
      drainer.lock               see producer.drainer

Guarantees, each with a test of its name:

- when `append_event`, `append_order` or `append_receipts` returns, the line survives kill -9 and power loss: file and
  directory were synced after it was written
- threads of a process share one sync; processes never wait for one another (a locked segment is passed over)
- a failed sync is never tried again on the same file: the segment is closed for good and its lines are rewritten to a
  new one; when that fails too, nothing was acknowledged, and what was not may still be found and delivered
- the caller waits at most `sync_budget_s` for the disk (`errors.SyncUnknown`), and not at all behind a disk that has
  already been silent for so long; what waits for it is bounded (`errors.JournalFailed`)
- events stop (`errors.JournalFull`) `reserve_bytes` and a headroom for `sent` short of `max_bytes`; orders and receipts
  go on to `max_bytes`; on a full disk these spend the preallocated reserve
- a refused append leaves no part of its line; capture resumes by itself when there is room
- a forked child neither keeps a lock of its parent nor writes what its parent had queued
- nothing is kept in memory about lines: positions are found by scanning

A lock is held only while a group is written and synced, so an idle or frozen host keeps no segment from being sealed
and compacted for long. Threads are daemons: a host that exits does not wait for the disk.
"""

from __future__ import annotations

import hashlib
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from producer import errors, identity
from producer.journal import line as lines
from producer.journal import segments
from producer.journal.budget import Budget
from producer.journal.directory import Directory
from producer.journal.filesystem import NO_SPACE, REAL, FileSystem
from producer.journal.groups import GroupWriter, Waiting

if TYPE_CHECKING:
    from producer.journal.index import JournalStatus
    from producer.receipt import Receipt

__all__ = ["Journal", "Located"]

_CANDIDATES = 16  # segments of others tried before a new one is made

_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


class Located(NamedTuple):
    """A line and where it stands. The place is good until the next compaction."""

    line: lines.Line
    segment: str
    offset: int


class _Left(NamedTuple):
    """What a write did not bring to the disk, and why; no problem: all was written."""

    waiting: Sequence[Waiting]
    problem: OSError | None


class Journal:
    """An open journal. Safe from many threads, from many processes, and in a forked child."""

    def __init__(
        self,
        directory: Directory,
        *,
        max_bytes: int,
        reserve_bytes: int,
        segment_max_bytes: int,
        segment_max_age_s: float,
        sync_budget_s: float,
        fs: FileSystem,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._directory = directory
        self.directory = directory.path
        self.journal_id = directory.journal_id
        self.segment_max_bytes = segment_max_bytes
        self.segment_max_age_s = segment_max_age_s
        self.sync_budget_s = sync_budget_s
        self.fs = fs
        self.full = 0  # lines refused for want of room
        self.failed = 0  # lines the disk refused
        self.failed_syncs = 0
        self._clock = clock
        self._receipt_stamp_ms = 0
        self.budget = Budget(fs, self.directory, max_bytes=max_bytes, reserve_bytes=reserve_bytes, monotonic=monotonic)
        self._groups = GroupWriter(self._commit, budget_s=sync_budget_s, monotonic=monotonic)
        self._start_fresh()
        _journals.add(self)

    def _start_fresh(self) -> None:
        """The state that a forked child may not share with its parent."""
        self._current: segments.Segment | None = None
        self._passed_over: set[str] = set()  # segments seen sealed
        self._abandoned: set[str] = set()  # segments closed after a failure

    # Opening and closing

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        max_bytes: int,
        reserve_bytes: int,
        segment_max_bytes: int,
        segment_max_age_s: float = 3600.0,
        sync_budget_s: float = 2.0,
        fs: FileSystem = REAL,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Journal:
        """The journal of this directory; made (0700, its id and reserve) when it is not there.

        Cheap: no segment is read. Raises `errors.JournalFailed` when the directory cannot be made or read.
        """
        path = os.path.abspath(os.fspath(directory))  # noqa: PTH100
        place = Directory(fs, path)
        journal = cls(
            place,
            max_bytes=max_bytes,
            reserve_bytes=reserve_bytes,
            segment_max_bytes=segment_max_bytes,
            segment_max_age_s=segment_max_age_s,
            sync_budget_s=sync_budget_s,
            fs=fs,
            clock=clock,
            monotonic=monotonic,
        )
        if place.made:
            journal.budget.refill()
        return journal

    def close(self) -> None:
        """Let queued lines reach the disk, for at most `sync_budget_s`. Later appends raise `errors.JournalFailed`."""
        if self._groups.close():
            self._drop_current()  # else the stuck thread has it, and the end of the process closes it

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call it, on the writing thread, after lines were written: it may only wake somebody."""
        self._groups.add_listener(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._groups.remove_listener(listener)

    # Appending

    def append_event(
        self, event: Mapping[str, Any], *, line_key: str | None = None, session_key: str | None = None
    ) -> lines.Line:
        """Return once the event's line is durable.

        Raises `errors.ContractViolation` (no id, or nothing JSON can hold), `errors.JournalFull` and
        `errors.JournalFailed` (not captured: count it and go on), `errors.SyncUnknown` (it may still land).
        """
        id_ = event.get("eventId") or event.get("factId")
        if not isinstance(id_, str):
            raise errors.ContractViolation("has neither eventId nor factId", field="event")
        body: dict[str, Any] = {"event": dict(event)}
        if line_key is not None:
            body["lineKey"] = line_key
        if session_key is not None:
            body["sessionKey"] = session_key
        line = self._line("event", id_, body)
        self._append([line], is_event=True)
        return line

    def append_order(self, order: Mapping[str, Any]) -> lines.Line:
        """Return once the order's line is durable; its id is the sha256 of the order. May use the reserve.

        Raises as `append_event`.
        """
        id_ = hashlib.sha256(identity.canonical_json(dict(order)).encode("utf-8", "surrogatepass")).hexdigest()
        line = self._line("order", id_, {"order": dict(order)})
        self._append([line], is_privileged=True)
        return line

    def append_sent(self, sent: Iterable[lines.Line]) -> None:
        """Write down that these lines are being published. Written, not synced. Raises as `append_event`."""
        self._append([self._line("sent", of.id, {"lineHash": of.hash}) for of in sent], must_sync=False)

    def append_receipts(self, receipts: Iterable[Receipt]) -> None:
        """Return once they are durable. Uses the reserve. Raises as `append_event`.

        Their stamps grow, and are later than every line this process has scanned: their order is known after a restart.
        """
        made = []
        for receipt in receipts:
            self._receipt_stamp_ms = max(self._receipt_stamp_ms + 1, self.now_ms())
            made.append(self._line("receipt", receipt.id, receipt.body(), at_ms=self._receipt_stamp_ms))
        self._append(made, is_privileged=True)

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    def saw_receipt(self, at_ms: int) -> None:
        """Receipts appended from now on are later than this one."""
        self._receipt_stamp_ms = max(self._receipt_stamp_ms, at_ms)

    def _line(self, kind: str, id_: str, body: Mapping[str, Any], *, at_ms: int | None = None) -> lines.Line:
        appended_at = segments.iso_of_ms(self.now_ms() if at_ms is None else at_ms)
        text = lines.encode(kind=kind, id=id_, appended_at=appended_at, body=body)
        return lines.Line(kind=kind, id=id_, appended_at=appended_at, body=body, text=text)

    def _append(
        self, made: Sequence[lines.Line], *, is_event: bool = False, is_privileged: bool = False, must_sync: bool = True
    ) -> None:
        if not made:
            return
        data = "".join(f"{line.text}\n" for line in made).encode("ascii")
        self._groups.write(Waiting(data, is_event=is_event, is_privileged=is_privileged), must_sync=must_sync)

    # Writing, on the thread of the group writer

    def _commit(self, waiting: Sequence[Waiting], must_sync: bool) -> None:
        """Make a group durable, or give each of its lines its problem."""
        try:
            self._commit_or_refuse(waiting, must_sync)
        except OSError as problem:
            self._refuse(waiting, problem)
        except Exception as problem:  # noqa: BLE001
            # The edge of the writing thread: whoever waits must get an answer, and the next group its chance.
            _warn(
                f"a write failed unexpectedly ({type(problem).__name__}); its lines are refused", "journal_write_failed"
            )
            self._refuse(waiting, problem)
            self._drop_current()

    def _commit_or_refuse(self, waiting: Sequence[Waiting], must_sync: bool) -> None:
        fitting = self.budget.admit(waiting)
        self._refuse_full([one for one in waiting if one not in fitting])
        left = self._write(fitting, must_be_new=False, must_sync=must_sync)
        if left.problem is not None and left.problem.errno not in NO_SPACE:
            left = self._write(left.waiting, must_be_new=True, must_sync=must_sync)
        while left.problem is not None and left.problem.errno in NO_SPACE:
            self._refuse_full([one for one in left.waiting if not one.is_privileged])
            privileged = [one for one in left.waiting if one.is_privileged]
            if not privileged or not self.budget.spend(sum(len(one.data) for one in privileged)):
                self._refuse_full(privileged)
                return
            # In a new one: a sync that found no room may not be tried again on the same file.
            left = self._write(privileged, must_be_new=True, must_sync=must_sync)
        if left.problem is not None:
            self._refuse(left.waiting, left.problem)

    def _write(self, waiting: Sequence[Waiting], *, must_be_new: bool, must_sync: bool) -> _Left:
        """Write into one segment and sync it; what is left when the disk refuses, and why."""
        if not waiting:
            return _Left([], None)
        problem: OSError | None = None
        written = 0
        try:
            segment = self._take(sum(len(one.data) for one in waiting), must_be_new=must_be_new)
        except OSError as refusal:
            return _Left(waiting, refusal)
        is_ours_alone = segment.empty
        try:
            # One by one: when the disk is full the first ones may still fit, and no line is cut off that was whole.
            for one in waiting:
                segment.append(one.data)
                written += 1
        except OSError as refusal:
            problem = refusal
        try:
            if must_sync and written:
                segment.sync()
        except OSError as refusal:
            self.failed_syncs += 1
            problem, written = refusal, 0
            self._abandon(segment, remove=is_ours_alone)
        if problem is not None and problem.errno not in NO_SPACE and not segment.closed:
            self._abandon(segment, remove=is_ours_alone and not written)
        if not segment.closed:
            segment.let_go()
        return _Left(waiting[written:], problem)

    def _refuse_full(self, refused: Sequence[Waiting]) -> None:
        self.full += len(refused)
        for one in refused:
            one.problem = errors.JournalFull("no room is left in the journal's budget or on its disk")

    def _refuse(self, refused: Sequence[Waiting], cause: Exception) -> None:
        """Those that have no answer yet."""
        for one in refused:
            if one.problem is None:
                self.failed += 1
                code = f" (errno {cause.errno})" if isinstance(cause, OSError) else ""
                one.problem = errors.JournalFailed(f"the disk refused to write or sync{code}")
                one.problem.__cause__ = cause

    # Segments

    def _take(self, length: int, *, must_be_new: bool) -> segments.Segment:
        """A segment that we hold and that has room: ours, any that nobody holds, else a new one."""
        if not must_be_new:
            if self._current is not None:
                if self._current.hold():
                    if self._has_room(self._current, length):
                        return self._current
                    self._seal(self._current)
                self._drop_current()
            self._current = self._take_over(length)
            if self._current is not None:
                return self._current
        self._drop_current()
        self.journal_id = self._directory.journal_id_now()
        self._current = segments.Segment.create(
            self.fs, self.directory, journal_id=self.journal_id, at_ms=self.now_ms()
        )
        try:
            is_held = self._current.hold()
        except OSError:  # no locks here, say: such a disk shall not fill with empty files
            self._abandon(self._current, remove=True)
            raise
        if not is_held:  # somebody took it between its making and its locking
            return self._take(length, must_be_new=must_be_new)
        return self._current

    def _has_room(self, segment: segments.Segment, length: int) -> bool:
        return segment.empty or (segment.size + length <= self.segment_max_bytes and not self.is_old(segment.name))

    def is_old(self, name: str) -> bool:
        """Whether the segment of this name has reached the age at which it is sealed, or the clock went back so far."""
        return abs(self.now_ms() - segments.created_ms(name)) >= self.segment_max_age_s * 1000

    def _take_over(self, length: int) -> segments.Segment | None:
        """An unsealed segment that nobody holds, tried without waiting; the youngest first."""
        found = [
            name
            for name, size in self.fs.listing(self.directory)
            if segments.is_segment(name)
            and size + length <= self.segment_max_bytes
            and name not in self._passed_over
            and name not in self._abandoned
            and not self.is_old(name)
        ]
        for name in sorted(found, reverse=True)[:_CANDIDATES]:
            try:
                segment = segments.Segment.open(self.fs, self.directory, name, journal_id=self.journal_id)
            except OSError:
                continue
            taken = False
            try:
                taken = segment.hold()
            except OSError:
                self._pass_over(name)
            if taken and self._has_room(segment, length):
                return segment
            if taken:
                segment.let_go()
            elif segment.ended:
                self._pass_over(name)
            segment.close()
        return None

    def _seal(self, segment: segments.Segment) -> None:
        """Seal the segment that we hold, and let it go. One that cannot be sealed now is sealed by the drainer."""
        self._pass_over(segment.name)
        try:
            segment.seal(self.now_ms())
        except OSError:
            _warn("a segment could not be sealed; the drainer seals it later", "journal_seal_failed")
        segment.let_go()

    def _abandon(self, segment: segments.Segment, *, remove: bool) -> None:
        """Close a segment that we hold for good after a failure, for the others too if the disk lets us.

        `remove`: nothing in it was ever acknowledged; a disk that keeps failing shall not fill with such files.
        """
        self._current = None
        self._abandoned.add(segment.name)
        try:
            if remove:
                self.fs.unlink(f"{self.directory}/{segment.name}")
            else:
                segment.seal(self.now_ms())
        except OSError:
            pass
        segment.close()

    def _drop_current(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.close()

    def _pass_over(self, name: str) -> None:
        if len(self._passed_over) > 1000:
            self._passed_over.clear()  # most of them are gone by now; a sealed one tells so again
        self._passed_over.add(name)

    # Reading

    def segment_names(self) -> dict[str, int]:
        """Name and length of every segment, in the order of their making."""
        return dict(sorted((name, size) for name, size in self.fs.listing(self.directory) if segments.is_segment(name)))

    def scan(self) -> Iterator[Located]:
        """Every whole line, segments in the order of their making; a line that compaction copied may come twice.

        Takes no lock. Damage is passed over (the drainer quarantines it). Raises `errors.JournalFailed` when the disk
        does not give the bytes.
        """
        read: set[str] = set()
        try:
            # Compaction copies before it removes: what vanished under us stands in a segment that a new listing shows.
            while names := [name for name in self.segment_names() if name not in read]:
                for name in names:
                    read.add(name)
                    yield from self.scan_segment(name)
        except OSError as problem:
            raise errors.JournalFailed(f"a segment cannot be read (errno {problem.errno})") from problem

    def scan_segment(self, name: str) -> Iterator[Located]:
        """The whole lines of one segment; none when it is gone."""
        try:
            descriptor = self.fs.open_to_read(f"{self.directory}/{name}")
        except FileNotFoundError:
            return
        try:
            for piece in segments.Reader(self.fs, descriptor).pieces(to_end=True):
                if piece.line is not None:
                    if piece.line.kind == "receipt":
                        self.saw_receipt(segments.ms_of_iso(piece.line.appended_at))
                    yield Located(piece.line, name, piece.offset)
        finally:
            self.fs.close(descriptor)

    def status(self) -> JournalStatus:
        """Counts and bytes, by scanning the whole journal."""
        from producer.journal.index import Index  # the hook appends and never asks

        return Index(self).read_all().status()

    def _after_fork_in_child(self) -> None:
        self._groups.start_fresh()
        self._start_fresh()  # the segment is closed by producer.journal.segments


def _warn(what: str, action: str) -> None:
    import logging  # costs a hook as much as its append, and is needed only when something is wrong

    logging.getLogger(__name__).warning(what, extra={"action": action})


def _after_fork_in_child() -> None:
    for journal in list(_journals):
        journal._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
