"""The clock by which a delivery ages: one that also counts while the machine is suspended.

The broker's visibility timeout runs on when a laptop sleeps; `time.monotonic` does not on Linux. Processes of one
machine share it, so that a child can be told a deadline.
"""

from __future__ import annotations

import time

__all__ = ["now_s"]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: CLOCK_MONOTONIC counts sleep there


def now_s() -> float:
    """Seconds on that clock; only differences mean something."""
    return time.clock_gettime(_CLOCK)
