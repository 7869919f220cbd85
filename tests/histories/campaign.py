"""Many histories on one world, each in many orders, and the row that they come to."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.histories import history, verdict
from tests.histories.model import expected
from tests.histories.runner import Order, Runner, every_order, random_order
from tests.histories.world import World

__all__ = ["Row", "campaign", "head"]

HISTORIES_AT_ONCE = 6


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one store came to."""

    store: str
    histories: int
    orders: int
    deliveries: int
    differing: int  # orders whose final state is not the model's
    resurrected: int  # records that were ended, and there or current all the same
    problems: Mapping[str, int]  # what the histories ask `facts check` to tell, by code
    faults: int  # requests that went wrong in the store

    def __str__(self) -> str:
        states = (self.histories, self.orders, self.deliveries, self.differing, self.resurrected)
        numbers = (*states, self.problems.get("conflict", 0), self.faults)
        return f"| {self.store} | {' | '.join(f'{n:,}' for n in numbers)} |"


def head() -> str:
    names = ("store", "histories", "orders", "deliveries", "states differing", "resurrected", "conflicts", "faults")
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def campaign(world: World, seeds: Iterable[int], *, orders: int) -> tuple[Row, list[str]]:
    """Run the histories of these seeds; large ones in so many orders. Returns the row, and each difference in words."""
    run = uuid.uuid4().hex
    told: list[str] = []
    numbers = {"histories": 0, "orders": 0, "deliveries": 0, "differing": 0, "resurrected": 0}
    problems: Counter[str] = Counter()
    left = list(seeds)
    while left:
        now, left = left[:HISTORIES_AT_ONCE], left[HISTORIES_AT_ONCE:]
        made = [(seed, order) for seed in now for order in _orders(run, seed, orders)]
        Runner(world, random.Random(now[0])).run([order for _, order in made])
        numbers["histories"] += len(now)
        for seed, differences, asked in _judge(world, made):
            problems += asked
            numbers["differing"] += bool(differences)
            numbers["resurrected"] += sum(one.resurrected for one in differences)
            told += [f"history {seed}: {one.what}" for one in differences]
        numbers["orders"] += len(made)
        numbers["deliveries"] += sum(order.deliveries for _, order in made)
    faults = sum(world.rushdb.faults_taken().values()) if world.rushdb is not None else 0
    return Row(store=world.name, problems=problems, faults=faults, **numbers), told


def _orders(run: str, seed: int, orders: int) -> Iterable[Order]:
    rng = random.Random(seed)
    if history.is_small(seed):
        for number, order in enumerate(every_order(history.write(seed, run, 0))):
            yield random_order(rng, history.write(seed, f"{run} {seed}", number), order)
        return
    for number in range(orders):
        said = history.write(seed, f"{run} {seed}", number)
        order = list(range(len(said)))
        rng.shuffle(order)
        yield random_order(rng, said, order, at_once=rng.choice((0.0, 0.5, 1.0)))


def _judge(world: World, made: list[tuple[int, Order]]) -> Iterable[tuple[int, list[verdict.Difference], Counter[str]]]:
    models = [(seed, order, expected(order.said)) for seed, order in made]
    held = verdict.look(world.store, world.recent, [key for _, _, told in models for key in told])
    for seed, order, told in models:
        differences = [verdict.Difference(what=f"a line is dead: {reason}") for reason in order.dead]
        for scope_key, one in told.items():
            differences += held[scope_key].differences(one)
        yield seed, differences, sum((one.codes for one in told.values()), Counter())
