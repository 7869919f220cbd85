"""Lines whose delivery failed at least once: how many attempts each took, the last error, and how it ended.

    memory:trouble:<tenant>            hash: lineHash -> JSON {id, lineHash, error, state, at}; state empty: not ended
    memory:trouble:<tenant>:attempts   hash: lineHash -> deliveries that failed, and the one that ended it
    memory:trouble:<tenant>:at         sorted set: lineHash by unix ms of the last word

Errors are codes. A line that is delivered once and stored never stands here, and costs nothing but one read in the
transaction that sends its receipt. Bounded (the oldest go first), and all three expire a week after the last trouble. A
later look is no attempt; nor is a message that was held while the store was known to be away. The counts of the tenant
get `attempts:<n>` for every line that ends here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_tasks import counts, redis_errors, verdicts
from producer.receipt import Receipt

__all__ = ["KEPT", "TTL_S", "Attempted", "add", "ask", "end", "key_names", "read", "trim"]

KEPT = 1000
TTL_S = 7 * 86_400
_MOST_COUNTED = 20  # of `attempts:<n>`; what took more counts there


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempted:
    id: str
    line_hash: str
    attempts: int
    error: str  # the last one: a code
    state: str  # stored, forgotten, dead; empty while it goes on
    at_ms: int


def key_names(tenant: str) -> tuple[str, str, str]:
    key = f"memory:trouble:{tenant}"
    return key, f"{key}:attempts", f"{key}:at"


def add(pipeline: Any, tenant: str, troubles: Sequence[verdicts.Trouble], *, at_ms: int) -> None:
    """Put failed attempts on a redis-py pipeline."""
    if not troubles:
        return
    said, attempts, at = key_names(tenant)
    for one in troubles:
        _say(
            pipeline,
            tenant,
            Attempted(id=one.id, line_hash=one.line_hash, attempts=0, error=one.error, state="", at_ms=at_ms),
        )
        pipeline.hincrby(attempts, one.line_hash, 1)
    for key in (said, attempts, at):
        pipeline.expire(key, TTL_S)


def ask(pipeline: Any, tenant: str, ended: Sequence[Receipt]) -> None:
    """Put on a pipeline, last, the question which of these lines are known here; its answer is for `end`."""
    pipeline.hmget(key_names(tenant)[0], [one.line_hash for one in ended])


def end(
    client: Any,
    tenant: str,
    ended: Sequence[Receipt],
    known: Sequence[bytes | None],
    *,
    failed: Iterable[str],
    at_ms: int,
) -> None:
    """Say how lines ended, and count their attempts. `failed`: those whose last attempt is counted already, because it
    failed. Raises `errors.RedisUnavailable`."""
    found = {one.line_hash: (one, value) for one, value in zip(ended, known, strict=True) if value is not None}
    if not found:
        return
    counted_before = frozenset(failed)
    attempts = key_names(tenant)[1]
    with redis_errors.translated():
        with client.pipeline(transaction=True) as pipeline:
            for line_hash in found:
                pipeline.hincrby(attempts, line_hash, int(line_hash not in counted_before))
            numbers = pipeline.execute()
        with client.pipeline(transaction=True) as pipeline:
            for (one, value), number in zip(found.values(), numbers, strict=True):
                before = _read(value, number)
                _say(pipeline, tenant, dataclasses.replace(before, state=str(one.state), at_ms=at_ms))
                if number > 1:
                    pipeline.hincrby(counts.key_name(tenant), f"attempts:{min(number, _MOST_COUNTED)}", 1)
            pipeline.execute()


def trim(client: Any, tenant: str, *, keep: int = KEPT) -> None:
    """Drop the oldest beyond `keep`. Raises `errors.RedisUnavailable`."""
    said, attempts, at = key_names(tenant)
    with redis_errors.translated():
        over = client.zcard(at) - keep
        oldest = [line_hash for line_hash, _ in client.zpopmin(at, over)] if over > 0 else []
        if oldest:
            client.hdel(said, *oldest)
            client.hdel(attempts, *oldest)


def read(client: Any, tenant: str, *, limit: int = 20) -> list[Attempted]:
    """The newest `limit`, newest first. Raises `errors.RedisUnavailable`."""
    said, attempts, at = key_names(tenant)
    with redis_errors.translated():
        hashes = client.zrevrange(at, 0, max(limit, 1) - 1)
        if not hashes:
            return []
        values, numbers = client.hmget(said, hashes), client.hmget(attempts, hashes)
    return [_read(value, int(number or 0)) for value, number in zip(values, numbers, strict=True) if value is not None]


def _say(pipeline: Any, tenant: str, of: Attempted) -> None:
    said, _, at = key_names(tenant)
    body = {"id": of.id, "lineHash": of.line_hash, "error": of.error, "state": of.state, "at": of.at_ms}
    pipeline.hset(said, of.line_hash, json.dumps(body, separators=(",", ":")))
    pipeline.zadd(at, {of.line_hash: of.at_ms})


def _read(value: bytes | str, attempts: int) -> Attempted:
    body: Mapping[str, Any] = json.loads(value)
    return Attempted(
        id=body["id"],
        line_hash=body["lineHash"],
        attempts=attempts,
        error=body["error"],
        state=body["state"],
        at_ms=body["at"],
    )
