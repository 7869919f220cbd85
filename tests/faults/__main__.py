"""Run scenarios and print their table: `python -m tests.faults [--seed N] [--long] [--kills N] [--jobs N] [names…]`.

A name may be the beginning of one. Scenarios wait more than they work: with `--jobs` some run at the same time, each in
a process and a world of its own; their times then say little. What is not good then is run once more alone, and said.
Exit code 1 when anything was lost, doubled or otherwise not as it must be.
"""

from __future__ import annotations

import argparse
import sys

from tests.faults import runner, table
from tests.faults.scenarios import ALL, Scale


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios, or beginnings of their names; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true", help="the full sizes; hours")
    parser.add_argument("--kills", type=int, default=0, help="of random kills, in place of the size's own number")
    parser.add_argument("--jobs", type=int, default=1, help="so many scenarios at the same time")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    options = parser.parse_args()
    chosen = [one for one in ALL.values() if not options.names or one.name.startswith(tuple(options.names))]
    if not chosen:
        parser.error(f"no scenario is named so; there are {', '.join(ALL)}")
    if options.list:
        for one in chosen:
            print(f"{one.name:<26} {one.what}")
        return 0
    scale = Scale(seed=options.seed, long=options.long, kills=options.kills)
    print(f"seed {scale.seed}\n{table.header()}", flush=True)
    rows = []
    for row in runner.rows([one.name for one in chosen], scale, options.jobs):
        rows.append(row)
        print(table.line(row), flush=True)
    bad = [row.scenario for row in rows if not row.good]
    events = sum(row.events for row in rows)
    print(
        f"{len(rows)} scenarios, {events} events, {sum(row.lost for row in rows)} lost, "
        f"{sum(row.doubled for row in rows)} duplicated" + (f"; not good: {', '.join(bad)}" if bad else "")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
