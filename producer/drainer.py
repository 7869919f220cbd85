"""Who drains a journal: one process per directory, by `flock` on `drainer.lock`; the file's time is its heartbeat.

    nobody ──lock free──▶ DRAINER            publishes, journals receipts, compacts
    nobody ──lock held, no heartbeat for 60 s──▶ DEPUTY      publishes, never compacts
    DEPUTY ──heartbeat again──▶ nobody       DEPUTY ──lock free──▶ DRAINER

A frozen drainer that wakes up finds a deputy beside it: both publish for a moment, which only costs idempotent
deliveries. How long the heartbeat has been still is measured on our own monotonic clock, so no clock needs to be right.
A forked child lets its copy of the lock go without unlocking the parent's.
"""

from __future__ import annotations

import enum
import os
import weakref

from producer.journal.filesystem import FileSystem

__all__ = ["DrainerLock", "Role"]

LOCK_FILE = "drainer.lock"
BEAT_EVERY_S = 5.0
SILENT_AFTER_S = 60.0
_TRY_EVERY_S = 1.0

_locks: weakref.WeakSet[DrainerLock] = weakref.WeakSet()


class Role(enum.Enum):
    DRAINER = "drainer"
    DEPUTY = "deputy"
    NONE = "none"


class DrainerLock:
    """This process's claim to drain a journal directory. Not for several threads at once."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._path = f"{directory}/{LOCK_FILE}"
        self._descriptor: int | None = None
        self._beaten_s = 0.0
        self._tried_s: float | None = None
        self._seen_ns = -1
        self._still_since_s = 0.0
        self._role = Role.NONE
        _locks.add(self)

    def role(self, now_s: float) -> Role:
        """Our role now; call it in every round, with the monotonic clock. A drainer's call is its heartbeat."""
        try:
            if self._descriptor is not None:
                self._beat(self._descriptor, now_s)
            if self._descriptor is None and (self._tried_s is None or now_s - self._tried_s >= _TRY_EVERY_S):
                self._tried_s = now_s
                self._role = self._try(now_s)
        except OSError:
            self.drop()
        return self._role

    def _beat(self, descriptor: int, now_s: float) -> None:
        if now_s - self._beaten_s < BEAT_EVERY_S:
            return
        if self._fs.size_and_links(descriptor)[1] == 0:
            self.drop()  # the directory was cleared: somebody else may hold a new file
            return
        self._fs.touch(descriptor)
        self._beaten_s = now_s

    def _try(self, now_s: float) -> Role:
        try:
            descriptor = self._fs.open(self._path)
        except FileNotFoundError:
            try:
                descriptor = self._fs.create(self._path)
            except FileExistsError:
                descriptor = self._fs.open(self._path)
        if self._fs.try_lock(descriptor):
            self._descriptor, self._beaten_s = descriptor, now_s
            self._fs.touch(descriptor)
            return Role.DRAINER
        self._fs.close(descriptor)
        seen = self._fs.modified_ns(self._path)
        if seen != self._seen_ns:
            self._seen_ns, self._still_since_s = seen, now_s
        return Role.DEPUTY if now_s - self._still_since_s >= SILENT_AFTER_S else Role.NONE

    def drop(self) -> None:
        """Let another process drain."""
        descriptor, self._descriptor = self._descriptor, None
        self._role, self._tried_s = Role.NONE, None
        if descriptor is not None:
            try:
                self._fs.unlock(descriptor)
            except OSError:
                pass
            self._fs.close(descriptor)

    def _after_fork_in_child(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        self._role, self._tried_s = Role.NONE, None
        if descriptor is not None:
            self._fs.close(descriptor)  # not unlocked: the lock is the parent's


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
