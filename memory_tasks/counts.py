"""Counts of what workers did, kept in Redis so that they outlive workers and Flower.

    memory:counts:<tenant>   hash, a number per field (below)
    memory:refused           hash, messages that no tenant answers for, by reason:
                             unsigned, unknown_key, wrong_signature, malformed, no_journal

Fields: `stored` (written by a delivery), `duplicates` (found there, stored and settled), `conflicts`, `forgotten`,
`dead`, `dead:<code>`, `deferred`, `deferred:<code>`, `retried` (Celery retries), `looks` (later looks),
`failed:<code>`, `deaths` (children that died over one event), `held` (not tried while the store was known to be away),
`store_outages` (how often that began, by any worker), `checked` (dead lines asked about), `attempts:<n>` (lines that
ended at attempt n, from 2), `cache_errors`, `damaged`, and `last_stored_ms` (unix time of the last stored receipt, by
the worker's clock). Codes are ours and few. A message that is delivered again counts again: receipts, not these
numbers, say what became of an event.

Both keys live as long as the deployment; they are on the list of keys without a time to live.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_tasks import redis_errors

__all__ = ["LAST_STORED", "REFUSED", "add", "key_name", "read", "read_refused"]

REFUSED = "memory:refused"
LAST_STORED = "last_stored_ms"


def key_name(tenant: str) -> str:
    return f"memory:counts:{tenant}"


def add(pipeline: Any, key: str, counted: Mapping[str, int]) -> None:
    """Put the increments on a redis-py pipeline; `LAST_STORED` is set, not added."""
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
