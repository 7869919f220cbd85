"""Who is to blame when a child dies, without children: a pool that answers and dies as it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_tasks import children, frames, incoming, poison, tenants
from memory_tasks.results import Died, Fault, Handled
from producer import errors, message
from producer.convergence import delivery
from producer.receipt import State
from tests import worker_messages as make

GRANT = tenants.Grant(key=message.Key(id="key", secret=b"s" * 32), tenant="local", store_url="x")


class Pool:
    """Dies over `killers` (numbers of items), raises or answers as told, and notes the requests."""

    def __init__(self, *killers: int) -> None:
        self.killers = {make.line(make.episode(number)).text for number in killers}
        self.problem: Exception | None = None
        self.fault = ""
        self.asked: list[int] = []

    def ask(self, request: Mapping[str, Any], *, until: float) -> dict[str, Any]:
        items, *_ = frames.request_of(request)
        self.asked.append(len(items))
        if self.problem is not None:
            raise self.problem
        if self.killers.intersection(item.line for item in items):
            raise children.ChildDied("signal 9")
        if self.fault:
            return {"fault": self.fault}
        settled = delivery.Settled(state=State.STORED)
        return frames.answer_of([Handled(entry=incoming.unopened(item), result=settled) for item in items])


def item(number: int, **changes: Any) -> message.Item:
    return make.item(make.line(make.episode(number)), unsure=True, **changes)


def handled(pool: Pool, *items: message.Item) -> list[Any]:
    found = poison.Apart(pool).handle(items, GRANT, received_s=0.0, until=10.0)
    assert [one.entry.item for one in found] == list(items)
    return [one.result for one in found]


SETTLED = delivery.Settled(state=State.STORED)


def test_a_batch_goes_to_one_child_as_a_whole():
    pool = Pool()
    assert handled(pool, *(item(number) for number in range(100))) == [SETTLED] * 100
    assert pool.asked == [100]


def test_a_batch_that_killed_a_child_is_handled_one_by_one_and_the_killers_alone_die():
    pool = Pool(1, 3)
    assert handled(pool, *(item(n) for n in range(5))) == [SETTLED, Died(), SETTLED, Died(), SETTLED]
    assert pool.asked == [5, 1, 1, 1, 1, 1]


def test_an_item_with_deaths_joins_no_batch():
    pool = Pool(1)
    results = handled(pool, item(0), item(1, deaths=1), item(2, deaths=2), item(3))
    assert results == [SETTLED, Died(), SETTLED, SETTLED]
    assert sorted(pool.asked) == [1, 1, 2]


def test_a_hang_and_a_pool_without_children_are_transient_trouble():
    pool = Pool()
    for problem, unsure in ((errors.DeliveryTooOld("x"), True), (errors.ChildUnavailable("x"), False)):
        pool.problem = problem
        assert handled(pool, item(0), item(1)) == [delivery.Failed(error=problem, unsure=unsure)] * 2


def test_a_fault_in_a_child_blames_nobody():
    pool = Pool()
    pool.fault = "KeyError"
    assert handled(pool, item(0), item(1)) == [Fault(kind="KeyError")] * 2
