"""SharedSettling: events of single messages that wait together are settled together, and nobody pays for another one.

A gate stands before settling, so that "at the same time" is decided by the test and not by the scheduler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from memory_tasks import settler, shared_settling, shared_store
from memory_tasks.lane import Lane
from producer import errors
from producer.convergence import delivery
from producer.receipt import State
from producer.store.sqlite import SqliteStore
from tests.contract.test_shared_store import GatedStore
from tests.unit.convergence.cast import episode, fact, given, order, records

DEADLINE_S = 10.0
STORED = delivery.Settled(state=State.STORED)


class Gated:
    """Settles everything as stored; notes each batch, and holds it while the gate is shut. `fault` sees it first."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.fault: Callable[[Sequence[delivery.Delivery]], None] = lambda batch: None
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, batch: Sequence[delivery.Delivery], untils: Sequence[float]) -> list[Any]:
        assert len(untils) == len(batch)
        self.batches.append([one.id for one in batch])
        assert self.gate.wait(DEADLINE_S), "the test never opened the gate"
        self.fault(batch)
        return [STORED] * len(batch)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(128) as made:
        yield made


def turns(count: int) -> list[delivery.Delivery]:
    return [given(episode(f"turn {number}")) for number in range(count)]


def waiting(shared: shared_settling.SharedSettling) -> int:
    return sum(len(lane.waiting) for lane in shared.lanes.values())


def together(
    pool: ThreadPoolExecutor,
    gated: Gated,
    shared: shared_settling.SharedSettling,
    first: delivery.Delivery,
    others: Sequence[delivery.Delivery],
) -> list[Future[Any]]:
    """Start `first` and hold it at the gate, queue the others behind it in their order, open the gate."""
    gated.gate.clear()
    futures = [pool.submit(shared.settle, [first], until=99.0)]
    wait_for(lambda: len(gated.batches) == 1)
    for number, one in enumerate(others, 1):
        futures.append(pool.submit(shared.settle, [one], until=99.0))
        wait_for(lambda n=number: waiting(shared) == n)
    gated.gate.set()
    for future in futures:
        future.exception(DEADLINE_S)
    return futures


def test_events_that_wait_are_settled_as_one_batch_and_each_thread_gets_its_own_result(pool):
    gated = Gated()
    shared = shared_settling.SharedSettling(settle_all=gated)
    first, *others = turns(6)
    bad = others[2].id
    failed = delivery.Failed(error=errors.StoreRefused("no", status=400))
    shared.settle_all = lambda batch, untils: [
        failed if one.id == bad else result for one, result in zip(batch, gated(batch, untils), strict=True)
    ]
    futures = together(pool, gated, shared, first, others)
    assert gated.batches == [[first.id], [one.id for one in others]]
    assert [future.result() for future in futures] == [[STORED]] * 3 + [[failed]] + [[STORED]] * 2


def test_an_event_that_comes_alone_waits_for_nobody(pool):
    gated = Gated()
    lane = Lane(1, linger_s=3600.0)
    shared = shared_settling.SharedSettling(settle_all=gated, lanes={"EPISODE": lane})
    for one in turns(3):
        assert pool.submit(shared.settle, [one], until=99.0).result(DEADLINE_S) == [STORED]
    assert len(gated.batches) == 3


def test_in_company_an_event_waits_for_others_until_none_come(pool):
    gated = Gated()
    lane = Lane(1, linger_s=0.3)
    shared = shared_settling.SharedSettling(settle_all=gated, lanes={"EPISODE": lane})
    first, second, third, *late = turns(6)
    together(pool, gated, shared, first, [second, third])
    futures = [pool.submit(shared.settle, [one], until=99.0) for one in late]
    assert [future.result(DEADLINE_S) for future in futures] == [[STORED]] * 3
    assert [len(batch) for batch in gated.batches] == [1, 2, 3]
    lane.linger_s = 0.001
    shared.settle([first], until=99.0)  # nobody came: it went, and the next one comes alone
    assert not lane.in_company


def test_the_slower_the_last_batch_was_the_longer_an_event_waits_for_others(pool):
    gated = Gated()
    lane = Lane(1, linger_s=0.001, in_company=True, took_s=2.0, ended_s=time.monotonic())
    shared = shared_settling.SharedSettling(settle_all=gated, lanes={"EPISODE": lane})
    first, second = turns(2)
    one = pool.submit(shared.settle, [first], until=99.0)
    wait_for(lambda: waiting(shared) == 1)
    time.sleep(0.05)  # fifty times what it waits for after a batch that took no time
    assert [pool.submit(shared.settle, [second], until=99.0).result(DEADLINE_S), one.result()] == [[STORED]] * 2
    assert [len(batch) for batch in gated.batches] == [2]
    assert lane.took_s < 2.0


