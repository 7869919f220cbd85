"""Scenarios in which the store refuses, hangs, lies, doubles, commits late or is away."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from producer.receipt import State
from tests.faults import scenario as scenarios
from tests.faults.on_broker import must
from tests.faults.scenario import Scale, scenario
from tests.faults.table import Row
from tests.faults.world import World, frozen, is_ready, wait_for

MEMORY_BYTES = 300 << 20
_HANDLED = re.compile(r"action=handled .* lines=(\d+)")
REFUSED = (
    b"HTTP/1.1 422 Unprocessable Entity\r\nContent-Type: application/json\r\nContent-Length: 37\r\n"
    b'Connection: close\r\n\r\n{"success":false,"message":"refused"}'
)


@scenario("F1-long-backoff")
def long_backoff(name: str, scale: Scale) -> Row:
    """A long Retry-After does not make an event run again and again, and countdowns that could are refused at start."""
    pause_s = scale.pick(20, 200)
    settings = {"MEMORY_VISIBILITY_TIMEOUT_S": "5", "MEMORY_STORE_LATE_S": "1", "MEMORY_RETRY_MAX_COUNTDOWN_S": "1"}
    with World(workers=2, settings=settings) as world:
        for variable in ("MEMORY_STORE_LATE_S", "MEMORY_RETRY_MAX_COUNTDOWN_S"):
            refused = world.worker(wait=False, env={variable: "2.5"})
            must(world, refused.wait(60) not in (None, 0), f"{variable} of half the visibility timeout was accepted")
            world.workers.remove(refused)
        assert world.store is not None
        world.store.fail("busy", on="read", label="EPISODE", count=1, retry_after_s=pause_s)
        host = world.host(rate=0, count=1, mix="turns")
        world.wait_done(host)
        (one,) = world.acknowledged()
        time.sleep(pause_s * 1.6)  # the observation itself
        attempts = sum(worker.words().count(f"ids={one['id']}") for worker in world.workers)
        must(world, 1 < attempts <= 2, f"{attempts} attempts")
        must(world, world.store.faults_taken() == {"busy": 1}, "the store was never busy")
        world.notes.append(f"{attempts} attempts in {pause_s * 1.6:.0f} s")
        return world.row(name)


@scenario("F6-retry-flood")
def retry_flood(name: str, scale: Scale) -> Row:
    """The store is down while thousands of events wait: workers neither grow nor restart, and all are stored after."""
    with World(workers=1) as world:
        assert world.store is not None
        world.store.stop()
        pid = world.workers[0].pid
        host = world.host(rate=0, count=scale.pick(2_000, 50_000), mix="turns")
        highest, until = 0, time.monotonic() + scale.pick(20, 600)
        while time.monotonic() < until:
            highest = max(highest, world.workers[0].rss_bytes())
            time.sleep(0.25)
        world.wait_done(host, deadline_s=600)
        before = _handled(world)
        world.store.start()
        settled = world.settle(scale.pick(240, 3600))
        messages, lines = (after - then for after, then in zip(_handled(world), before, strict=True))
        highest = max(highest, world.workers[0].rss_bytes())
        must(world, settled, "not settled")
        must(world, highest < MEMORY_BYTES, f"the worker took {highest >> 20} MiB")
        must(world, world.workers[0].running and world.workers[0].pid == pid, "the worker was restarted")
        # Lines that waited for the store's sake come back many to a message.
        must(world, messages * 4 < lines, f"{messages} messages for {lines} lines after the outage")
        world.notes.append(f"worker at most {highest >> 20} MiB, {messages} messages for {lines} lines after it")
        return world.row(name)


def _handled(world: World) -> tuple[int, int]:
    """Messages that workers answered, and lines in them."""
    lines = [int(found[1]) for worker in world.workers for found in _HANDLED.finditer(worker.words())]
    return len(lines), sum(lines)


@scenario("F42-long-outage")
def long_outage(name: str, scale: Scale) -> Row:
    """Away longer than all retries, then 5xx, 429 and one 422: only that is dead, and stored when replayed."""
    with World(workers=2, store_proxy=True) as world:
        assert world.store is not None and world.store_proxy is not None
        world.host(rate=20), world.host(rate=20, journal=1)
        world.begin()
        world.store_proxy.set("refuse")
        time.sleep(scale.pick(12, 1800))  # the outage itself
        world.store_proxy.set("pass")
        world.store.fail("error")
        time.sleep(scale.pick(4, 60))
        world.store.clear_faults()
        world.store.fail("busy", count=20, retry_after_s=2)
        time.sleep(scale.pick(4, 60))
        world.end()
        must(world, world.settle(), "not settled after the outage")
        world.store.clear_faults()
        world.store_proxy.set("answer", data=REFUSED)
        world.store_proxy.drop(reset=False)
        host = world.host(journal=2, rate=0, count=1, mix="turns")
        world.wait_done(host)
        must(world, world.settle(), "the refused one is not dead")
        (refused,) = world.acknowledged(host.name)
        states = world.watch(world.journal(2)).states()[refused["id"]]
        must(world, states == {State.DEAD}, f"the refused one is {states}")
        must(world, len(world.records("MEMORY_FACT") + world.records("EPISODE")) > 100, "the load is not stored")
        world.command("replay", "--all", journal=2)
        must(world, world.settle(), "the replayed one is not stored")
        return world.row(name)


def _under(
    name: str, scale: Scale, faults: Sequence[Mapping[str, Any]], *, kills_workers: bool = False, seconds: float = 8.0
) -> Row:
    """A load while requests go wrong like this, each with its probability."""
    rng = random.Random(scale.seed)
    with World(workers=2, seed=scale.seed) as world:
        assert world.store is not None
        for number, fault in enumerate(faults):
            world.store.fail(**{"seed": scale.seed + number, **fault})
        world.host(rate=15), world.host(rate=15, journal=1, mix="facts")
        world.begin()
        began = time.monotonic()
        kinds = {fault["kind"] for fault in faults}
        handled = dict.fromkeys(world.workers, 0)
        killed = 0

        def has_seen_enough() -> bool:
            taken = world.store.faults_taken()  # type: ignore[union-attr]
            enough = all(taken.get(kind, 0) >= 8 for kind in kinds) and (killed >= 3 or not kills_workers)
            return (enough and time.monotonic() - began >= seconds * scale.pick(1, 6)) or time.monotonic() - began > 120

        for worker in itertools.cycle(world.workers):
            if has_seen_enough():
                break
            time.sleep(rng.uniform(0.3, 1.0))  # load
            if kills_workers and is_ready(worker) and worker.times_said("action=handled") > handled[worker]:
                worker.kill()
                worker.start()
                killed += 1
                handled[worker] = worker.times_said("action=handled")
        taken = world.store.faults_taken()
        world.end()
        world.store.clear_faults()
        world.store.release()
        must(world, set(taken) == kinds, f"some faults never came: {taken}")
        world.notes.append(", ".join(f"{kind} {number}" for kind, number in sorted(taken.items())))
        if kills_workers:
            must(world, killed > 0, "no worker was killed")
            world.notes.append(f"{killed} workers killed")
        return world.row(name)


_WRITES = ("write", "link", "delete")

for _name, _what, _faults, _kills in (
    ("store-hang", "requests that are never answered", [{"kind": "hang", "probability": 0.05}], False),
    (
        "store-5xx",
        "500 with and without effect, database errors, 502 in HTML",
        [{"kind": kind, "probability": 0.08} for kind in ("error", "error_after", "database_error", "bad_gateway")],
        False,
    ),
    ("store-429", "429 with Retry-After", [{"kind": "busy", "probability": 0.2, "retry_after_s": 1}], False),
    ("store-403-throttle", "403 as RushDB 2.11 throttles", [{"kind": "throttle", "probability": 0.2}], False),
    ("store-408", "408, the server's time budget", [{"kind": "timeout", "probability": 0.2}], False),
    (
        "store-broken-answers",
        "resets before and after the effect, and half a body",
        [{"kind": kind, "probability": 0.1} for kind in ("reset", "reset_after", "half_body")],
        False,
    ),
    (
        "store-lies",
        "answers of 200 and 201 to what was never committed",
        [{"kind": "lie", "on": _WRITES, "probability": 0.2}],
        True,
    ),
    (
        "store-doubles",
        "upserts that make a second record",
        [{"kind": "double", "on": "write", "probability": 0.3}],
        True,
    ),
    (
        "store-late-commits",
        "commits after the caller gave up, while workers are killed",
        [
            {"kind": "late", "on": _WRITES, "probability": 0.08, "late_s": 2.0},
            {"kind": "late_double", "on": "write", "probability": 0.15, "late_s": 2.0},
        ],
        True,
    ),
    (
        "store-everything",
        "all of it at once, while workers are killed",
        [
            {"kind": "lie", "on": _WRITES, "probability": 0.05},
            {"kind": "double", "on": "write", "probability": 0.1},
            {"kind": "late_double", "on": _WRITES, "probability": 0.08, "late_s": 2.0},
            {"kind": "error_after", "probability": 0.05},
            {"kind": "reset_after", "probability": 0.05},
            {"kind": "half_body", "probability": 0.05},
        ],
        True,
    ),
):

    def _run(scale: Scale, name: str = _name, faults: Any = _faults, kills: bool = _kills) -> Row:
        return _under(name, scale, faults, kills_workers=kills)

    scenarios.add(_name, f"A load under {_what}.", _run)


@scenario("store-late-double")
def store_late_double(name: str, scale: Scale) -> Row:
    """Writes that had looked before they were late make second records after the retry was stored: all are folded."""
    with World() as world:
        assert world.store is not None
        world.store.fail("late_double", on="write", label="EPISODE", count=6, late_s=2.5)
        world.wait_done(world.host(rate=4, count=24, mix="turns"))
        must(world, world.settle(), "not settled")
        taken = world.store.faults_taken()
        must(world, taken == {"late_double": 6}, f"faults {taken}")
        return world.row(name)


@scenario("store-killed-under-load")
def store_killed_under_load(name: str, scale: Scale) -> Row:
    """The store is killed, frozen and away in turn under load."""
    with World(workers=2) as world:
        assert world.store is not None
        world.host(rate=20), world.host(rate=20, journal=1)
        world.begin()
        for _ in range(scale.pick(3, 15)):
            time.sleep(1.0)  # load
            world.store.kill()
            time.sleep(0.5)  # the outage itself
            world.store.start()
            time.sleep(1.0)
            with frozen(world.store):
                time.sleep(1.4)  # less than MEMORY_STORE_LATE_S: what it holds is committed late
        return world.row(name)


@scenario("store-slow")
def store_slow(name: str, scale: Scale) -> Row:
    """Every answer takes longer than the worker waits for a while, and is applied all the same."""
    with World(workers=2) as world:
        assert world.store is not None
        world.host(rate=10), world.host(rate=10, journal=1)
        world.begin()
        time.sleep(1.0)  # load
        world.store.fail("delay", on="write", delay_s=2.5)  # MEMORY_STORE_TIMEOUT_S is 2
        time.sleep(5.0)  # the trouble itself
        world.store.clear_faults()
        wait_for(lambda: world.stored() > 0, 60, "something is stored")
        return world.row(name)
