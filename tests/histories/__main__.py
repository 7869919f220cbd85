"""Run histories on the three stores, and print the table: `python -m tests.histories --seed N --runs R`.

A difference is printed with the seed of its history, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tests.histories.campaign import Row, campaign, head
from tests.histories.world import STORES, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the next have the next numbers")
    parser.add_argument("--runs", type=int, default=20, help="histories per store; every other one is large")
    parser.add_argument("--orders", type=int, default=40, help="orders of a large history")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the world's processes end with this one
    rows: list[Row] = []
    print(head(), flush=True)
    for store in options.stores:
        with World(store) as world:
            row, differences = campaign(world, range(options.seed, options.seed + options.runs), orders=options.orders)
        rows.append(row)
        print(row, flush=True)
        for difference in differences:
            print(f"{store}: {difference}", flush=True)
    return 1 if any(row.differing for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