def test_a_trickle_of_events_does_not_hold_the_lane(pool):
    gated = Gated()
    lane = Lane(1, linger_s=0.1, in_company=True, ended_s=time.monotonic())
    shared = shared_settling.SharedSettling(settle_all=gated, lanes={"EPISODE": lane})
    first, *others = turns(60)
    one = pool.submit(shared.settle, [first], until=99.0)
    came = 0
    while not one.done():
        assert came < len(others), "two pauses are long over"
        pool.submit(shared.settle, [others[came]], until=99.0)
        came += 1
        time.sleep(0.02)
    assert gated.batches[0][0] == first.id and 1 < len(gated.batches[0]) < 30


def test_after_a_while_without_events_the_next_one_comes_alone(pool):
    gated = Gated()
    lane = Lane(1, linger_s=3600.0, in_company=True, took_s=60.0, ended_s=time.monotonic() - 5.0)
    shared = shared_settling.SharedSettling(settle_all=gated, lanes={"EPISODE": lane})
    assert pool.submit(shared.settle, turns(1), until=99.0).result(DEADLINE_S) == [STORED]


def test_facts_do_not_wait_for_episodes_and_make_batches_of_their_own(pool):
    gated = Gated()
    shared = shared_settling.SharedSettling(settle_all=gated)
    first, *episodes = turns(3)
    facts = [given(fact(f"fact {number}")) for number in range(3)]
    gated.gate.clear()
    futures = [pool.submit(shared.settle, [one], until=99.0) for one in (first, facts[0])]
    wait_for(lambda: len(gated.batches) == 2)
    futures += [pool.submit(shared.settle, [one], until=99.0) for one in (*episodes, *facts[1:])]
    wait_for(lambda: waiting(shared) == 4)
    gated.gate.set()
    assert [future.result(DEADLINE_S) for future in futures] == [[STORED]] * 6
    together = [{first.id}, {facts[0].id}, {one.id for one in episodes}, {one.id for one in facts[1:]}]
    assert sorted(map(sorted, gated.batches)) == sorted(map(sorted, together))


def test_a_batch_holds_as_many_events_as_one_upsert_takes(pool):
    gated = Gated()
    shared = shared_settling.SharedSettling(settle_all=gated)
    first, *others = turns(121)
    for future in together(pool, gated, shared, first, others):
        assert future.result() == [STORED]
    assert [len(batch) for batch in gated.batches] == [1, 100, 20]


def test_chunks_and_orders_are_settled_on_their_own_beside_a_batch_that_does_not_end(pool):
    gated = Gated()
    shared = shared_settling.SharedSettling(settle_all=gated)
    stuck, *chunk = turns(4)
    gated.gate.clear()
    future = pool.submit(shared.settle, [stuck], until=99.0)
    wait_for(lambda: len(gated.batches) == 1)
    shared.settle_all = lambda batch, untils: [STORED] * len(batch)
    assert shared.settle(chunk, until=99.0) == [STORED] * 3
    assert shared.settle([order("retract", target="x")], until=99.0) == [STORED]
    gated.gate.set()
    assert future.result(DEADLINE_S) == [STORED]


def test_a_fault_over_one_event_is_its_own_and_the_others_are_settled_again_as_unsure(pool, caplog):
    gated = Gated()
    shared = shared_settling.SharedSettling(settle_all=gated)
    first, *others = turns(6)

    def fail(batch: Sequence[delivery.Delivery]) -> None:
        if any(one.id == others[3].id for one in batch):
            raise KeyError("the words of an event")

    gated.fault = fail
    futures = together(pool, gated, shared, first, others)
    kinds = [type(future.exception()).__name__ for future in futures]
    assert kinds == ["NoneType"] * 4 + ["KeyError", "NoneType"]
    unsure = delivery.Settled(state=State.STORED, unsure=True)
    assert [future.result() for future in futures if not future.exception()] == [[STORED]] + [[unsure]] * 4
    assert sorted(len(batch) for batch in gated.batches) == [1] * 6 + [5]
    assert "action=settled_apart kind=KeyError events=5" in caplog.text
    assert "the words" not in caplog.text


def test_events_of_a_batch_whose_thread_was_torn_out_are_settled_again_by_their_own(pool):
    gated = Gated()
    shared = shared_settling.SharedSettling(settle_all=gated)
    first, *others = turns(4)

    def tear(batch: Sequence[delivery.Delivery]) -> None:
        if len(batch) == 3:
            raise SystemExit

    gated.fault = tear
    futures = together(pool, gated, shared, first, others)
    torn = [future for future in futures if future.exception() is not None]
    assert [type(future.exception()) for future in torn] == [SystemExit]
    unsure = delivery.Settled(state=State.STORED, unsure=True)
    assert [future.result() for future in futures if future not in torn] == [[STORED]] + [[unsure]] * 2
    assert not waiting(shared)
    assert shared.settle([first], until=99.0) == [STORED]


