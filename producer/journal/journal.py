"""The journal: lines become durable here before anybody is told that they are.

    <directory>/                 0700
      journal-id                 32 random hex digits, made once
      segment-….jsonl            0600, see producer.journal.segments
      reserve                    preallocated bytes, given back to a full disk for orders, receipts and compaction
      quarantine/                damaged bytes, see producer.journal.quarantine
      prompts/                   see producer.journal.prompts
      drainer.lock, drainer.beat see producer.dispatcher

Guarantees, each with a test of its name:

- when `append_event`, `append_order` or `append_receipts` returns, the line survives kill -9 and power loss: file and
  directory were synced after it was written
- threads of a process share one sync; processes never wait for one another (a locked segment is passed over)
- a failed sync is never tried again on the same file: the segment is closed for good and its lines are rewritten to a
  new one; when that fails too, nothing was acknowledged
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
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from producer import errors, identity
from producer.journal import line as lines
from producer.journal import segments
from producer.journal.filesystem import NO_SPACE, REAL, FileSystem

if TYPE_CHECKING:
    from producer.journal.index import JournalStatus
    from producer.receipt import Receipt

__all__ = ["QUARANTINE", "Journal", "Located"]

QUARANTINE = "quarantine"
RESERVE = "reserve"
ID_FILE = "journal-id"

_IDLE_S = 5.0  # the writing thread ends after so long without work
_QUEUE_MAX_BYTES = 8 << 20  # waiting for a silent disk
_USAGE_MAX_AGE_S = 0.25  # how old our knowledge of what other processes wrote may be
_RESERVE_STEP = 256 << 10
_CANDIDATES = 16  # segments of others tried before a new one is made

_log = logging.getLogger(__name__)
_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


class Located(NamedTuple):
    """A line and where it stands. The place is good until the next compaction."""

    line: lines.Line
    segment: str
    offset: int


class _Waiting:
    """A line on its way to the disk, and what became of it."""

    __slots__ = ("data", "is_event", "privileged", "problem")

    def __init__(self, data: bytes, *, is_event: bool, privileged: bool) -> None:
        self.data = data
        self.is_event = is_event
        self.privileged = privileged  # may use the reserve
        self.problem: errors.IngestError | None = None


class _Group:
    """Lines that share one write and one sync."""

    __slots__ = ("bytes", "done", "must_sync", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self.bytes = 0
        self.must_sync = False
        self.done = threading.Event()


class Journal:
    """An open journal. Safe from many threads, from many processes, and in a forked child."""

    def __init__(
        self,
        directory: str,
        *,
        journal_id: str,
        max_bytes: int,
        reserve_bytes: int,
        segment_max_bytes: int,
        segment_max_age_s: float,
        sync_budget_s: float,
        fs: FileSystem,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.directory = directory
        self.journal_id = journal_id
        self.max_bytes = max_bytes
        self.reserve_bytes = reserve_bytes
        self.segment_max_bytes = segment_max_bytes
        self.segment_max_age_s = segment_max_age_s
        self.sync_budget_s = sync_budget_s
        self.fs = fs
        self.full = 0  # lines refused for want of room
        self.failed = 0  # lines the disk refused
        self.unknown = 0  # lines the disk did not answer for in time
        self.failed_syncs = 0
        self._clock = clock
        self._monotonic = monotonic
        self._listeners: list[Callable[[], None]] = []
        self._receipt_stamp_ms = 0
        self._start_fresh()
        _journals.add(self)

    def _start_fresh(self) -> None:
        """The state that a forked child may not share with its parent."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._writing = threading.Lock()
        self._group = _Group()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None
        self._closed = False
        self._current: segments.Segment | None = None
        self._passed_over: set[str] = set()  # segments seen sealed
        self._abandoned: set[str] = set()  # segments closed after a failure
        self._usage = 0
        self._usage_at: float | None = None

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
        try:
            made = _make_directories(fs, path)
            journal_id = _journal_id(fs, path)
        except OSError as problem:
            raise errors.JournalFailed(f"the journal's directory cannot be opened (errno {problem.errno})") from problem
        journal = cls(
            path,
            journal_id=journal_id,
            max_bytes=max_bytes,
            reserve_bytes=reserve_bytes,
            segment_max_bytes=segment_max_bytes,
            segment_max_age_s=segment_max_age_s,
            sync_budget_s=sync_budget_s,
            fs=fs,
            clock=clock,
            monotonic=monotonic,
        )
        if made:
            journal.fill_reserve()
        return journal

    def close(self) -> None:
        """Let queued lines reach the disk, for at most `sync_budget_s`. Later appends raise `errors.JournalFailed`."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(self.sync_budget_s)
            if thread.is_alive():
                return  # it holds the segment; the process's end closes both
        self._drop_current()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call it, on the writing thread, after lines were written: it may only wake somebody."""
        self._listeners.append(listener)

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
        self._append([line], privileged=True)
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
        self._append(made, privileged=True)

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
        self, made: Sequence[lines.Line], *, is_event: bool = False, privileged: bool = False, must_sync: bool = True
    ) -> None:
        if not made:
            return
        data = "".join(f"{line.text}\n" for line in made).encode("ascii")
        waiting = _Waiting(data, is_event=is_event, privileged=privileged)
        with self._lock:
            if self._closed:
                raise errors.JournalFailed("the journal is closed")
            group = self._group
            if group.waiting and group.bytes + len(data) > _QUEUE_MAX_BYTES:
                self.failed += 1
                raise errors.JournalFailed("the disk does not answer, and what waits for it has reached its bound")
            group.waiting.append(waiting)
            group.bytes += len(data)
            group.must_sync |= must_sync
            silent = self._busy_since is not None and self._monotonic() - self._busy_since > self.sync_budget_s
            has_thread = self._thread is not None or self._start_thread()
            self._work.notify()
        if not has_thread:
            self._write_groups(until_idle=True)
        if not group.done.wait(0 if silent else self.sync_budget_s):
            self.unknown += 1
            raise errors.SyncUnknown(f"the disk did not answer within {self.sync_budget_s} s")
        if waiting.problem is not None:
            raise waiting.problem

    # The writing thread

    def _start_thread(self) -> bool:
        """False when the interpreter is shutting down (or the system has no thread left): the caller writes itself."""
        thread = threading.Thread(target=self._write_groups, name="memory-journal", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _write_groups(self, *, until_idle: bool = False) -> None:
        while group := self._next_group(until_idle=until_idle):
            with self._writing:
                try:
                    self._commit(group)
                except Exception as problem:  # noqa: BLE001
                    # The edge of this thread: whoever waits must get an answer, and the next group its chance.
                    _log.error(
                        "a journal write failed unexpectedly (%s); its lines are refused",
                        type(problem).__name__,
                        extra={"action": "journal_write_failed"},
                    )
                    for waiting in group.waiting:
                        self._refuse_failed(waiting, problem)
                    self._drop_current()
            with self._lock:
                self._busy_since = None
            group.done.set()
            for listener in self._listeners:
                listener()

    def _next_group(self, *, until_idle: bool) -> _Group | None:
        """What waits now; None when this thread should end."""
        with self._lock:
            while not self._group.waiting:
                if until_idle:
                    return None
                if self._closed or not (self._work.wait(_IDLE_S) or self._group.waiting):
                    self._thread = None
                    return None
            group, self._group = self._group, _Group()
            self._busy_since = self._monotonic()
            return group

    def _commit(self, group: _Group) -> None:
        """Make a group durable, or give each of its lines its problem."""
        waiting = self._within_budget(group.waiting)
        for must_be_new in (False, True):
            if not waiting:
                return
            try:
                self._write(waiting, must_be_new=must_be_new, must_sync=group.must_sync)
            except OSError as problem:
                if problem.errno in NO_SPACE:
                    waiting = self._refuse_full([w for w in waiting if not w.privileged], waiting)
                    self._write_from_reserve(waiting, must_sync=group.must_sync)
                    return
                if must_be_new:
                    for one in waiting:
                        self._refuse_failed(one, problem)
            else:
                return

    def _write(self, waiting: Sequence[_Waiting], *, must_be_new: bool, must_sync: bool) -> None:
        data = b"".join(w.data for w in waiting)
        segment = self._take(len(data), must_be_new=must_be_new)
        is_ours_alone = segment.empty
        try:
            try:
                segment.append(data)
            except OSError as problem:
                if problem.errno not in NO_SPACE:
                    self._abandon(segment, remove=is_ours_alone)
                raise
            self._usage += len(data)
            if must_sync:
                try:
                    segment.sync()
                except OSError:
                    self.failed_syncs += 1
                    self._abandon(segment, remove=is_ours_alone)
                    raise
        finally:
            if not segment.closed:
                segment.let_go()

    def _write_from_reserve(self, waiting: Sequence[_Waiting], *, must_sync: bool) -> None:
        """What may use the reserve, on a full disk: free a part of it, try, until it is spent."""
        while waiting:
            if not self.spend_reserve(sum(len(w.data) for w in waiting)):
                self._refuse_full(waiting, waiting)
                return
            try:
                # A new one: the failed sync of a delayed allocation may not be tried again on the same file.
                self._write(waiting, must_be_new=True, must_sync=must_sync)
            except OSError as problem:
                if problem.errno not in NO_SPACE:
                    for one in waiting:
                        self._refuse_failed(one, problem)
                    return
            else:
                return

    def _refuse_full(self, refused: Sequence[_Waiting], waiting: Sequence[_Waiting]) -> list[_Waiting]:
        """Those of `waiting` that are left."""
        for one in refused:
            self.full += 1
            one.problem = errors.JournalFull("no room is left in the journal's budget or on its disk")
        return [one for one in waiting if one.problem is None]

    def _refuse_failed(self, one: _Waiting, cause: Exception) -> None:
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
        made = segments.Segment.create(self.fs, self.directory, journal_id=self.journal_id, at_ms=self.now_ms())
        if not made.hold():  # somebody took it between its making and its locking
            made.close()
            return self._take(length, must_be_new=must_be_new)
        self._current = made
        return made

    def _has_room(self, segment: segments.Segment, length: int) -> bool:
        return segment.empty or (segment.size + length <= self.segment_max_bytes and not self.is_old(segment.name))

    def is_old(self, name: str) -> bool:
        """Whether the segment of this name has reached the age at which it is sealed."""
        return self.now_ms() - segments.created_ms(name) >= self.segment_max_age_s * 1000

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
            except FileNotFoundError:
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
            _log.warning("a segment could not be sealed; it is sealed later", extra={"action": "journal_seal_failed"})
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
            segment.let_go()
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

    # Budget

    def _within_budget(self, waiting: Sequence[_Waiting]) -> list[_Waiting]:
        """Those that fit; the others get `errors.JournalFull`."""
        limit = max(0, self.max_bytes - self.reserve_bytes)
        for_events = limit - min(limit // 16, 1 << 20)  # the rest is left to `sent`
        coming = sum(len(w.data) for w in waiting)
        usage = self._measure(limit=for_events, coming=coming)
        fitting = []
        for one in waiting:
            allowed = self.max_bytes if one.privileged else for_events if one.is_event else limit
            if usage + len(one.data) > allowed:
                self._refuse_full([one], [])
            else:
                usage += len(one.data)
                fitting.append(one)
        if usage > limit:
            self._shrink_reserve(self.max_bytes - usage)  # segments and reserve together stay within the budget
        return fitting

    def _measure(self, *, limit: int, coming: int) -> int:
        """Bytes of all segments and of the quarantine. Near the limit it is measured anew every time."""
        now = self._monotonic()
        near = self._usage + coming > limit - limit // 8
        if near or self._usage_at is None or now - self._usage_at > _USAGE_MAX_AGE_S:
            self._usage = self.used_bytes()
            self._usage_at = now
        return self._usage

    def used_bytes(self) -> int:
        """Bytes of all segments and of the quarantine, now."""
        used = sum(
            size for name, size in self.fs.listing(self.directory) if segments.is_segment(name) or name.endswith(".tmp")
        )
        try:
            return used + sum(size for _, size in self.fs.listing(f"{self.directory}/{QUARANTINE}"))
        except FileNotFoundError:
            return used

    def fill_reserve(self) -> bool:
        """Whether the reserve is as long as the budget lets it be. The drainer calls it while there is room."""
        path = f"{self.directory}/{RESERVE}"
        draft = f"{path}.{os.urandom(4).hex()}.tmp"
        try:
            length = min(self.reserve_bytes, self.max_bytes - self.used_bytes())
            if dict(self.fs.listing(self.directory)).get(RESERVE, 0) >= length:
                return True
            if self.fs.free_bytes(self.directory) < 2 * length:
                return False
            descriptor = self.fs.create(draft)
        except OSError:
            return False
        try:
            self.fs.allocate(descriptor, length)
            self.fs.rename(draft, path)
        except OSError:
            self.remove_if_there(draft)
            return False
        finally:
            self.fs.close(descriptor)
        return True

    def spend_reserve(self, needed: int) -> bool:
        """Whether a part of the reserve was given back to the disk; False when it is spent."""
        length = self._reserve_length()
        return length > 0 and self._shrink_reserve(max(0, length - max(2 * needed, _RESERVE_STEP)))

    def _reserve_length(self) -> int:
        try:
            return dict(self.fs.listing(self.directory)).get(RESERVE, 0)
        except OSError:
            return 0

    def _shrink_reserve(self, length: int) -> bool:
        """Whether it was longer and is now as short as this."""
        try:
            descriptor = self.fs.open(f"{self.directory}/{RESERVE}")
        except OSError:
            return False
        try:
            if self.fs.size_and_links(descriptor)[0] <= length:
                return False
            self.fs.truncate(descriptor, length)
        except OSError:
            return False
        finally:
            self.fs.close(descriptor)
        return True

    def remove_if_there(self, path: str) -> None:
        try:
            self.fs.unlink(path)
        except OSError:
            pass

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
        current, closed = self._current, self._closed
        self._start_fresh()
        self._closed = closed
        if current is not None:
            current.close()  # not unlocked: the lock is the parent's


def _make_directories(fs: FileSystem, path: str) -> bool:
    """Whether the journal's directory was made now; what was made is durable before anything is put into it."""
    missing = []
    parent = path
    while not fs.is_directory(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)  # noqa: PTH120
    for one in reversed(missing):
        fs.make_directory(one)
        fs.sync_directory(os.path.dirname(one))  # noqa: PTH120
    if not missing:
        fs.make_directory(path)
    return bool(missing)


def _journal_id(fs: FileSystem, directory: str) -> str:
    """The id of this journal; made when it is missing or damaged. Processes that start at once agree on one."""
    path = f"{directory}/{ID_FILE}"
    found = _read_id(fs, path)
    if found:
        return found
    # The directory's own name is durable before its id exists: whoever finds an id need not think about it.
    try:
        fs.sync_directory(os.path.dirname(directory))  # noqa: PTH120
    except PermissionError:
        pass  # a parent that only others may read was made by them, long ago
    draft = f"{path}.{os.urandom(4).hex()}.tmp"
    descriptor = fs.create(draft)
    try:
        fs.write(descriptor, os.urandom(16).hex().encode("ascii") + b"\n")
        fs.sync(descriptor)
    finally:
        fs.close(descriptor)
    try:
        if found is None:
            fs.link(draft, path)
        else:
            fs.rename(draft, path)
    except FileExistsError:
        pass
    if found is None:
        fs.unlink(draft)
    fs.sync_directory(directory)
    made = _read_id(fs, path)
    if not made:
        raise errors.JournalFailed("the journal's id cannot be written")
    return made


def _read_id(fs: FileSystem, path: str) -> str | None:
    """The id in this file; None when there is no file, empty when there is no id in it."""
    try:
        descriptor = fs.open_to_read(path)
    except FileNotFoundError:
        return None
    try:
        text = fs.read(descriptor, 64, 0).strip()
    finally:
        fs.close(descriptor)
    return text.decode("ascii") if len(text) == 32 and set(text) <= set(b"0123456789abcdef") else ""


def _after_fork_in_child() -> None:
    for journal in list(_journals):
        journal._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
