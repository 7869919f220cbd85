"""Events of single messages on a RushDB server: what eight task threads need together of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from memory_tasks import settler, shared_store
from producer.convergence import delivery
from producer.receipt import State
from producer.store import open_store
from tests.rushdb_server import rushdb_server
from tests.unit.convergence.cast import episode, fact, given

THREADS = 8
STORED = delivery.Settled(state=State.STORED)


def test_events_that_eight_threads_bring_singly_need_less_than_half_the_requests_that_one_event_needs(
    tmp_path: Path,
) -> None:
    """A bound, not a time: alone an event needs about eleven requests; of eight threads it was measured at 3.2."""
    with rushdb_server(tmp_path / "rushdb.sqlite") as server:
        store = shared_store.SharedStore(open_store(f"rushdb+{server.url}", token=server.token, pool=THREADS))
        of = settler.Settler({"local": settler.Parts(store=store, indexes_due_s=None)}, forget_margin_s=60.0)

        def requests(deliveries: list[delivery.Delivery], threads: int) -> float:
            server.forget_requests()
            with ThreadPoolExecutor(threads) as pool:
                results = list(pool.map(lambda one: of.settle("local", [one], until=float("inf")), deliveries))
            assert results == [[STORED]] * len(deliveries)
            return len(server.requests()) / len(deliveries)

        try:
            alone = requests([given(episode(f"alone {number}")) for number in range(5)], 1)
            mixed = [given(episode(f"turn {number}", session=f"s-{number % 5}")) for number in range(60)]
            mixed[::6] = [given(fact(f"fact {number}")) for number in range(10)]
            shared = requests(mixed, THREADS)
        finally:
            of.close()
    print(f"requests an event: alone {alone:.1f}, of {THREADS} threads {shared:.1f}")
    assert alone <= 11
    assert shared < 5