class Worker:
    """A real settler on a gated SQLite store, with a clock that the test moves."""

    def __init__(self, tmp_path: Any, pool: ThreadPoolExecutor) -> None:
        self.now_s = 0.0
        self.real = SqliteStore(tmp_path / "store.sqlite3")
        self.gated = GatedStore(self.real)
        self.parts = settler.Parts(
            store=shared_store.SharedStore(self.gated, now_s=lambda: self.now_s), indexes_due_s=None
        )
        self.settler = settler.Settler({"local": self.parts}, forget_margin_s=60.0)
        self.shared = self.settler._shared["local"]
        self._pool = pool

    def start(self, *asked: tuple[delivery.Delivery, float]) -> list[Future[Any]]:
        """The first is at the store's gate when this returns, the others wait for it to end."""
        self.gated.gate.clear()
        futures: list[Future[Any]] = []
        for number, (one, until) in enumerate(asked):
            futures.append(self._pool.submit(self.settler.settle, "local", [one], until=until))
            wait_for(lambda n=number: bool(self.gated.running) and waiting(self.shared) == n)
        return futures

    def settle(self, *asked: tuple[delivery.Delivery, float]) -> list[Any]:
        futures = self.start(*asked)
        self.gated.gate.set()
        return [future.result(DEADLINE_S)[0] for future in futures]


@pytest.fixture
def worker(tmp_path, pool) -> Iterator[Worker]:
    made = Worker(tmp_path, pool)
    yield made
    made.gated.gate.set()
    made.real.close()


def test_an_event_that_is_too_old_fails_alone_and_nothing_is_sent_for_it(worker):
    batch = turns(5)
    futures = worker.start(*((one, 10.0 if number == 2 else 99.0) for number, one in enumerate(batch)))
    worker.now_s = 10.1
    worker.gated.gate.set()
    results = [future.result(DEADLINE_S)[0] for future in futures]
    assert isinstance(results[2], delivery.Failed) and isinstance(results[2].error, errors.DeliveryTooOld)
    assert not results[2].unsure
    assert [result for number, result in enumerate(results) if number != 2] == [STORED] * 4
    assert not [sent for sent in worker.gated.sent if batch[2].id in str(sent)]


def test_an_event_that_grows_too_old_in_the_middle_of_a_batch_fails_alone(worker):
    batch = turns(5)

    def grow_old(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "link" and batch[2].id in str(arguments):
            worker.now_s = 10.1

    worker.gated.fails = grow_old
    results = worker.settle(*((one, 10.0 if number == 2 else 99.0) for number, one in enumerate(batch)))
    assert isinstance(results[2], delivery.Failed) and isinstance(results[2].error, errors.DeliveryTooOld)
    assert not results[2].unsure
    assert [result for number, result in enumerate(results) if number != 2] == [STORED] * 4
    last = max(number for number, (name, _) in enumerate(worker.gated.sent) if name == "link")
    assert not [sent for sent in worker.gated.sent[last + 1 :] if batch[2].id in str(sent)]


def test_a_write_without_an_answer_makes_those_unsure_whose_rows_were_in_it_and_nobody_else(worker):
    def fail(name: str, arguments: tuple[Any, ...]) -> Exception | None:
        lost = name == "upsert" and arguments[0] == "MEMORY_MARK"
        return errors.StoreUnavailable("reset", outcome_unknown=True) if lost else None

    worker.gated.fails = fail
    plain = [given(fact(f"fact {number}")) for number in range(3)]
    ended = [given(fact(f"ended {number}", active=False)) for number in range(2)]
    found = worker.settle(*((one, 99.0) for one in (*plain, *ended)))
    assert found[:3] == [STORED] * 3
    assert [(type(one), one.unsure) for one in found[3:]] == [(delivery.Failed, True)] * 2


def test_a_row_that_the_store_refuses_fails_the_event_that_it_belongs_to(worker):
    first, *others = turns(9)

    def refuse(name: str, arguments: tuple[Any, ...]) -> Exception | None:
        bad = name == "upsert" and others[4].id in str(arguments)
        return errors.StoreRefused("bad row", status=400) if bad else None

    worker.gated.fails = refuse
    results = worker.settle(*((one, 99.0) for one in (first, *others)))
    assert [number for number, one in enumerate(results) if one != STORED] == [5]
    assert isinstance(results[5].error, errors.StoreRefused) and not results[5].unsure


def test_what_comes_while_the_store_is_slow_goes_as_one_batch_when_it_has_answered(worker):
    assert worker.settle(*((one, 99.0) for one in turns(30))) == [STORED] * 30
    assert sum(name != "capabilities" for name, _ in worker.gated.sent) <= 22  # of one event, and of one batch
    assert len(records(worker.real, "EPISODE")) == 30


def test_a_store_that_is_closed_leaves_nobody_waiting(worker):
    futures = worker.start(*((one, 99.0) for one in turns(4)))
    worker.real.close()
    worker.gated.gate.set()
    for future in futures:
        (result,) = future.result(DEADLINE_S)
        assert isinstance(result, delivery.Failed) and isinstance(result.error, errors.StoreUnavailable)
        assert not result.unsure
    assert not waiting(worker.shared)
