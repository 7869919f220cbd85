"""Settler: indexes are ensured once, and trouble with them is nobody's delivery."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from memory_tasks import settler, shared_store
from producer import errors
from producer.convergence import delivery
from producer.receipt import State
from producer.store import port
from producer.store.sqlite import SqliteStore
from tests import worker_messages as make


class IndexingStore:
    """The real store; `ensure_indexes` fails as told, and is counted."""

    def __init__(self, real: port.Store) -> None:
        self._real = real
        self.problem: errors.IngestError | None = None
        self.asked: list[list[port.IndexSpec]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def ensure_indexes(self, specs: list[port.IndexSpec]) -> port.Capabilities:
        self.asked.append(list(specs))
        if self.problem is not None:
            raise self.problem
        return self._real.ensure_indexes(specs)


@pytest.fixture
def store(tmp_path) -> Iterator[IndexingStore]:
    real = SqliteStore(tmp_path / "store.sqlite3")
    yield IndexingStore(real)
    real.close()


def made(store: IndexingStore, **more: Any) -> tuple[settler.Settler, settler.Parts]:
    parts = settler.Parts(store=shared_store.SharedStore(store), **more)
    return settler.Settler({"local": parts}, forget_margin_s=60.0), parts


def settle(of: settler.Settler, number: int) -> State | None:
    line = make.line(make.episode(number))
    asked = delivery.Delivery(
        line_hash=line.hash, id=line.id, kind="event", event=line.body["event"], appended_at=line.appended_at
    )
    (result,) = of.settle("local", [asked], until=float("inf"))
    return result.state if isinstance(result, delivery.Settled) else None


def test_indexes_of_both_searched_texts_are_ensured_before_the_first_delivery_and_once(store):
    of, _ = made(store)
    assert [settle(of, number) for number in range(3)] == [State.STORED] * 3
    assert [[(s.label, s.property, s.dimensions) for s in specs] for specs in store.asked] == [
        [("EPISODE", "summary", None), ("MEMORY_FACT", "text", None)]
    ]


@pytest.mark.parametrize("kind", [errors.StoreUnavailable, errors.StoreRefused, errors.StoreDenied])
def test_an_index_that_cannot_be_made_fails_no_delivery_and_is_tried_again_later(store, kind, caplog):
    of, parts = made(store)
    store.problem = kind("no")
    assert [settle(of, number) for number in range(3)] == [State.STORED] * 3
    assert len(store.asked) == 1
    assert caplog.text.count("action=indexes_missing") == 1
    store.problem = None
    parts.indexes_due_s = time.monotonic()
    assert settle(of, 4) is State.STORED
    assert settle(of, 5) is State.STORED
    assert len(store.asked) == 2


def test_waking_a_managed_index_takes_one_turn_per_label_for_all_deliveries_of_a_tenant(store, monkeypatch):
    embeds = port.Capabilities(name="x", keyword_search=False, vector_search=False, embeds=True)
    monkeypatch.setattr(SqliteStore, "capabilities", lambda self: embeds)
    woken = []
    real = SqliteStore.upsert
    monkeypatch.setattr(
        SqliteStore,
        "upsert",
        lambda self, label, *args, wake=False: (woken.append(label) if wake else None, real(self, label, *args))[1],
    )
    of, _ = made(store)
    for number in range(4):
        settle(of, number)
    assert woken == ["EPISODE"]


def test_closing_closes_every_part(store):
    closed = []

    class Part:
        def __init__(self, name: str) -> None:
            self.close = lambda: closed.append(name)

    of, _ = made(store, recent=Part("recent"), embedder=Part("embedder"))
    of.close()
    assert closed == ["recent", "embedder"]
    with pytest.raises(errors.StoreUnavailable):
        store.find("EPISODE", {})


def test_nobody_goes_on_before_the_first_try_of_the_indexes_is_over(store):
    of, _ = made(store)
    gate, order = threading.Event(), []
    real = store.ensure_indexes

    def slow(specs: list[port.IndexSpec]) -> port.Capabilities:
        assert gate.wait(10)
        order.append("indexes")
        return real(specs)

    store.ensure_indexes = slow

    def work(number: int) -> None:
        assert settle(of, number) is State.STORED
        order.append("settled")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(20)
    assert order == ["indexes", "settled", "settled", "settled"]
