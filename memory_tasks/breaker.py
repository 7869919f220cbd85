"""Knowing that a tenant's store is away, so that an outage burns no attempts and costs the store no requests.

            5 messages failed, none succeeded in between, over 5 s or more
    closed ───────────────────────────────────────────────────────────────▶ open ◀────────┐
      ▲                                                            2 s later, one message │ it failed
      │ the store answered                                                   ▼            │
      └──────────────────────────────────────────────────────────────────  probing ───────┘

Closed, trouble is Celery's to retry, where Flower shows it: most of it is short. Open, messages are answered `deferred`
without a request, for longer the longer the store has been away; their journals keep them. A store that asked for a
wait (Retry-After) is probed no sooner. One per tenant and worker process; it knows nothing of stores.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Breaker", "Breakers", "Turn"]

logger = logging.getLogger(__name__)

_FAILURES = 5
_FOR_S = 5.0
_PROBE_EVERY_S = 2.0
_HOLD_MAX_S = 300.0
_ASKED_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Leave to use the store for one message."""

    is_probe: bool


class Breaker:
    """`enter` before a message, `leave` after it. Safe between threads."""

    def __init__(self, name: str, *, hold_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`hold_s`: the shortest wait of what gets no turn."""
        self._name = name
        self._hold_s = hold_s
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._failures = 0
        self._failing_since_s = 0.0
        self._opened = False
        self._probing = False
        self._probe_at_s = 0.0

    def enter(self) -> Turn | None:
        """A turn, or None: send nothing, the store is away. Who got one must `leave`."""
        with self._guard:
            if not self._opened:
                return Turn(is_probe=False)
            if self._probing or self._monotonic() < self._probe_at_s:
                return None
            self._probing = True
            return Turn(is_probe=True)

    def leave(self, turn: Turn, *, answered: bool | None, asked_wait_s: float = 0.0) -> bool:
        """Whether an outage begins now. `answered`: the store did; None when nothing was learnt about it."""
        with self._guard:
            was_open, now_s = self._opened, self._monotonic()
            self._probing = self._probing and not turn.is_probe
            if answered:
                self._failures, self._opened = 0, False
            elif answered is False:
                self._fail(now_s, asked_wait_s)
            is_open, for_s = self._opened, now_s - self._failing_since_s
        if is_open and not was_open:
            logger.warning("action=store_away tenant=%s; deliveries wait in their journals, one is tried", self._name)
        elif was_open and not is_open:
            logger.warning("action=store_back tenant=%s away_s=%.0f; deliveries go on", self._name, for_s)
        return is_open and not was_open

    def _fail(self, now_s: float, asked_wait_s: float) -> None:
        if not self._failures:
            self._failing_since_s = now_s
        self._failures += 1
        self._probe_at_s = max(self._probe_at_s, now_s + max(_PROBE_EVERY_S, min(asked_wait_s, _ASKED_MAX_S)))
        self._opened = self._opened or (self._failures >= _FAILURES and now_s - self._failing_since_s >= _FOR_S)

    def hold_s(self) -> float:
        """How long a message that gets no turn, or whose turn failed, is to wait in its journal; 0 when closed."""
        with self._guard:
            if not self._opened:
                return 0.0
            now_s = self._monotonic()
            away_s, until_probe_s = now_s - self._failing_since_s, self._probe_at_s - now_s
            return max(self._hold_s, min(away_s / 2, _HOLD_MAX_S), until_probe_s)


class Breakers:
    """One breaker per tenant, made on first use."""

    def __init__(self, *, hold_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._hold_s = hold_s
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._breakers: dict[str, Breaker] = {}

    def of(self, tenant: str) -> Breaker:
        with self._guard:
            found = self._breakers.get(tenant)
            if found is None:
                found = self._breakers[tenant] = Breaker(tenant, hold_s=self._hold_s, monotonic=self._monotonic)
            return found
