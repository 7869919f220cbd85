"""Group commit: what many threads write at once is written and synced once, on a thread that may be stuck alone.

The caller waits for its group for at most `budget_s`. A disk that has been silent for so long already is not waited for
at all, and what queues up behind it is bounded. The thread is a daemon, starts with the first line and ends after a few
idle seconds; where none can be started (the interpreter is shutting down) the caller writes itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from producer import errors

__all__ = ["GroupWriter", "Waiting"]

IDLE_S = 5.0
QUEUE_MAX_BYTES = 8 << 20


class Waiting:
    """Bytes on their way to the disk, and what became of them."""

    __slots__ = ("data", "is_event", "is_privileged", "problem")

    def __init__(self, data: bytes, *, is_event: bool, is_privileged: bool) -> None:
        self.data = data
        self.is_event = is_event
        self.is_privileged = is_privileged  # may use the reserve
        self.problem: errors.IngestError | None = None  # None when its group is done: written


class _Group:
    __slots__ = ("bytes", "done", "must_sync", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.bytes = 0
        self.must_sync = False
        self.done = threading.Lock()  # free when done; whoever waits takes it and passes it on. An Event costs more
        self.done.acquire()


class GroupWriter:
    """`write` from any thread. `commit` gets a group and whether to sync it; it sets problems and raises nothing."""

    def __init__(
        self, commit: Callable[[Sequence[Waiting], bool], None], *, budget_s: float, monotonic: Callable[[], float]
    ) -> None:
        self.unanswered = 0  # lines the disk did not answer for in time
        self._commit = commit
        self._budget_s = budget_s
        self._monotonic = monotonic
        self._listeners: list[Callable[[], None]] = []
        self._closed = False
        self.start_fresh()

    def start_fresh(self) -> None:
        """The state that a forked child may not share with its parent: it has neither its thread nor its queue."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._writing = threading.Lock()
        self._group = _Group()
        self._thread: threading.Thread | None = None
        self._busy_since_s: float | None = None

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call it, on the writing thread, after every group: it may only wake somebody."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def write(self, waiting: Waiting, *, must_sync: bool) -> None:
        """Return once written, and synced if asked.

        Raises its problem, `errors.SyncUnknown`, or `errors.JournalFailed` when closed or when too much waits.
        """
        with self._lock:
            if self._closed:
                raise errors.JournalFailed("the journal is closed")
            group = self._group
            if group.waiting and group.bytes + len(waiting.data) > QUEUE_MAX_BYTES:
                raise errors.JournalFailed("the disk does not answer, and what waits for it has reached its bound")
            group.waiting.append(waiting)
            group.bytes += len(waiting.data)
            group.must_sync |= must_sync
            is_silent = self._busy_since_s is not None and self._monotonic() - self._busy_since_s > self._budget_s
            has_thread = (self._thread is not None and self._thread.is_alive()) or self._start_thread()
            self._work.notify()
        if not has_thread:
            self._run(until_idle=True)
        if not group.done.acquire(timeout=0 if is_silent else self._budget_s):
            self.unanswered += 1
            raise errors.SyncUnknown(f"the disk did not answer within {self._budget_s} s")
        group.done.release()
        if waiting.problem is not None:
            raise waiting.problem

    def close(self) -> bool:
        """Write what is queued, and refuse what comes. Whether that was done within the budget."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(self._budget_s)
        return thread is None or not thread.is_alive()

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._run, name="memory-journal", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # at interpreter shutdown, or no thread left in the system
            return False
        self._thread = thread
        return True

    def _run(self, *, until_idle: bool = False) -> None:
        while group := self._next_group(until_idle=until_idle):
            with self._writing:
                self._commit(group.waiting, group.must_sync)
            with self._lock:
                self._busy_since_s = None
            group.done.release()
            for listener in tuple(self._listeners):
                listener()

    def _next_group(self, *, until_idle: bool) -> _Group | None:
        """What waits now; None when this thread should end."""
        with self._lock:
            while not self._group.waiting:
                if until_idle:
                    return None
                if self._closed or not (self._work.wait(IDLE_S) or self._group.waiting):
                    self._thread = None
                    return None
            group, self._group = self._group, _Group()
            self._busy_since_s = self._monotonic()
            return group
