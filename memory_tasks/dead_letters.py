"""The listing of dead letters: which lines were refused for good, and why. Their content stays in the journals.

    memory:dead:<tenant>          hash: lineHash -> JSON {id, lineHash, journalId, reason, at, deaths}
    memory:dead:<tenant>:at       sorted set: lineHash by unix ms

No text, no scope, no participant: reasons are codes. Bounded (`MEMORY_DEAD_LETTERS_KEPT`), the oldest go first; a lost
listing is filled again by dispatchers, which ask about their dead lines. A line that is stored or forgotten after all
leaves it. Both keys are on the list of keys without a time to live.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from memory_tasks import redis_errors

__all__ = ["DeadLetter", "add", "add_known", "discard", "key_name", "read", "take_off", "total", "trim"]

_AT = ":at"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    id: str  # eventId, factId or order id; empty when the line could not be read
    line_hash: str
    journal_id: str
    reason: str  # a code, as in the receipt
    at_ms: int
    deaths: int = 0


def key_name(tenant: str) -> str:
    return f"memory:dead:{tenant}"


def add(pipeline: Any, tenant: str, letters: Iterable[DeadLetter]) -> None:
    """Put these on a redis-py pipeline; call `trim` after it."""
    for letter in letters:
        pipeline.hset(key_name(tenant), letter.line_hash, _text(letter))
        pipeline.zadd(key_name(tenant) + _AT, {letter.line_hash: letter.at_ms})


def add_known(pipeline: Any, tenant: str, letters: Iterable[DeadLetter]) -> None:
    """The same of lines that died long ago: what is listed of them stays, time and reason."""
    for letter in letters:
        pipeline.hsetnx(key_name(tenant), letter.line_hash, _text(letter))
        pipeline.zadd(key_name(tenant) + _AT, {letter.line_hash: letter.at_ms}, nx=True)


def _text(letter: DeadLetter) -> str:
    body = {
        "id": letter.id,
        "lineHash": letter.line_hash,
        "journalId": letter.journal_id,
        "reason": letter.reason,
        "at": letter.at_ms,
        "deaths": letter.deaths,
    }
    return json.dumps(body, separators=(",", ":"))


def discard(pipeline: Any, tenant: str, line_hashes: Iterable[str]) -> None:
    """Take lines off the listing, on a redis-py pipeline."""
    gone = list(line_hashes)
    if gone:
        pipeline.hdel(key_name(tenant), *gone)
        pipeline.zrem(key_name(tenant) + _AT, *gone)


def take_off(client: Any, tenant: str, line_hashes: Iterable[str]) -> None:
    """The same at once. Raises `errors.RedisUnavailable`."""
    with redis_errors.translated(), client.pipeline(transaction=True) as pipeline:
        discard(pipeline, tenant, line_hashes)
        pipeline.execute()


def trim(client: Any, tenant: str, *, keep: int) -> None:
    """Drop the oldest beyond `keep`. Raises `errors.RedisUnavailable`."""
    key = key_name(tenant)
    with redis_errors.translated():
        over = client.zcard(key + _AT) - keep
        if over > 0:
            oldest = [line_hash for line_hash, _ in client.zpopmin(key + _AT, over)]
            if oldest:
                client.hdel(key, *oldest)


def total(client: Any, tenant: str) -> int:
    """How many are listed. Raises `errors.RedisUnavailable`."""
    with redis_errors.translated():
        return int(client.zcard(key_name(tenant) + _AT))


def read(client: Any, tenant: str, *, limit: int = 100) -> list[DeadLetter]:
    """The newest `limit`, newest first. Raises `errors.RedisUnavailable`."""
    key = key_name(tenant)
    with redis_errors.translated():
        hashes = client.zrevrange(key + _AT, 0, max(limit, 1) - 1)
        values = client.hmget(key, hashes) if hashes else []
    letters = []
    for value in values:
        if value is not None:  # trimmed meanwhile
            body = json.loads(value)
            letters.append(
                DeadLetter(
                    id=body["id"],
                    line_hash=body["lineHash"],
                    journal_id=body["journalId"],
                    reason=body["reason"],
                    at_ms=body["at"],
                    deaths=body["deaths"],
                )
            )
    return letters
