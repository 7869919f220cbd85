"""The model's histories through the batch driver on the embedded store: the final state is the model's, whether all is
delivered in one batch, by sixteen threads at once, or by a store that doubles creates and lies.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from memory_tasks.shared_store import SharedStore
from producer import errors
from producer.convergence import driver
from producer.convergence.delivery import Delivery, Failed
from producer.store import open_store, port
from producer.store.sqlite import SqliteStore
from tests.rushdb_server import rushdb_server
from tests.unit.convergence.campaign import SCOPES, Schedule, episode_delivery
from tests.unit.convergence.cast import AT, SCOPE, fact, given, id_of, records
from tests.unit.convergence.weak_store import WeakStore

LABELS = ("EPISODE", "MEMORY_FACT", "MEMORY_MARK", "SESSION")


class WeakPort:
    """Another store that doubles creates and acknowledges what it does not do, as the RushDB platform may."""

    def __init__(self, store: port.Store, rng: random.Random, *, lie: float = 0.03, double: float = 0.2) -> None:
        self._store = store
        self._rng = rng
        self._lie = lie
        self._double = double

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def upsert(
        self, label: str, rows: Sequence[Mapping[str, Any]], merge_by: Sequence[str], *, wake: bool = False
    ) -> Sequence[port.Record]:
        if self._rng.random() < self._lie:
            return []
        answer = self._store.upsert(label, rows, merge_by, wake=wake)
        for row in rows:
            if self._rng.random() < self._double:
                self._store.upsert(label, [{**row, "twin": str(uuid.uuid4())}], (*merge_by, "twin"))
        return answer

    def link(self, spec: port.LinkSpec) -> None:
        if self._rng.random() >= self._lie:
            self._store.link(spec)

    def delete(self, label: str, record_id: str) -> None:
        if self._rng.random() >= self._lie:
            self._store.delete(label, record_id)


def history(seed: int) -> tuple[Schedule, list[Delivery]]:
    """A model history and its deliveries, in random order and number."""
    schedule = Schedule(seed, store=WeakStore(random.Random(seed)))
    deliveries = [schedule.delivery(kind, what) for kind, what, _, _ in schedule.jobs]
    if not schedule.episodes:
        deliveries = [episode_delivery(scope) for scope in SCOPES] + deliveries
    return schedule, deliveries


def problems(schedule: Schedule, store: port.Store) -> list[str]:
    """The model's invariants on what this store holds."""
    copy = schedule.store = WeakStore(random.Random(0))
    for label in LABELS:
        for record in store.find(label, {}).records:
            copy.rows[record.id] = record
        copy.edges |= {(e.type, e.source_id, e.target_id) for e in store.edges(label, {})}
    copy.changes += 1
    return schedule.check()


@pytest.mark.parametrize("seed", range(40))
def test_all_deliveries_of_a_history_in_one_batch_end_as_the_model_says(tmp_path: Path, seed: int) -> None:
    store = SqliteStore(tmp_path / "store.sqlite3")
    schedule, deliveries = history(seed)
    results = driver.settle_all(store, deliveries)
    assert not [r for r in results if isinstance(r, Failed)]
    assert problems(schedule, store) == []
    store.close()


@pytest.mark.parametrize("seed", range(100, 112))
def test_sixteen_threads_at_once_end_as_the_model_says(tmp_path: Path, seed: int) -> None:
    store = SqliteStore(tmp_path / "store.sqlite3")
    shared = SharedStore(store) if seed % 2 else store
    schedule, deliveries = history(seed)
    deliveries *= 16 // len(deliveries) + 1
    assert run_at_once(shared, deliveries, threads=16) == []
    assert problems(schedule, store) == []
    store.close()


