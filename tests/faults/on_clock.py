"""Scenarios in which the wall clock of whole processes jumps (Debian's libfaketime; the monotonic clock goes on)."""

from __future__ import annotations

import time
from pathlib import Path

from tests.faults.on_broker import must
from tests.faults.scenario import Scale, scenario
from tests.faults.table import Row
from tests.faults.world import World

_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
_MENDED_SLEEP = Path(__file__).parent / "faketime"


@scenario("clock-jumps")
def clock_jumps(name: str, scale: Scale) -> Row:
    """The clocks of a host and a worker jump an hour ahead and back, out of step with the others."""
    assert _LIBRARIES, "libfaketime is missing (Debian: apt install libfaketime)"
    with World(workers=1) as world:
        offset = world.directory / "offset"
        offset.write_text("+0\n")
        faked = {
            "LD_PRELOAD": str(_LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": f"{_MENDED_SLEEP}:{world.environ['PYTHONPATH']}",
        }
        world.worker(env=faked)
        world.host(rate=20, env={**faked, "MEMORY_JOURNAL_DIR": str(world.journal(0))})
        world.host(rate=20, journal=1)
        world.begin()
        for jump in ("+3600", "-3600", "+600", "+0"):
            time.sleep(3.0)  # load
            offset.write_text(f"{jump}\n")
        time.sleep(3.0)
        captured = len(world.acknowledged("h0"))
        must(world, captured > 50, f"the host under the jumping clock captured {captured} only")
        must(world, all(worker.running for worker in world.workers), "a worker ended")
        # A countdown that began an hour ahead ends an hour later: such a message is a copy of what has been delivered.
        return world.row(name, empties_queues=False)
