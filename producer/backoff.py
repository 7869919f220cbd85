"""Waits that grow with each failure, up to a bound, jittered down by up to half. Times are monotonic seconds."""

from __future__ import annotations

import random

__all__ = ["BackOff", "growing_s"]


def growing_s(times: int, first_s: float, most_s: float, rng: random.Random) -> float:
    """The wait after so many failures in a row: twice as long each time."""
    return min(most_s, first_s * 2.0 ** min(times - 1, 16)) * rng.uniform(0.5, 1.0)


class BackOff:
    """Whether a service that failed may be tried again."""

    def __init__(self, rng: random.Random, *, first_s: float = 0.5, most_s: float = 30.0) -> None:
        self._rng = rng
        self._first_s = first_s
        self._most_s = most_s
        self.failures = 0  # in a row
        self.since_s = 0.0  # the first of them
        self._until_s = 0.0

    def waits(self, now_s: float) -> bool:
        return now_s < self._until_s

    def fail(self, now_s: float) -> bool:
        """Wait from now on; whether this is the first failure in a row."""
        self.failures += 1
        if self.failures == 1:
            self.since_s = now_s
        self._until_s = now_s + self.wait_s()
        return self.failures == 1

    def wait_s(self) -> float:
        """A wait after as many failures as there were; 0 after none."""
        return growing_s(self.failures, self._first_s, self._most_s, self._rng) if self.failures else 0.0

    def succeed(self) -> None:
        self.failures = 0
