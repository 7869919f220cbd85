"""Counts of what workers did, kept in Redis so that they outlive workers and Flower.

    memory:counts:<tenant>   hash, a number per field (below)
    memory:refused           hash, messages that no tenant answers for, by reason:
                             unsigned, unknown_key, wrong_signature, malformed, no_journal, other_tenant

Fields: `stored` (events, facts and orders, each at its first delivery), `duplicates` (further deliveries of these, see
memory_tasks.firsts), `conflicts` (other content under an id), `forgotten`, `dead`, `dead:<code>`, `deferred`,
`deferred:<code>`, `retried` (Celery retries), `looks` (later looks), `failed:<code>`, `deaths` (children that died over
one event), `held` (not tried while the store was known to be away), `store_outages` (how often that began, by any
worker), `checked` (dead lines asked about), `expired` (facts removed after their time; two workers at once may both
count one), `attempts:<n>` (lines that ended at attempt n, from 2), `cache_errors`, `damaged`, `last_stored_ms` (unix
time of the last stored receipt, by the worker's clock) and `since_ms` (when the first of these counts was made: Redis
forgot what was before). Codes are ours and few. Receipts, not these numbers, say what became of an event.

Both keys live as long as the deployment; they are on the list of keys without a time to live.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_tasks import redis_errors

__all__ = ["DUPLICATES", "LAST_STORED", "REFUSED", "SINCE", "STORED", "add", "key_name", "read", "read_refused"]

REFUSED = "memory:refused"
LAST_STORED = "last_stored_ms"
SINCE = "since_ms"
STORED, DUPLICATES = "stored", "duplicates"


def key_name(tenant: str) -> str:
    return f"memory:counts:{tenant}"


def add(pipeline: Any, key: str, counted: Mapping[str, int], *, at_ms: int) -> None:
    """Put the increments on a redis-py pipeline; `LAST_STORED` is set, not added."""
    if any(counted.values()):
        pipeline.hsetnx(key, SINCE, at_ms)
    for name, number in counted.items():
        if name == LAST_STORED:
            pipeline.hset(key, name, number)
        elif number:
            pipeline.hincrby(key, name, number)


def read(client: Any, tenant: str) -> dict[str, int]:
    """All counts of a tenant. Raises `errors.RedisUnavailable`."""
    return _read(client, key_name(tenant))


def read_refused(client: Any) -> dict[str, int]:
    """Refused messages by reason. Raises `errors.RedisUnavailable`."""
    return _read(client, REFUSED)


def _read(client: Any, key: str) -> dict[str, int]:
    with redis_errors.translated():
        return {_text(name): int(number) for name, number in client.hgetall(key).items()}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
