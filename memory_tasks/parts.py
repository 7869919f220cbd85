"""What a `Settler` is made of: the stores, recent writes and embedder of every tenant, wired from a plan.

The plan is plain data, so that a worker can hand it to a child.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memory_tasks import settler, shared_store
from producer import config, embedding, store
from producer.recall import recent
from producer.store import port

__all__ = ["OpenStore", "Plan", "make_settler"]

OpenStore = Callable[..., port.Store]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """JSON-able. Holds secrets, so it prints none of what it holds."""

    stores: Mapping[str, tuple[str, str]]  # URL and token by tenant
    store_timeout_s: float
    store_pool: int
    redis_url: str
    cache_key: str
    recent_ttl_s: int
    recent_max_entries: int
    embed_url: str
    embed_model: str
    embed_dimensions: int
    embed_token: str
    forget_margin_s: float

    def __repr__(self) -> str:
        return f"Plan(tenants={len(self.stores)})"

    @classmethod
    def of(
        cls,
        producer: config.ProducerConfig,
        stores: Mapping[str, tuple[str, str]],
        *,
        store_pool: int,
        forget_margin_s: float,
    ) -> Plan:
        return cls(
            stores=stores,
            store_timeout_s=producer.store_timeout_s,
            store_pool=store_pool,
            redis_url=producer.redis_url,
            cache_key=producer.cache_key,
            recent_ttl_s=producer.recent_ttl_s,
            recent_max_entries=producer.recent_max_entries,
            embed_url=producer.embed_url,
            embed_model=producer.embed_model,
            embed_dimensions=producer.embed_dimensions,
            embed_token=producer.embed_token,
            forget_margin_s=forget_margin_s,
        )

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Plan:
        stores = {tenant: (url, token) for tenant, (url, token) in plain["stores"].items()}
        return cls(**{**plain, "stores": stores})

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def make_settler(plan: Plan, *, open_store: OpenStore = store.open_store) -> settler.Settler:
    """The parts of every tenant; connects to nothing yet."""
    embedder = embedding.open_embedder(
        url=plan.embed_url, model=plan.embed_model, dimensions=plan.embed_dimensions, token=plan.embed_token
    )
    made = {
        tenant: settler.Parts(
            store=shared_store.SharedStore(
                open_store(url, token=token, timeout_s=plan.store_timeout_s, pool=plan.store_pool)
            ),
            recent=recent.RecentWrites(
                plan.redis_url,
                tenant=tenant,
                cache_key=plan.cache_key,
                ttl_s=plan.recent_ttl_s,
                max_entries=plan.recent_max_entries,
            ),
            embedder=embedder,
            dimensions=plan.embed_dimensions if embedder is not None else None,
        )
        for tenant, (url, token) in plan.stores.items()
    }
    return settler.Settler(made, forget_margin_s=plan.forget_margin_s)
