"""Calls of many threads that may be sent together: who finds the lane free sends what waits, for the others too.

A call that finds its lane free is sent at once. What arrives while as many are in flight as may be waits, and goes
together as the next. The thread of a waiting call does the sending; there is no thread of the lane's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from producer import errors

__all__ = ["Call", "Lane"]


@dataclass(eq=False, slots=True)
class Call:
    """One caller waiting in a lane. Guarded by the lane's condition, its outcome by being `done`."""

    work: Any
    until: float  # not to be sent later; for who sends it to heed
    taken: bool = False
    done: bool = False
    answer: Any = None
    error: Exception | None = None


_PAUSE_MOST_S = 0.25  # of one pause, however long the last batch took
_COMPANY_S = 1.0  # after the last batch the next call counts as one that comes alone

_Pick = Callable[[Sequence[Call]], list[Call]]
_Send = Callable[[list[Call]], None]


@dataclass(eq=False, slots=True)
class Lane:
    """`free`: how many more may be in flight.

    `linger_s`, for a lane with one in flight of which many cost hardly more than one: while calls come in company, who
    finds the lane free pauses for so long, or for a tenth of what the last batch took (a quarter of a second at most):
    whoever got an answer from it needs a while to come with its next call. When others came it pauses once more, and
    then goes. A call that comes alone is sent at once.
    """

    free: int
    linger_s: float = 0.0
    in_company: bool = False  # the last ones were sent together
    took_s: float = 0.0  # the last batch
    ended_s: float = 0.0  # when; monotonic
    waiting: list[Call] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def run(self, call: Call, pick: _Pick, send: _Send) -> Any:
        """Its answer, or raise its error. `pick` takes those to send together, the oldest among them; `send` gives each
        its answer or its error."""
        with self.changed:
            self.waiting.append(call)
        while True:
            with self.changed:
                while not call.done and (call.taken or not self.free):
                    self.changed.wait()
                if call.done:
                    break
                if self.linger_s and self.in_company and time.monotonic() - self.ended_s < _COMPANY_S:
                    self._linger(call)
                batch = pick(self.waiting)
                self.in_company = len(batch) > 1
                for taken in batch:
                    taken.taken = True
                    # Holds when the sending thread is torn out of `send`; overwritten by every ordinary end.
                    taken.error = errors.StoreUnavailable("the shared request was abandoned", outcome_unknown=True)
                self.waiting = [other for other in self.waiting if not other.taken]
                self.free -= 1
            began_s = time.monotonic()
            try:
                send(batch)
            except BaseException:
                with self.changed:
                    if not call.taken:  # its caller goes now: nobody may send it any more
                        self.waiting.remove(call)
                raise
            finally:
                with self.changed:
                    self.ended_s = time.monotonic()
                    self.took_s = self.ended_s - began_s
                    self.free += 1
                    for taken in batch:
                        taken.done = True
                    self.changed.notify_all()
        if call.error is not None:
            raise call.error
        return call.answer

    def _linger(self, call: Call) -> None:
        """Hold the lane for one pause, or for two when more come. It is locked again when this returns."""
        self.free -= 1
        try:
            pause_s = max(self.linger_s, min(self.took_s / 10, _PAUSE_MOST_S))
            for _ in range(2):
                before = len(self.waiting)
                self._pause(pause_s)
                if len(self.waiting) == before:
                    break
        except BaseException:
            self.waiting.remove(call)
            self.changed.notify_all()
            raise
        finally:
            self.free += 1

    def _pause(self, seconds: float) -> None:
        """Calls that end elsewhere wake nobody early."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.changed.wait(left_s)
