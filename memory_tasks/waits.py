"""Bounded waits that are no task retries: for a server to come up, a lock to be let go, a count to be reached.

By tenacity: asked at once, then after growing pauses, until it is so or the deadline is over.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import tenacity

__all__ = ["until"]


def until(done: Callable[[], bool], *, deadline_s: float, first_s: float = 0.02, most_s: float = 0.25) -> bool:
    """Whether `done` became true within `deadline_s`. What `done` raises goes to the caller, and ends the wait."""
    asking = tenacity.Retrying(
        retry=tenacity.retry_if_result(operator.not_),
        stop=tenacity.stop_after_delay(deadline_s),
        wait=tenacity.wait_exponential(multiplier=first_s, exp_base=1.5, max=most_s),
        retry_error_callback=lambda _: False,
    )
    return bool(asking(done))