@pytest.mark.parametrize("seed", range(200, 216))
def test_a_store_that_doubles_and_lies_ends_as_the_model_says(tmp_path: Path, seed: int) -> None:
    store = SqliteStore(tmp_path / "store.sqlite3")
    weak = WeakPort(store, random.Random(seed))
    schedule, deliveries = history(seed)
    assert run_at_once(weak, deliveries, threads=4) == []
    settled = [driver.settle_all(store, [delivery])[0] for delivery in deliveries]  # the later look of each
    assert not [r for r in settled if isinstance(r, Failed)]
    assert problems(schedule, store) == []
    store.close()


@pytest.mark.parametrize("profile", ["2.11", "direct"])
def test_a_rushdb_that_doubles_lies_and_breaks_off_ends_as_the_model_says(tmp_path: Path, profile: str) -> None:
    for seed in range(300, 306):
        with rushdb_server(tmp_path / f"{seed}.sqlite", profile=profile) as server:
            form = "rushdb+direct+" if profile == "direct" else "rushdb+"
            store = open_store(f"{form}{server.url}", token=server.token)
            server.fail("double", on="write", probability=0.2, seed=seed)
            server.fail("lie", on=("write", "link", "delete"), probability=0.03, seed=seed)
            server.fail("error_after", on=("write", "link"), probability=0.03, seed=seed)
            server.fail("database_error", probability=0.02, seed=seed)
            schedule, deliveries = history(seed)
            assert run_at_once(store, deliveries, threads=4) == []
            server.clear_faults()
            assert run_at_once(store, deliveries, threads=1) == []  # the later look of each
            assert problems(schedule, store) == [], f"seed {seed}"
            store.close()


@pytest.fixture(params=["sqlite", "2.11", "direct"])
def doubling(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A store that makes every other record twice."""
    if request.param == "sqlite":
        store: port.Store = SqliteStore(tmp_path / "store.sqlite3")
        yield WeakPort(store, random.Random(1), lie=0.0, double=0.5)
    else:
        with rushdb_server(tmp_path / "store", profile=request.param) as server:
            form = "rushdb+direct+" if request.param == "direct" else "rushdb+"
            store = open_store(f"{form}{server.url}", token=server.token)
            server.fail("double", on="write", probability=0.5, seed=1)
            yield store
    store.close()


def test_sixteen_threads_released_by_a_barrier_on_one_id_leave_one_record(doubling: Any) -> None:
    one_id_at_once(doubling)


def test_sixteen_threads_on_two_rival_superseders_leave_one_current_fact(doubling: Any) -> None:
    two_rivals_at_once(doubling)


def one_id_at_once(store: port.Store) -> None:
    assert run_at_once(store, [given(fact())] * 16, threads=16) == []
    assert len(records(store, "MEMORY_FACT")) == 1


def two_rivals_at_once(store: port.Store) -> None:
    old = fact("tea")
    rivals = [fact(text, supersedesFactId=id_of(old)) for text in ("coffee", "milk")]
    driver.settle_all(store, [given(old)])
    assert run_at_once(store, [given(event) for event in rivals] * 8, threads=16) == []
    (left,) = records(store, "MEMORY_FACT", **SCOPE, active=True)
    assert left.get("factId") == max(map(id_of, rivals))
    assert left.get("validFrom") == AT
    assert len(records(store, "MEMORY_FACT")) == 3


def run_at_once(store: Any, deliveries: Sequence[Delivery], *, threads: int) -> list[errors.IngestError]:
    """Settle each delivery, with a barrier before the first; the errors that were left after redelivery."""
    left: list[errors.IngestError] = []
    barrier = threading.Barrier(threads)

    def work(mine: Sequence[Delivery]) -> None:
        barrier.wait(timeout=30)
        for delivery in mine:
            for _ in range(20):
                (result,) = driver.settle_all(store, [delivery])
                if not isinstance(result, Failed):
                    break
            else:
                left.append(result.error)

    workers = [threading.Thread(target=work, args=(deliveries[n::threads],)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert not any(worker.is_alive() for worker in workers)
    return left
