"""Running scenarios, one after the other or some at the same time, each then in a process of its own."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.faults import table
from tests.faults.scenarios import ALL, Scale
from tests.faults.table import Row

__all__ = ["rows"]


def rows(names: Sequence[str], scale: Scale, jobs: int) -> Iterator[Row]:
    """The row of each, as they end."""
    if jobs <= 1:
        yield from (_run(name, scale) for name in names)
        return
    again = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(_run, name, scale) for name in names]):
            row = done.result()
            if row.good:
                yield row
            else:
                print(
                    f"{table.line(row)}\n{row.scenario} was not good beside another one: once more, alone", flush=True
                )
                again.append(row.scenario)
    yield from (_run(name, scale) for name in again)


def _run(name: str, scale: Scale) -> Row:
    """Its row; a scenario that ends in an error is a problem of the table, not its end."""
    one = ALL[name]
    began = time.monotonic()
    try:
        return one.run(scale)
    except Exception as problem:  # noqa: BLE001 the edge of the table
        traceback.print_exc()
        words = f"{type(problem).__name__}: {str(problem)[:200]}"
        return Row(
            scenario=one.name, events=0, lost=0, doubled=0, dead=0, seconds=time.monotonic() - began, problems=(words,)
        )
