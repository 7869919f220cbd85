"""The parts of each tenant that settling needs, opened once per process, and settling itself.

Whoever handles deliveries, the worker or one of its children, holds one `Settler`. Stores are shared between its
threads (`shared_store`). Indexes are ensured before a tenant's first delivery and, when that failed, again now and
then: trouble with an index is the deployment's, never a delivery's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from memory_tasks import checking, shared_settling, shared_store
from producer import errors
from producer.convergence import delivery, driver
from producer.store import port

__all__ = ["INDEXED", "Parts", "Settler"]

logger = logging.getLogger(__name__)

INDEXED = (("EPISODE", "summary"), ("MEMORY_FACT", "text"))
_INDEXES_AGAIN_S = 60.0


@dataclass(kw_only=True, eq=False)
class Parts:
    """What one tenant's deliveries use. `recent` and `embedder` may be None."""

    store: shared_store.SharedStore
    recent: driver.RecentWrites | None = None
    embedder: driver.Embedder | None = None
    dimensions: int | None = None  # of external vectors; None: the server embeds, or nobody
    waker: driver.Waker = field(default_factory=driver.Waker)  # deliveries see the store through views of their own
    indexes_due_s: float | None = 0.0  # on time.monotonic; None: they are there
    guard: threading.Lock = field(default_factory=threading.Lock)


class Settler:
    """Settles deliveries of any tenant. Safe between threads."""

    def __init__(
        self,
        parts: Mapping[str, Parts],
        *,
        forget_margin_s: float,
    ) -> None:
        self._parts = dict(parts)
        self._shared = {
            tenant: shared_settling.SharedSettling(settle_all=partial(self._settle_all, one))
            for tenant, one in self._parts.items()
        }
        self._forget_margin_s = forget_margin_s

    def settle(
        self, tenant: str, deliveries: Sequence[delivery.Delivery], *, until: float
    ) -> list[delivery.Settled | delivery.Failed]:
        """What became of each. No request is sent after `until` on the delivery clock."""
        self._ensure_indexes(tenant, self._parts[tenant])
        return self._shared[tenant].settle(deliveries, until=until)

    def forgotten(self, tenant: str, asked: Sequence[checking.Question], *, until: float) -> list[bool]:
        """Whether dead lines were forgotten meanwhile. Reads marks only. Raises what the store raises."""
        store = self._parts[tenant].store.until(until)
        return checking.forgotten(store, asked, margin_s=self._forget_margin_s)

    def store(self, tenant: str, *, until: float) -> port.Store:
        """The tenant's store, for reading what is to be settled. No request is sent after `until`."""
        return self._parts[tenant].store.until(until)

    def close(self) -> None:
        for parts in self._parts.values():
            parts.store.close()
            for other in (parts.recent, parts.embedder):
                close: Any = getattr(other, "close", None)
                if close is not None:
                    close()

    def _settle_all(
        self, parts: Parts, deliveries: Sequence[delivery.Delivery], untils: Sequence[float]
    ) -> list[delivery.Settled | delivery.Failed]:
        return driver.settle_all(
            parts.store,
            deliveries,
            untils=untils,
            recent=parts.recent,
            embedder=parts.embedder,
            forget_margin_s=self._forget_margin_s,
            waker=parts.waker,
        )

    def _ensure_indexes(self, tenant: str, parts: Parts) -> None:
        due = parts.indexes_due_s
        # Before the first try is over nobody goes on: without its index an external vector cannot be stored.
        if due is None or time.monotonic() < due or not parts.guard.acquire(blocking=due == 0.0):
            return
        try:
            if parts.indexes_due_s != due:
                return  # another thread has tried meanwhile
            specs = [port.IndexSpec(label=label, property=name, dimensions=parts.dimensions) for label, name in INDEXED]
            parts.store.ensure_indexes(specs)
            parts.indexes_due_s = None
        except errors.IngestError as problem:
            parts.indexes_due_s = time.monotonic() + _INDEXES_AGAIN_S
            logger.warning(
                "action=indexes_missing tenant=%s problem=%s; recall is slower or empty until the next try in %.0f s",
                tenant,
                type(problem).__name__,
                _INDEXES_AGAIN_S,
            )
        finally:
            parts.guard.release()
