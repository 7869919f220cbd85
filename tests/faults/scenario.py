"""What a named scenario is, and the register of all of them.

A scenario makes a world, troubles it, and returns a row. It asserts what is its own (times, memory, counts); what holds
for all (nothing lost, nothing doubled, right verdicts, journals empty, nothing left running) is counted by `World.row`.
Names are those of the field scenarios where one stands behind it (F1, F2, …). Times asserted are ten times those of the
benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.table import Row

__all__ = ["KNOWN", "Scale", "Scenario", "scenario"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large a run is. `long`: the sizes of the field scenarios; else what fits into minutes."""

    seed: int = 1
    long: bool = False
    kills: int = 0  # of random kills; 0: as many as the size asks for

    def pick(self, short: int, long: int) -> int:
        return long if self.long else short


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    what: str
    run: Callable[[Scale], Row]


KNOWN: dict[str, Scenario] = {}


def scenario(name: str) -> Callable[[Callable[[str, Scale], Row]], Callable[[str, Scale], Row]]:
    """Register under this name; the first line of the docstring says what must hold."""

    def register(run: Callable[[str, Scale], Row]) -> Callable[[str, Scale], Row]:
        add(name, (run.__doc__ or "").strip().split("\n")[0], lambda scale: run(name, scale))
        return run

    return register


def add(name: str, what: str, run: Callable[[Scale], Row]) -> None:
    assert name not in KNOWN, f"two scenarios are named {name}"
    KNOWN[name] = Scenario(name=name, what=what, run=run)
