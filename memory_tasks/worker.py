"""The parts of one worker process: what stands between a Celery message and the store, wired from the settings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from memory_tasks import ingest, receipts, settings, settler, shared_store, tenants, verdicts
from producer import broker, embedding, store
from producer.recall import recent
from producer.store import port

__all__ = ["Worker", "make_settler"]

OpenStore = Callable[..., port.Store]


class Worker:
    """The parts of one worker process, made on first use and closed once."""

    def __init__(self, given: settings.Settings, *, open_store: OpenStore = store.open_store) -> None:
        self._given = given
        self._open_store = open_store
        # Read at start, so that a file that cannot be used ends the worker before it takes a message.
        self._tenants = tenants.Tenants.load(given.producer, given.tenants_file)
        self._guard = threading.Lock()
        self._ingest: ingest.Ingest | None = None
        self._settler: settler.Settler | None = None
        self._redis: Any = None

    def handler(self) -> ingest.Ingest:
        """What handles messages in this process."""
        with self._guard:
            if self._ingest is None:
                self._ingest = self._make()
            return self._ingest

    def close(self) -> None:
        with self._guard:
            if self._settler is not None:
                self._settler.close()
                self._redis.close()
            self._ingest = self._settler = self._redis = None

    def _make(self) -> ingest.Ingest:
        given = self._given
        self._redis = recent.connect(broker.redis_url_of(given.producer.redis_url), timeout_s=given.redis_timeout_s)
        self._settler = make_settler(given, self._tenants, open_store=self._open_store)
        return ingest.Ingest(
            tenants=self._tenants,
            settle=self._settler.settle,
            receipts=receipts.Receipts(
                self._redis, ttl_s=given.receipts_ttl_s, dead_letters_kept=given.dead_letters_kept
            ),
            policy=verdicts.Policy(
                visibility_timeout_s=given.visibility_timeout_s,
                store_late_s=given.producer.store_late_s,
                retry_max_countdown_s=given.retry_max_countdown_s,
                retry_limit=given.retry_limit,
                poison_deaths=given.poison_deaths,
            ),
        )


def make_settler(
    given: settings.Settings, known: tenants.Tenants, *, open_store: OpenStore = store.open_store
) -> settler.Settler:
    """The parts of every tenant; connects to nothing yet."""
    producer = given.producer
    embedder = embedding.open_embedder(
        url=producer.embed_url,
        model=producer.embed_model,
        dimensions=producer.embed_dimensions,
        token=producer.embed_token,
    )
    parts = {
        tenant: settler.Parts(
            store=shared_store.SharedStore(
                open_store(url, token=token, timeout_s=producer.store_timeout_s, pool=given.store_pool)
            ),
            recent=recent.RecentWrites(
                broker.redis_url_of(producer.redis_url),
                tenant=tenant,
                cache_key=producer.cache_key,
                ttl_s=producer.recent_ttl_s,
                max_entries=producer.recent_max_entries,
            ),
            embedder=embedder,
            dimensions=producer.embed_dimensions if embedder is not None else None,
        )
        for tenant, (url, token) in known.stores().items()
    }
    return settler.Settler(parts, forget_margin_s=given.forget_margin_s)
