"""Who is to blame when a child dies, without children: a pool that answers and dies as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from memory_tasks import children, clock, frames, incoming, poison, tenants
from memory_tasks.results import Died, Fault, Handled
from producer import errors, message
from producer.convergence import delivery
from producer.receipt import State
from tests import worker_messages as make

DEADLINE_S = 20.0
UNTIL = clock.now_s() + 1000.0
GRANT = tenants.Grant(key=message.Key(id="key", secret=b"s" * 32), tenant="local", store_url="x")


class Pool:
    """Dies over `killers` (numbers of items), raises or answers as told, and notes the requests."""

    def __init__(self, *killers: int) -> None:
        self.killers = {make.line(make.episode(number)).text for number in killers}
        self.problem: Exception | None = None
        self.fault = ""
        self.asked: list[int] = []
        self.limit = 1
        self.turn = threading.Event()  # cleared: whoever asks waits
        self.turn.set()
        self.arrived = threading.Event()

    def ask(self, request: Mapping[str, Any], *, until: float) -> dict[str, Any]:
        items, *_ = frames.request_of(request)
        self.asked.append(len(items))
        self.arrived.set()
        assert self.turn.wait(DEADLINE_S)
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
    found = poison.Apart(pool).handle(items, GRANT, received_s=0.0, until=UNTIL)
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
    for kind, unsure in ((errors.DeliveryTooOld, True), (errors.ChildUnavailable, False)):
        pool.problem = kind("x")
        for result in handled(pool, item(0), item(1), item(2, deaths=1)):
            assert (type(result.error), result.unsure) == (kind, unsure)


def test_a_fault_in_a_child_blames_nobody():
    pool = Pool()
    pool.fault = "KeyError"
    assert handled(pool, item(0), item(1)) == [Fault(kind="KeyError")] * 2


def waiting_together(pool: Pool, *groups: list[message.Item]) -> list[list[Any]]:
    """What becomes of these groups, each brought by a thread of its own while the only child is busy."""
    apart = poison.Apart(pool)
    results: dict[int, list[Any]] = {}

    def bring(number: int, items: list[message.Item]) -> None:
        found = apart.handle(items, GRANT, received_s=0.0, until=UNTIL)
        assert [one.entry.item for one in found] == items
        results[number] = [one.result for one in found]

    pool.turn.clear()
    threads = [threading.Thread(target=bring, args=(-1, [item(1000)]))]
    threads[0].start()
    assert pool.arrived.wait(DEADLINE_S)
    threads += [threading.Thread(target=bring, args=pair) for pair in enumerate(groups)]
    for thread in threads[1:]:
        thread.start()
    (lane,) = apart._lanes.values()
    deadline = time.monotonic() + DEADLINE_S
    while len(lane.waiting) < len(groups):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    pool.turn.set()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(groups))]


def test_what_waits_for_a_child_goes_to_it_together_and_each_gets_its_own():
    pool = Pool()
    assert waiting_together(pool, *([item(number)] for number in range(20))) == [[SETTLED]] * 20
    assert pool.asked == [1, 20]


def test_no_more_than_a_chunk_goes_together():
    pool = Pool()
    groups = [[item(number * 60 + of) for of in range(60)] for number in range(3)]
    assert waiting_together(pool, *groups) == [[SETTLED] * 60] * 3
    assert pool.asked == [1, 60, 60, 60]


def test_of_those_that_went_together_only_the_killer_is_blamed():
    pool = Pool(2)
    assert waiting_together(pool, [item(1)], [item(2)], [item(3)]) == [[SETTLED], [Died()], [SETTLED]]
    assert pool.asked == [1, 3, 1, 1, 1]


def test_a_single_item_that_kills_is_blamed_at_once():
    pool = Pool(1)
    assert handled(pool, item(1)) == [Died()]
    assert pool.asked == [1]


def test_what_waited_too_long_is_too_old_and_is_not_sent():
    pool = Pool()
    (found,) = poison.Apart(pool).handle([item(1)], GRANT, received_s=0.0, until=clock.now_s() - 1)
    assert isinstance(found.result, delivery.Failed)
    assert isinstance(found.result.error, errors.DeliveryTooOld)
    assert pool.asked == []
