"""The parts of one worker process: what stands between a Celery message and the store, wired from the settings."""

from __future__ import annotations

import threading
from typing import Any

from memory_tasks import (
    breaker,
    children,
    expiry,
    expiry_turns,
    handling,
    ingest,
    lease,
    parts,
    poison,
    receipts,
    settings,
    settler,
    tenants,
    verdicts,
)
from producer import errors, redis_client, store

__all__ = ["Worker"]

_CHILD = "memory_tasks.poison_child"


class Worker:
    """The parts of one worker process, made on first use (a worker does that at its start) and closed once."""

    def __init__(
        self,
        given: settings.Settings,
        *,
        open_store: parts.OpenStore = store.open_store,
        child_module: str = _CHILD,
    ) -> None:
        """`open_store` opens stores here, `child_module` is what children run: tests give their own of both."""
        self._given = given
        self._open_store = open_store
        self._child_module = child_module
        # Read at start, so that a file that cannot be used ends the worker before it takes a message.
        self._tenants = tenants.Tenants.load(given.producer, given.tenants_file)
        self._guard = threading.Lock()
        self._ingest: ingest.Ingest | None = None
        self._expiry: expiry.Expiry | None = None
        self._settler: settler.Settler | None = None
        self._children: children.Children | None = None
        self._redis: Any = None

    def handler(self) -> ingest.Ingest:
        """What handles messages in this process. Raises `errors.SettingsRefused` when the settings make no store or
        embedder. Connects to nothing, so that a worker can make it at its start."""
        with self._guard:
            if self._ingest is None:
                self._ingest = self._make()
            return self._ingest

    def expirer(self) -> expiry.Expiry:
        """What removes expired facts in this process."""
        with self._guard:
            if self._expiry is None:
                if self._ingest is None:
                    self._ingest = self._make()
                self._expiry = self._make_expiry()
            return self._expiry

    def make_lease(self) -> lease.Lease:
        """What this worker has to say of itself to others on the same broker."""
        return lease.Lease.of(self._tenants.keys(), visibility_timeout_s=self._given.visibility_timeout_s)

    def make_turns(self) -> expiry_turns.Turns:
        """When workers order that expired facts are removed, and whose keys sign that."""
        accepted = self._tenants.keys()
        keys = {self._tenants.tenant_of(key.id): key for key in accepted}
        return expiry_turns.Turns(keys=keys, every_s=self._given.expiry_every_s)

    def close(self) -> None:
        with self._guard:
            if self._children is not None:
                self._children.close()
            if self._settler is not None:
                self._settler.close()
                self._redis.close()
            self._ingest = self._expiry = self._settler = self._children = self._redis = None

    def _make_expiry(self) -> expiry.Expiry:
        assert self._settler is not None
        return expiry.Expiry(
            tenants=self._tenants,
            settler=self._settler,
            client=self._redis,
            turns=self.make_turns(),
            kept_s=self._given.expired_kept_s,
            visibility_timeout_s=self._given.visibility_timeout_s,
        )

    def _make(self) -> ingest.Ingest:
        given = self._given
        self._redis = redis_client.connect(
            given.producer.redis_url,
            connect_timeout_s=given.redis_timeout_s,
            socket_timeout_s=given.redis_timeout_s,
        )
        plan = parts.Plan.of(
            given.producer,
            self._tenants.stores(),
            store_pool=given.store_pool,
            forget_margin_s=given.forget_margin_s,
        )
        try:
            self._settler = parts.make_settler(plan, open_store=self._open_store)
        except ImportError as missing:
            name = missing.name or "one of its packages"
            raise errors.SettingsRefused(
                "MEMORY_STORE_URL", f"this store needs {name}, which is not installed"
            ) from None
        self._children = children.Children(
            self._child_module,
            {"plan": plan.plain(), "poisonDeaths": given.poison_deaths},
            limit=given.children,
            requests_max=given.child_requests_max,
            idle_s=given.child_idle_s,
        )
        return ingest.Ingest(
            tenants=self._tenants,
            here=handling.Handling(self._settler, poison_deaths=given.poison_deaths),
            apart=poison.Apart(self._children),
            breakers=breaker.Breakers(hold_s=given.retry_max_countdown_s),
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
