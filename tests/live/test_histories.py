"""The model's histories through the real convergence code on a real RushDB (`make test-live`).

They use the product's own labels, so the project must hold none of their records; each history deletes what it made.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memory_tasks.shared_store import SharedStore
from producer.convergence import driver
from producer.convergence.delivery import Failed
from producer.store.port import Store
from tests.integration.test_convergence import (
    LABELS,
    history,
    one_id_at_once,
    problems,
    run_at_once,
    two_rivals_at_once,
)
from tests.live.server import open_live

pytestmark = pytest.mark.live


@pytest.fixture
def store() -> Iterator[Store]:
    store = open_live()
    there = {label: store.find(label, {}, limit=1).total for label in LABELS}
    assert not any(there.values()), f"these tests need an empty project; this one holds {there}"
    yield store
    for label in LABELS:
        while found := store.find(label, {}).records:
            for record in found:
                store.delete(label, record.id)
    store.close()


@pytest.mark.parametrize("seed", range(400, 410))
def test_all_deliveries_of_a_history_in_one_batch_end_as_the_model_says(store: Store, seed: int) -> None:
    schedule, deliveries = history(seed)
    assert not [r for r in driver.settle_all(store, deliveries) if isinstance(r, Failed)]
    assert problems(schedule, store) == []


@pytest.mark.parametrize("seed", range(500, 505))
def test_sixteen_threads_at_once_end_as_the_model_says(store: Store, seed: int) -> None:
    schedule, deliveries = history(seed)
    deliveries *= 16 // len(deliveries) + 1
    assert run_at_once(SharedStore(store) if seed % 2 else store, deliveries, threads=16) == []
    assert run_at_once(store, deliveries, threads=1) == []  # the later look of each
    assert problems(schedule, store) == []


def test_sixteen_threads_released_by_a_barrier_on_one_id_leave_one_record(store: Store) -> None:
    one_id_at_once(store)


def test_sixteen_threads_on_two_rival_superseders_leave_one_current_fact(store: Store) -> None:
    two_rivals_at_once(store)
