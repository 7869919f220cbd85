"""Who drains a journal: one process per directory, by `flock` on `drainer.lock`; the file's time is its heartbeat.

    nobody ──lock free──▶ DRAINER            publishes, journals receipts, compacts
    nobody ──lock held, no heartbeat for 60 s──▶ DEPUTY      publishes, never compacts
    DEPUTY ──heartbeat again──▶ nobody       DEPUTY ──lock free──▶ DRAINER
    either ──deaf: the broker or Redis refuses it for long──▶ nobody, for three seconds

Of many processes one is the deputy, by `flock` on `deputy.lock` in the same way, so that a frozen drainer does not fill
the broker with as many copies as there are others; where that one is frozen too, all others stand in 60 s later.

Whoever cannot deliver stands aside for a moment, so that one process without network, or with an old password, does not
keep the lines of a whole directory: the others try every second. Where nobody else is, it goes on by itself.

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
DEPUTY_LOCK_FILE = "deputy.lock"
BEAT_EVERY_S = 5.0
SILENT_AFTER_S = 60.0
_TRY_EVERY_S = 1.0
ASIDE_S = 3 * _TRY_EVERY_S

_locks: weakref.WeakSet[DrainerLock] = weakref.WeakSet()


class Role(enum.Enum):
    DRAINER = "drainer"
    DEPUTY = "deputy"
    NONE = "none"


class _Claim:
    """A lock file that one process holds, and touches as long as it runs."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._descriptor: int | None = None
        self._beaten_s = 0.0
        self._seen_ns = -1
        self._still_since_s = 0.0

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def beat(self, now_s: float) -> None:
        """Call it in every round. The claim is lost where the directory was cleared or moved away: another
        may hold the file that stands there now."""
        if self._descriptor is None or now_s - self._beaten_s < BEAT_EVERY_S:
            return
        if not self._fs.stands_at(self._descriptor, self._path):
            self.drop()
            return
        self._fs.touch(self._descriptor)
        self._beaten_s = now_s

    def take(self, now_s: float) -> bool:
        """Whether it is ours now."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = self._fs.open(self._path)
        except FileNotFoundError:
            try:
                descriptor = self._fs.create(self._path)
            except FileExistsError:
                descriptor = self._fs.open(self._path)
        try:
            if self._fs.try_lock(descriptor):
                self._descriptor, self._beaten_s = descriptor, now_s
                self._fs.touch(descriptor)
                return True
        finally:
            if self._descriptor is None:
                self._fs.close(descriptor)
        return False

    def is_silent(self, now_s: float) -> bool:
        """Whether whoever holds it has not beaten for long, as far as we have watched."""
        seen = self._fs.modified_ns(self._path)
        if seen != self._seen_ns:
            self._seen_ns, self._still_since_s = seen, now_s
        return now_s - self._still_since_s >= SILENT_AFTER_S

    def drop(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                self._fs.unlock(descriptor)
            except OSError:
                pass
            self._fs.close(descriptor)

    def leave_to_parent(self) -> None:
        """In a forked child: let our copy go without unlocking the parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._fs.close(descriptor)


class DrainerLock:
    """This process's claim to drain a journal directory. Not for several threads at once."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._drainer = _Claim(fs, f"{directory}/{LOCK_FILE}")
        self._deputy = _Claim(fs, f"{directory}/{DEPUTY_LOCK_FILE}")
        self._tried_s: float | None = None
        self._role = Role.NONE
        _locks.add(self)

    def role(self, now_s: float) -> Role:
        """Our role now; call it in every round, with the monotonic clock. Such a call is the heartbeat."""
        try:
            self._drainer.beat(now_s)
            self._deputy.beat(now_s)
            if not self._drainer.is_held and (self._tried_s is None or now_s - self._tried_s >= _TRY_EVERY_S):
                self._tried_s = now_s
                self._role = self._try(now_s)
        except OSError:
            self.drop()
        return self._role

    def _try(self, now_s: float) -> Role:
        if self._drainer.take(now_s):
            self._deputy.drop()
            return Role.DRAINER
        if not self._drainer.is_silent(now_s):
            self._deputy.drop()
            return Role.NONE
        stands_in = self._deputy.take(now_s) or self._deputy.is_silent(now_s)
        return Role.DEPUTY if stands_in else Role.NONE

    def stand_aside(self, now_s: float) -> None:
        """Let another process drain, if there is one: claim nothing for `ASIDE_S`."""
        self.drop()
        self._tried_s = now_s + ASIDE_S - _TRY_EVERY_S

    def drop(self) -> None:
        """Let another process drain."""
        self._drainer.drop()
        self._deputy.drop()
        self._role, self._tried_s = Role.NONE, None

    def _after_fork_in_child(self) -> None:
        self._drainer.leave_to_parent()
        self._deputy.leave_to_parent()
        self._role, self._tried_s = Role.NONE, None


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
