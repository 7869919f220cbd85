"""Child processes of a worker, each of which handles one request at a time and may die over it.

A child is a fresh interpreter (spawned, never forked) at the other end of a socket pair. It shares nothing with the
worker but that and stderr. Guarantees, each with a test of its name:

- at most `limit` of them; they are started when they are needed, used again, and ended after `requests_max` requests
  or `idle_s` seconds without one
- a child that dies with a request that it had begun is `ChildDied`; one that dies before it began costs the request
  nothing but another child
- a child that has not answered when the request's time is over is killed: `ChildHung`, not a death
- no child outlives the worker: the pool closes them, a killed worker's children are killed by the kernel (Linux) or end
  at the end of their stream

One thread of the pool's own starts and ends children: the kernel's watch over a parent ends with the thread that
started the child, and threads of a task pool come and go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from memory_tasks import clock, frames
from producer import errors

__all__ = ["ChildDied", "ChildHung", "Children"]

logger = logging.getLogger(__name__)

_GRACE_S = 1.0  # a child that stops sending at the deadline has this long to say how far it came
_ENDS_IN_S = 2.0
_STARTS = 3  # children in a row that die before they begin a request
_START_PAUSE_S = 1.0


class ChildDied(Exception):
    """The child ended by itself while it handled the request. `how`: "exit 137", "signal 9"."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class ChildHung(errors.DeliveryTooOld):
    """The child had begun and was killed at the deadline: what it had sent may still be applied, and what hung it would
    hang a thread of the worker for good."""


