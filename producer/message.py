"""The Celery message that carries journal lines, and its signature. Standard library only.

Task `memory.ingest`, keyword arguments, JSON:

    {"batch": [{"line": text, "journalId": hex, "unsure": bool, "deaths": int}, ...],
     "tries": int, "unsureUntil": float | null}

An item may also hold `"check": true, "reason": code`: its journal holds this line as dead, for that reason, and asks
whether it was forgotten meanwhile. Neither name stands in any other item.

`line` is the journal's exact text. `unsure`: an earlier publication of this line may have been applied. `deaths`: how
many worker children this event killed. `tries`: Celery retries spent on this message. `unsureUntil`: set on the later
look, and what tells it from other messages. Its value (unix seconds: when it is due, by the clock of the worker that
published it) is for people; no clock is compared with it, and the worker that receives it counts the wait. Key id and
signature travel in message headers and are checked before any line is parsed: HMAC-SHA256 over the canonical JSON of
the keyword arguments. A worker that retries signs anew.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from producer import errors, identity

__all__ = [
    "BACKLOG_QUEUE",
    "CHUNK_LINES",
    "HEADER_KEY_ID",
    "HEADER_SIGNATURE",
    "QUEUE",
    "TASK_NAME",
    "Item",
    "Key",
    "arguments",
    "masks",
    "sign",
    "verify",
]

TASK_NAME = "memory.ingest"
QUEUE = "memory"  # fresh events, one per task, task_id = eventId, factId or order id
BACKLOG_QUEUE = "memory.backlog"  # chunks of up to CHUNK_LINES, task_id chunk-<uuid>
CHUNK_LINES = 100
HEADER_KEY_ID = "memoryKeyId"
HEADER_SIGNATURE = "memorySignature"


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A producer's signing key. The tenant follows from its id, on the worker."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    line: str
    journal_id: str
    unsure: bool = False
    deaths: int = 0
    check: bool = False  # read marks only: answer `forgotten`, or `dead` again
    reason: str = ""  # of a check: why it is dead, for a listing that Redis has lost

    def body(self) -> dict[str, Any]:
        """Its form in the message."""
        body = {"line": self.line, "journalId": self.journal_id, "unsure": self.unsure, "deaths": self.deaths}
        return {**body, "check": True, "reason": self.reason} if self.check else body


def arguments(items: Sequence[Item], *, tries: int = 0, unsure_until: float | None = None) -> dict[str, Any]:
    """The keyword arguments of `memory.ingest` for these items."""
    return {
        "batch": [item.body() for item in items],
        "tries": tries,
        "unsureUntil": unsure_until,
    }


def masks(count: int) -> dict[str, str]:
    """`argsrepr` and `kwargsrepr` for Celery: what Flower and logs may show of a message. Pass them on every publish
    and on every retry."""
    return {"argsrepr": "()", "kwargsrepr": f"<{count} line{'s' if count != 1 else ''}>"}


def signature(secret: bytes, value: Any) -> str:
    """HMAC-SHA256 of the canonical JSON of `value`, 64 hex digits."""
    text = identity.canonical_json(value).encode("utf-8", "surrogatepass")
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def sign(kwargs: Mapping[str, Any], key: Key) -> dict[str, str]:
    """The headers to publish with these arguments."""
    return {HEADER_KEY_ID: key.id, HEADER_SIGNATURE: signature(key.secret, dict(kwargs))}


def verify(kwargs: Mapping[str, Any], headers: Mapping[str, Any], secret_of: Callable[[str], bytes | None]) -> str:
    """The key id that signed these arguments. Raises `errors.SignatureRefused` (reason `unsigned`, `unknown_key` or
    `wrong_signature`); nothing of the batch has been parsed then."""
    key_id, given = headers.get(HEADER_KEY_ID), headers.get(HEADER_SIGNATURE)
    if not isinstance(key_id, str) or not isinstance(given, str):
        raise errors.SignatureRefused("unsigned")
    secret = secret_of(key_id)
    if secret is None:
        raise errors.SignatureRefused("unknown_key")
    try:
        expected = signature(secret, dict(kwargs))
    except errors.ContractViolation:  # nested too deep, say: none of ours could have signed it
        raise errors.SignatureRefused("wrong_signature") from None
    if not hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace")):
        raise errors.SignatureRefused("wrong_signature")
    return key_id
