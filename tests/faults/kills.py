"""Random kills and freezes of a running world, from one seed.

Victims are hosts, workers and their children, agents, Redis and the store. A killed one is started again after a random
pause, a frozen one goes on after a random while. One-shot captures are killed right after they were acknowledged. Redis
syncs its AOF once a second, so that a kill may take the last second of its queue with it.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil

from tests.faults.world import LATE_BOUND_S, World, is_ready

__all__ = ["Kills"]

_FREEZE_SHARE = 0.25
_WEIGHTS = {"host": 5, "worker": 6, "agent": 2, "redis": 3, "store": 4, "once": 2, "child": 1}


class Kills:
    """`run` until so many were killed, or until a time; everything lives again afterwards."""

    def __init__(self, world: World, *, seed: int, pause_s: tuple[float, float] = (0.05, 0.8)) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.pause_s = pause_s
        self.kills = 0
        self.by_victim: Counter[str] = Counter()
        self._down: set[int] = set()  # id() of what is dead or frozen now
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def run(self, *, kills: int | None = None, until_s: float | None = None) -> None:
        """`until_s` on the monotonic clock."""
        while (kills is None or self.kills < kills) and (until_s is None or time.monotonic() < until_s):
            self._strike()
            self._wait(self.rng.uniform(*self.pause_s))
        while self._due:
            self._wait(0.05)

    def note(self) -> str:
        parts = ", ".join(f"{name} {number}" for name, number in sorted(self.by_victim.items()))
        return f"{self.kills} kills ({parts})"

    def _wait(self, pause_s: float) -> None:
        until = time.monotonic() + pause_s
        while True:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            if now >= until:
                return
            time.sleep(max(0.0, min(until, self._due[0][0] if self._due else until) - now))

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._numbers), act))

    def _strike(self) -> None:
        kinds = list(_WEIGHTS)
        kind = self.rng.choices(kinds, [_WEIGHTS[k] for k in kinds])[0]
        if kind in ("once", "child"):
            self._strike_once() if kind == "once" else self._strike_child()
            return
        victims = [one for one in self._victims(kind) if id(one) not in self._down]
        if not victims:
            return
        victim = self.rng.choice(victims)
        if self.rng.random() < _FREEZE_SHARE:
            self._freeze(kind, victim)
        else:
            self._kill(kind, victim)

    def _victims(self, kind: str) -> list[Any]:
        world = self.world
        return {
            "host": [host for host in world.hosts if host.running and not host.name.startswith("once")],
            # A starting one is worth killing too, but on a busy machine none would ever get to work.
            "worker": [one for one in world.workers if is_ready(one) or self.rng.random() < 0.1],
            "agent": world.agents,
            "redis": [world.redis, *([world.rabbit] if world.rabbit is not None else [])],
            "store": [world.store] if world.store is not None else [],
        }[kind]

    def _kill(self, kind: str, victim: Any) -> None:
        victim.kill()
        self.kills += 1
        self.by_victim[kind] += 1
        self._down.add(id(victim))

        def revive() -> None:
            victim.start()
            self._down.discard(id(victim))

        self._later(self.rng.uniform(0.0, 1.5), revive)

    def _freeze(self, kind: str, victim: Any) -> None:
        victim.freeze()
        self.by_victim[f"{kind} frozen"] += 1
        self._down.add(id(victim))

        def thaw() -> None:
            victim.thaw()
            self._down.discard(id(victim))

        # What a frozen store or worker still has in its hands is applied late: not later than a store may be.
        self._later(self.rng.uniform(0.1, LATE_BOUND_S), thaw)

    def _strike_child(self) -> None:
        """A worker's child, which handles what may kill: the worker lives on and answers for it."""
        children = []
        for worker in self.world.workers:
            try:
                children += psutil.Process(worker.pid).children() if worker.running else []
            except psutil.NoSuchProcess:
                continue
        if children:
            try:
                self.rng.choice(children).kill()
            except psutil.NoSuchProcess:
                return
            self.kills += 1
            self.by_victim["child"] += 1

    def _strike_once(self) -> None:
        """A one-shot host that captures on the agent's journal and is killed at a random point."""
        host = self.world.host(
            name=f"once{len(self.world.hosts)}", rate=0, count=3, mix="turns", dispatches=False, leave="killed"
        )
        self.kills += 1
        self.by_victim["once"] += 1

        def end() -> None:
            if host.running:
                host.kill()

        self._later(self.rng.uniform(0.1, 1.0), end)
