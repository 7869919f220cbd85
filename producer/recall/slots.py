"""A bounded set of daemon threads for calls that may hang: long-lived, made when needed, gone after a minute idle.

`submit` never waits: with every slot busy the call is shed. A call that hangs keeps its slot until its own timeout
ends it, and nothing else. Daemon threads, unlike `concurrent.futures`, do not keep a finished host alive. A forked
child starts with no threads and free slots.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from producer import errors

__all__ = ["Job", "Slots"]

_IDLE_S = 60.0
_log = logging.getLogger(__name__)
_all: weakref.WeakSet[Slots] = weakref.WeakSet()


class Job:
    """One submitted call. `value` is its result once `wait` said that it `succeeded`."""

    def __init__(self, call: Callable[[], Any], finished: Callable[[Job], None] | None) -> None:
        self._call = call
        self._finished = finished
        self._done = threading.Event()
        self.started_at = time.monotonic()
        self.took_s = 0.0
        self.value: Any = None
        self.error: str = ""  # class name of what it raised; never its message, which may quote

    def wait(self, deadline: float) -> bool:
        """Whether the call is over, waiting until `deadline` (monotonic) for it."""
        return self._done.wait(max(0.0, deadline - time.monotonic()))

    @property
    def succeeded(self) -> bool:
        return self._done.is_set() and not self.error

    def _run(self) -> None:
        try:
            self.value = self._call()
        except errors.IngestError as problem:
            self.error = type(problem).__name__
        except Exception as problem:  # noqa: BLE001 the edge of a thread of ours: counted by the caller, logged here
            self.error = type(problem).__name__
            _log.error(
                "recall: a search failed unexpectedly (%s)", self.error, extra={"action": "recall.search_failed"}
            )
        self.took_s = time.monotonic() - self.started_at


class Slots:
    """At most `size` calls at once."""

    def __init__(self, size: int, *, name: str) -> None:
        self._size = size
        self._name = name
        self._reset()
        _all.add(self)

    def submit(self, call: Callable[[], Any], *, finished: Callable[[Job], None] | None = None) -> Job | None:
        """Start `call`, or None when every slot is busy. `finished` runs on the slot's thread before `wait` ends."""
        job = Job(call, finished)
        with self._lock:
            if self._closed or self._busy >= self._size:
                return None
            if self._busy >= self._threads:
                thread = threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the machine or the interpreter gives no more threads
                    return None
                self._threads += 1
            self._busy += 1
            self._queue.put(job)
        return job

    @property
    def threads(self) -> int:
        with self._lock:
            return self._threads

    def close(self) -> None:
        """Let idle threads end now, busy ones when their call does. Further calls are shed."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._queue.put(None)

    def _work(self) -> None:
        jobs, lock = self._queue, self._lock
        while True:
            try:
                job = jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with lock:
                    if self._busy < self._threads:  # no call counts on this thread
                        self._threads -= 1
                        return
                continue
            if job is None:
                with lock:
                    self._threads -= 1
                return
            job._run()
            with lock:
                self._busy -= 1
            if job._finished is not None:
                job._finished(job)
            job._done.set()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._closed = False


def _reset_all() -> None:
    for slots in list(_all):
        slots._reset()


os.register_at_fork(after_in_child=_reset_all)
