"""How long a recall waits for the store: the whole deadline while it answers, next to nothing while it does not.

          3 failures in a row                      any answer in time
    closed ─────────────────────▶ open ─────────────────────────────▶ closed

Open, a recall still asks, so that the first turn after the store came back gets what is there, but waits at most a
third of its deadline; after ten seconds of it only one recall in half a second does, and the others cost nothing. A
store that refuses at once costs nothing in either state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Breaker"]

_FAILURES = 3
_SHARE = 1 / 3
_EAGER_S = 10.0
_PROBE_EVERY_S = 0.5


class Breaker:
    """Shared by the threads of a process. `is_open` for status."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at: float | None = None
        self._probed_at = float("-inf")

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None

    def share(self) -> float:
        """Which part of its deadline the caller may give the store now; 0: do not ask."""
        with self._lock:
            if self._opened_at is None:
                return 1.0
            now = self._clock()
            if now - self._opened_at > _EAGER_S and now - self._probed_at < _PROBE_EVERY_S:
                return 0.0
            self._probed_at = now
            return _SHARE

    def succeeded(self) -> None:
        with self._lock:
            self._failures, self._opened_at = 0, None

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= _FAILURES and self._opened_at is None:
                self._opened_at = self._clock()
