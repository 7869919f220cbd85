"""Orders of histories on their way: published as hosts do, answered by receipts, published again where one says so.

An order is a list of stages. What stands in one stage is published at once; the next begins when all of it has its
last receipt. Hundreds of orders are under way at a time, so that workers get whole batches, of many scopes.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from producer import message, receipt
from producer.receipt import State
from tests.histories.saying import Said
from tests.histories.world import JOURNAL, World

__all__ = ["Order", "Runner", "every_order", "random_order"]

UNDER_WAY = 300
STALLED_S = 120.0
CHUNK = 60


@dataclass(eq=False)
class Order:
    """One history in one order, and what became of each of its lines."""

    said: Sequence[Said]
    stages: deque[list[Said]]
    deliveries: int = 0
    open: int = 0  # published, not answered for good
    dead: list[str] = field(default_factory=list)


def every_order(said: Sequence[Said]) -> Iterator[list[int]]:
    return (list(order) for order in itertools.permutations(range(len(said))))


def random_order(rng: random.Random, said: Sequence[Said], order: Sequence[int], *, at_once: float = 0.0) -> Order:
    """This order, with some lines delivered again later. `at_once`: how likely a line joins the stage before it."""
    places = list(order)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        first = rng.randrange(len(places))
        places.insert(rng.randint(first + 1, len(places)), places[first])
    stages: deque[list[Said]] = deque()
    for place in places:
        if stages and rng.random() < at_once:
            stages[-1].append(said[place])
        else:
            stages.append([said[place]])
    return Order(said=said, stages=stages)


class Runner:
    """Takes orders through a world. `run` returns when all are done."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._of_line: dict[str, tuple[Order, Said]] = {}
        self._ready: list[tuple[Said, bool]] = []  # to publish, and whether it is unsure
        self._later: list[tuple[float, int, Said]] = []
        self._number = itertools.count()
        self.deferred = 0

    def run(self, orders: Sequence[Order]) -> None:
        waiting = deque(orders)
        under_way: set[int] = set()
        heard = time.monotonic()
        while waiting or under_way:
            while waiting and len(under_way) < UNDER_WAY:
                order = waiting.popleft()
                self._of_line.update((said.hash, (order, said)) for said in order.said)
                under_way.add(id(order))
                self._next_stage(order)
            self._publish()
            taken = self._world.receipts(0.05)
            if taken:
                heard = time.monotonic()
            assert time.monotonic() - heard < STALLED_S, f"no receipt came; the workers say: {self._world.logs()}"
            for one in taken:
                self._take(one, under_way)

    def _next_stage(self, order: Order) -> None:
        stage = order.stages.popleft()
        order.open += len(stage)
        self._ready += [(said, self._rng.random() < 0.02) for said in stage]

    def _take(self, one: receipt.Receipt, under_way: set[int]) -> None:
        order, said = self._of_line[one.line_hash]
        if one.state is State.DEFERRED:
            self.deferred += 1
            again = time.monotonic() + min(one.delay_s, 5.0)
            heapq.heappush(self._later, (again, next(self._number), said))
            return
        if one.state is State.DEAD:
            order.dead.append(one.reason)
        order.open -= 1
        if order.open == 0:
            if order.stages:
                self._next_stage(order)
            else:
                under_way.discard(id(order))

    def _publish(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            self._ready.append((heapq.heappop(self._later)[2], True))
        if not self._ready:
            return
        ready, self._ready = self._ready, []
        self._rng.shuffle(ready)
        alone = [one for one in ready if len(ready) < 10 or self._rng.random() < 0.3]
        chosen = set(map(id, alone))
        rest = [one for one in ready if id(one) not in chosen]
        messages = [[one] for one in alone]
        task_ids = [said.id for said, _ in alone]
        for start in range(0, len(rest), CHUNK):
            messages.append(rest[start : start + CHUNK])
            task_ids.append(f"chunk-{uuid.uuid4()}")
        for said, _ in ready:
            self._of_line[said.hash][0].deliveries += 1
        self._world.publish([[_item(*one) for one in items] for items in messages], task_ids)


def _item(said: Said, unsure: bool) -> message.Item:
    return message.Item(line=said.text, journal_id=JOURNAL, unsure=unsure)
