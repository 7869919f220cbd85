"""Fault switches: which requests go wrong, and how.

A fault says two independent things: whether and when the request takes *effect*, and what its caller gets as *answer*.
The names below are the useful pairs; `effect` overrides the first half.

    name            effect   answer
    delay           now      the right one, `delay_s` later
    hang            never    none, until the caller leaves or `release` (which resets the connection)
    reset           never    connection reset
    reset_after     now      connection reset
    half_body       now      the head and half of the body, then the connection closes
    throttle        never    403 `Forbidden resource`, as 2.11 throttles; no Retry-After
    timeout         never    408, the server's time budget
    busy            never    429 with Retry-After: `retry_after_s`
    error           never    500 `{}`
    error_after     now      500 `{}`
    database_error  never    500 `Neo4j database error occurred`
    bad_gateway     never    502 with an HTML page
    quote           never    422 whose message quotes the whole request, texts and all
    lie             never    the right one: 200 or 201, and nothing was committed
    late            late     none; applied `late_s` after the caller left
    late_double     late_double   none; as `late`, but it looked before it was late: an upsert makes another record
    double          double   the right one; an upsert made another record although one exists

Effects: `now`, `never`, `late` (`late_s` after the answer or the caller's end), `double` (upserts; for others now),
`late_double` (both).

Requests are classed as write (upserts, creates), read (find, get, edges), link, delete, vector (vectors stored), search
(ranked), index (indexes made or listed) and other (settings, health, unknown routes); `on` names one, several, or any.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

CLASSES = frozenset({"write", "read", "link", "delete", "vector", "search", "index", "other"})

_KINDS: Mapping[str, tuple[str, str]] = {
    "delay": ("now", "ok"),
    "hang": ("never", "hang"),
    "reset": ("never", "reset"),
    "reset_after": ("now", "reset"),
    "half_body": ("now", "half"),
    "throttle": ("never", "throttle"),
    "timeout": ("never", "timeout"),
    "busy": ("never", "busy"),
    "error": ("never", "error"),
    "error_after": ("now", "error"),
    "database_error": ("never", "database_error"),
    "bad_gateway": ("never", "bad_gateway"),
    "quote": ("never", "quote"),
    "lie": ("never", "ok"),
    "late": ("late", "hang"),
    "late_double": ("late_double", "hang"),
    "double": ("double", "ok"),
}
_EFFECTS = frozenset({"now", "never", "late", "late_double", "double"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One switch. It takes the first `count` matching requests (all, when None) after letting `after` of them pass,
    each with `probability` (drawn from `seed`). `label`: only requests for that label."""

    kind: str
    on: str | tuple[str, ...] = "any"
    label: str | None = None
    count: int | None = None
    after: int = 0
    probability: float = 1.0
    seed: int = 0
    delay_s: float = 0.0
    late_s: float = 0.05
    retry_after_s: int = 1
    effect: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"no fault is named {self.kind!r}; there are {', '.join(_KINDS)}")
        if self.effect not in _EFFECTS | {""}:
            raise ValueError(f"no effect is named {self.effect!r}")
        if self.on != "any" and not CLASSES.issuperset(self.classes):
            raise ValueError(f"no request class is named {self.on!r}; there are {', '.join(sorted(CLASSES))}")

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Fault:
        names = {field.name for field in fields(cls)}
        if not names.issuperset(document):
            raise ValueError(f"a fault has no {', '.join(sorted(set(document) - names))}")
        on = document.get("on", "any")
        return cls(**{**document, "on": on if isinstance(on, str) else tuple(on)})

    @property
    def classes(self) -> frozenset[str]:
        return frozenset({self.on} if isinstance(self.on, str) else self.on)

    @property
    def takes_effect(self) -> str:
        return self.effect or _KINDS[self.kind][0]

    @property
    def answer(self) -> str:
        return _KINDS[self.kind][1]

    def concerns(self, request_class: str, label: str | None) -> bool:
        return (self.on == "any" or request_class in self.classes) and self.label in (None, label)


class _Switch:
    """A fault that is set, with what is left of its counts."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._left = fault.count
        self._to_pass = fault.after
        self._random = random.Random(fault.seed)

    def takes(self) -> bool:
        if self._left == 0:
            return False
        if self._to_pass > 0:
            self._to_pass -= 1
            return False
        if self.fault.probability < 1.0 and self._random.random() >= self.fault.probability:
            return False
        if self._left is not None:
            self._left -= 1
        return True


class Faults:
    """The switches of one server, safe to share between threads. The first that takes a request has it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._switches: list[_Switch] = []
        self._taken: Counter[str] = Counter()
        self._released = threading.Event()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._switches.append(_Switch(fault))

    def clear(self) -> None:
        """No further request goes wrong. Those that hang already keep hanging; see `release`."""
        with self._lock:
            self._switches.clear()

    def release(self) -> None:
        """Every request that hangs now ends with a reset."""
        with self._lock:
            released, self._released = self._released, threading.Event()
        released.set()

    @property
    def released(self) -> threading.Event:
        with self._lock:
            return self._released

    def take(self, request_class: str, label: str | None) -> Fault | None:
        if not self._switches:
            return None
        with self._lock:
            for switch in self._switches:
                if switch.fault.concerns(request_class, label) and switch.takes():
                    self._taken[switch.fault.kind] += 1
                    return switch.fault
        return None

    @property
    def taken(self) -> dict[str, int]:
        """How many requests each kind of fault has had."""
        with self._lock:
            return dict(self._taken)
