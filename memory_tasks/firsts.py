"""Which events were counted as stored, so that each counts once however many deliveries of it run at the same time.

    memory:stored:<tenant>   sorted set: the first 16 bytes of an id's sha256, by unix ms of its first delivery

Deliveries of one id that run beside each other all find nothing and all write; the store folds what they wrote into one
record, and who was first is known here alone. Each counts itself as stored in the transaction that adds its ids here;
those that stood here already are then taken back and counted as duplicates, so that an ordinary delivery costs no round
trip. Until then, and for ever when its process dies in between, a doubled delivery counts as stored.

Bounded (`KEPT`, the oldest go first), and it expires `TTL_S` after the last delivery. Where it has forgotten an id, a
doubtful delivery of that id counts as stored again. Redis loses it together with the counts, so what is delivered again
after a wipe is counted again. Plain commands only: a user without EVAL can run a worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["KEPT", "TTL_S", "add", "key_name"]

KEPT = 50_000  # some 6 MB of Redis
TTL_S = 86_400
_MEMBER_BYTES = 16


def key_name(tenant: str) -> str:
    return f"memory:stored:{tenant}"


def add(pipeline: Any, tenant: str, ids: Iterable[str], *, at_ms: int) -> None:
    """Put three commands on a redis-py pipeline; the first answers how many of these ids did not stand here before."""
    key = key_name(tenant)
    pipeline.zadd(key, {bytes.fromhex(one)[:_MEMBER_BYTES]: at_ms for one in ids}, nx=True)
    pipeline.zremrangebyrank(key, 0, -KEPT - 1)
    pipeline.expire(key, TTL_S)
