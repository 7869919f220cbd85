"""The one table that benchmarks print."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Row", "median", "show"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """`figure` and `baseline` in `unit`, from interleaved rounds of one run. `ratio` is figure / baseline."""

    name: str
    figure: float
    baseline: float
    baseline_name: str
    unit: str

    @property
    def ratio(self) -> float:
        return self.figure / self.baseline


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def show(rows: Sequence[Row]) -> None:
    width = max(len(r.name) for r in rows)
    base = max(len(r.baseline_name) for r in rows)
    print(f"{'what':<{width}}  {'figure':>10}  {'baseline':>10}  {'unit':<10}  {'against':<{base}}  ratio")
    for r in rows:
        print(
            f"{r.name:<{width}}  {r.figure:>10.2f}  {r.baseline:>10.2f}  {r.unit:<10}  "
            f"{r.baseline_name:<{base}}  {r.ratio:.2f}"
        )
