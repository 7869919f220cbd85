"""One load for long, under random kills of hosts, workers, agent, Redis and the store: `make soak MINUTES=30 [SEED=n]`.

Prints its seed, a line of progress a minute, and the table. Exit code 1 when anything was lost or doubled.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.faults import table
from tests.faults.kills import Kills
from tests.faults.world import World

HOSTS, RATE = 3, 5.0
PAUSE_S = (0.3, 4.0)  # between two strikes: workers get to work in between


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    end_s = time.monotonic() + options.minutes * 60
    with World(workers=2, seed=seed) as world:
        for number in range(HOSTS):
            world.host(rate=RATE, journal=min(number, 1))
        world.agent(journal=0)
        world.begin()
        kills = Kills(world, seed=seed, pause_s=PAUSE_S)
        while time.monotonic() < end_s:
            kills.run(until_s=min(end_s, time.monotonic() + 60))
            print(
                f"{world.age_s() / 60:5.1f} min  {len(world.acknowledged()):>7} acknowledged  "
                f"{world.stored():>7} stored  {world.pending():>6} pending  {kills.note()}",
                flush=True,
            )
        world.notes.append(kills.note())
        row = world.row(f"soak {options.minutes:g} min, seed {seed}", deadline_s=600)
    print(table.table([row]))
    return 0 if row.good else 1


if __name__ == "__main__":
    sys.exit(main())
