"""The table of scenarios: one row each, with what was lost, doubled and dead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Row", "header", "line", "table"]

_FORM = "{:<26} {:>8} {:>6} {:>10} {:>6} {:>8}  {}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a scenario came to. `notes` are measurements, `problems` whatever else was not as it must be."""

    scenario: str
    events: int
    lost: int
    doubled: int
    dead: int
    seconds: float
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not (self.lost or self.doubled or self.problems)


def header() -> str:
    return _FORM.format("scenario", "events", "lost", "duplicated", "dead", "seconds", "").rstrip()


def line(row: Row) -> str:
    remarks = "; ".join([*(f"PROBLEM {problem}" for problem in row.problems), *row.notes])
    cells = (row.scenario, row.events, row.lost, row.doubled, row.dead, f"{row.seconds:.1f}")
    return _FORM.format(*cells, remarks).rstrip()


def table(rows: Iterable[Row]) -> str:
    return "\n".join([header(), *map(line, rows)])