class _Child:
    """One process and our end of its socket pair. For one thread at a time."""

    def __init__(self, module: str, setup: Mapping[str, Any]) -> None:
        """Raises `OSError` when no process can be started."""
        self.requests = 0
        self.idle_since_s = time.monotonic()
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                # -P: a `producer/` in the current directory is not ours.
                command = [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(os.getpid())]
                self._process = subprocess.Popen(  # noqa: S603 (a module of ours)
                    command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
                )
            self.socket.settimeout(_ENDS_IN_S)
            frames.send(self.socket, setup)
        except (OSError, frames.EndOfStream, TimeoutError) as problem:
            self.socket.close()
            if hasattr(self, "_process"):
                self.kill()
            raise OSError("the child did not start") from problem

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], until: float) -> tuple[dict[str, Any] | None, bool]:
        """Its answer, or None when it ended; and whether it had begun. Raises `TimeoutError`."""
        began = False
        try:
            self._bound(until)
            frames.send(self.socket, request)
            while True:
                self._bound(until)
                answer = frames.receive(self.socket)
                if "began" not in answer:
                    self.requests += 1
                    return answer, True
                began = True
        except frames.EndOfStream:
            return None, began

    def _bound(self, until: float) -> None:
        self.socket.settimeout(max(until + _GRACE_S - clock.now_s(), 0.01))

    def end(self) -> None:
        """Let it end at the end of its stream, and kill it when it does not."""
        self.socket.close()
        try:
            self._process.wait(_ENDS_IN_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> int:
        """Kill it, if it still runs; its exit code."""
        self._process.kill()
        self.socket.close()
        try:
            return self._process.wait(_ENDS_IN_S)
        except subprocess.TimeoutExpired:  # the kernel holds it, on a disk that does not answer
            return -signal.SIGKILL

    def ended(self) -> str:
        """How it ended, once its stream has."""
        try:
            code = self._process.wait(_ENDS_IN_S)
        except subprocess.TimeoutExpired:  # it closed its stream and lives on: no child of ours does
            code = self.kill()
        self.socket.close()
        return f"signal {-code}" if code < 0 else f"exit {code}"


class Children:
    """A pool of children that run `module`. Safe between threads; they wait for a free child."""

    def __init__(
        self,
        module: str,
        setup: Mapping[str, Any],
        *,
        limit: int,
        requests_max: int = 1000,
        idle_s: float = 60.0,
    ) -> None:
        self._module = module
        self._setup = dict(setup)
        self.limit = limit
        self._requests_max = requests_max
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._keeper: threading.Thread | None = None
        self._closed = False
        self._waiting = 0
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._leaving: list[_Child] = []  # for the keeper to end
        self._failed_at_s = float("-inf")  # when starting one failed last

    def pids(self) -> list[int]:
        """Those that run now."""
        with self._changed:
            return [child.pid for child in (*self._idle, *self._busy)]

    def ask(self, request: Mapping[str, Any], *, until: float) -> dict[str, Any]:
        """The answer of a child. Raises `ChildDied`, at `until` on the delivery clock `ChildHung` or, when no child had
        it yet, `errors.DeliveryTooOld`, and `errors.ChildUnavailable`."""
        for _ in range(_STARTS):
            if clock.now_s() >= until:
                raise errors.DeliveryTooOld("half of the visibility timeout is over")
            child = self._take(until)
            answer: dict[str, Any] | None = None
            try:
                answer, began = child.ask(request, until)
            except TimeoutError:
                child.kill()
                logger.error("action=child_hung pid=%d; killed, its delivery is transient trouble", child.pid)
                raise ChildHung("a child did not answer in time") from None
            finally:
                self._give_back(child, alive=answer is not None)
            if answer is not None:
                return answer
            if self._closed:
                break
            how = child.ended()
            logger.warning("action=child_died pid=%d how=%s began=%s", child.pid, how.replace(" ", ":"), began)
            if began:
                raise ChildDied(how)
        raise errors.ChildUnavailable("no child process lived long enough to begin")

    def close(self) -> None:
        """End all children, those that are handling something too. Later calls raise `errors.ChildUnavailable`."""
        with self._changed:
            self._closed = True
            keeper = self._keeper
            for child in self._busy:
                with contextlib.suppress(OSError):  # it hung, and is being killed just now
                    child.socket.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
        if keeper is not None:
            keeper.join()

    def _take(self, until: float) -> _Child:
        with self._changed:
            self._start_keeper()
            self._waiting += 1
            asked_s = time.monotonic()
            try:
                while (child := self._take_idle()) is None:
                    if self._closed or self._failed_at_s >= asked_s:
                        raise errors.ChildUnavailable("no child process could be started")
                    self._changed.notify_all()
                    if not self._changed.wait(max(until - clock.now_s(), 0.0)) and clock.now_s() >= until:
                        raise errors.DeliveryTooOld("no child process was free in time")
            finally:
                self._waiting -= 1
            self._busy.add(child)
            return child

    def _take_idle(self) -> _Child | None:
        """The one used last, so that the others may retire."""
        while self._idle:
            child = self._idle.pop()
            if child.running():
                return child
            self._leaving.append(child)
        return None

    def _give_back(self, child: _Child, *, alive: bool) -> None:
        with self._changed:
            self._busy.discard(child)
            if not alive or child.requests >= self._requests_max or self._closed:
                self._leaving.append(child)
            else:
                child.idle_since_s = time.monotonic()
                self._idle.append(child)
            self._changed.notify_all()

    # The keeper's thread

    def _start_keeper(self) -> None:
        if (self._keeper is None or not self._keeper.is_alive()) and not self._closed:
            keeper = threading.Thread(target=self._keep, name="memory-children", daemon=True)
            try:
                keeper.start()
            except RuntimeError:
                raise errors.ChildUnavailable("no thread is left to start child processes") from None
            self._keeper = keeper

    def _keep(self) -> None:
        while True:
            with self._changed:
                while not (self._leaving or self._may_start() or self._is_over()):
                    self._changed.wait(self._next_due_s())
                    self._retire_idle()
                leaving, self._leaving = self._leaving, []
                if self._closed:
                    leaving += self._idle
                    self._idle.clear()
                is_over = self._is_over()
            for child in leaving:
                child.end()
            if is_over:
                return
            with self._changed:
                starts = self._may_start()
            if starts:
                self._start()

    def _is_over(self) -> bool:
        return self._closed and not self._busy

    def _may_start(self) -> bool:
        return (
            not self._closed
            and not self._leaving  # they still run
            and self._waiting > len(self._idle)
            and len(self._idle) + len(self._busy) < self.limit
            and time.monotonic() - self._failed_at_s > _START_PAUSE_S
        )

    def _start(self) -> None:
        try:
            child = _Child(self._module, self._setup)
        except OSError as problem:
            logger.error(
                "action=child_not_started problem=%s; deliveries are deferred", type(problem.__cause__).__name__
            )
            with self._changed:
                self._failed_at_s = time.monotonic()
                self._changed.notify_all()
            return
        with self._changed:
            self._idle.append(child)
            self._changed.notify_all()

    def _next_due_s(self) -> float | None:
        """When there may be something to do without a call: an idle child retires, a start may be tried again."""
        now_s = time.monotonic()
        due_s = [child.idle_since_s + self._idle_s - now_s for child in self._idle[:1]]
        if self._waiting:
            due_s.append(self._failed_at_s + _START_PAUSE_S - now_s)
        return max(min(due_s), 0.01) if due_s else None

    def _retire_idle(self) -> None:
        before_s = time.monotonic() - self._idle_s
        self._leaving += [child for child in self._idle if child.idle_since_s <= before_s]
        self._idle = [child for child in self._idle if child.idle_since_s > before_s]
