"""Receipts: our proof of what became of a journal line. Standard library only.

A receipt names a line by `lineHash` and speaks for that line only. Not a Celery acknowledgement, not a Celery result.

                    ┌──────────── republished ◀── deferred ◀──┐
                    ▼                                         │
    captured → journaled → dispatched ────────────────────────┤
                                                              ├──▶ stored      the store returned it on read-back
                                                              ├──▶ dead        refused for good, or killed its process
                                                              └──▶ forgotten   ends any state

Terminal: `forgotten`, `stored`, `dead`. Of two receipts for one line the one named first here holds, except that
`deferred` with reason `unsure` (or `unsure:…`, below) reopens a line that is still in the journal. The journal adds
states of its own: `replayed` (an operator voids earlier receipts) and `discarded` (an operator gave a dead line up;
terminal).

Reasons of `deferred` that are more than codes for people: `held` (the store is known to be away, nothing was sent: no
word against the line), `unsure`, `unsure:held` for both, and `unsure:hung` (a worker's child had to be killed over it:
unsure, and no time that passes makes it sure).

On Redis: list `memory:receipts:<journalId>`, bounded; each entry JSON {"receipt": {...}, "keyId": …, "signature": …},
signed with the producer's key over the canonical JSON of {"journalId": …, "receipt": {...}}.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from producer import errors, message

__all__ = [
    "HELD",
    "MAX_DELAY_S",
    "MAX_LISTED",
    "TERMINAL",
    "UNSURE",
    "UNSURE_HELD",
    "UNSURE_HUNG",
    "Receipt",
    "State",
    "decode",
    "encode",
    "list_name",
    "outranks",
]

MAX_DELAY_S = 3600
MAX_LISTED = 20_000  # receipts kept per journal; an older one that falls off costs an idempotent redelivery


class State(StrEnum):
    FORGOTTEN = "forgotten"
    STORED = "stored"
    DEAD = "dead"
    DEFERRED = "deferred"
    REPLAYED = "replayed"  # the journal's own
    DISCARDED = "discarded"  # the journal's own


TERMINAL = frozenset({State.FORGOTTEN, State.STORED, State.DEAD, State.DISCARDED})
UNSURE, HELD = "unsure", "held"
UNSURE_HELD = f"{UNSURE}:{HELD}"
UNSURE_HUNG = f"{UNSURE}:hung"
_RANK = {State.FORGOTTEN: 0, State.STORED: 1, State.DEAD: 2, State.DEFERRED: 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    line_hash: str
    id: str
    state: State
    reason: str = ""  # a stable code; never text of the event
    delay_s: float = 0.0  # deferred: dispatch again no sooner than this, 0 to MAX_DELAY_S, on a monotonic clock
    deaths: int = 0

    @property
    def is_unsure(self) -> bool:
        """Deferred, and what was written may still be applied: it is delivered again whatever other receipts say."""
        return self.state is State.DEFERRED and self.reason in (UNSURE, UNSURE_HELD, UNSURE_HUNG)

    @property
    def is_hung(self) -> bool:
        """Deferred because it hung a worker's child: it stays unsure, so that it goes to a child again."""
        return self.state is State.DEFERRED and self.reason == UNSURE_HUNG

    @property
    def is_held(self) -> bool:
        """Deferred because the store was away, not for anything that became of this line."""
        return self.state is State.DEFERRED and self.reason in (HELD, UNSURE_HELD)

    def body(self) -> dict[str, Any]:
        """The wire and journal form, without the id."""
        return {
            "lineHash": self.line_hash,
            "state": str(self.state),
            "reason": self.reason,
            "delayS": min(max(self.delay_s, 0), MAX_DELAY_S),
            "deaths": self.deaths,
        }


def of_body(id_: str, body: Mapping[str, Any]) -> Receipt:
    """The receipt of a wire or journal form. Raises `errors.DamagedLine` when it is not one."""
    try:
        receipt = Receipt(
            line_hash=str(body["lineHash"]),
            id=id_,
            state=State(body["state"]),
            reason=str(body.get("reason", "")),
            delay_s=min(max(float(body.get("delayS", 0)), 0.0), MAX_DELAY_S),
            deaths=int(body.get("deaths", 0)),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise errors.DamagedLine("not a receipt") from None
    return receipt


def outranks(new: Receipt, old: Receipt | None) -> bool:
    """Whether `new` takes the place of `old` for the same line."""
    if old is None or new.state is State.REPLAYED or new.state is State.DISCARDED:
        return True
    if new.is_unsure:
        return True
    if old.state in (State.REPLAYED, State.DISCARDED):
        return old.state is State.REPLAYED or new.state is State.FORGOTTEN
    return _RANK[new.state] <= _RANK[old.state]


def list_name(journal_id: str) -> str:
    """The Redis list that holds the receipts of one journal."""
    return f"memory:receipts:{journal_id}"


def encode(receipt: Receipt, *, journal_id: str, key: message.Key) -> str:
    """The signed entry for `list_name(journal_id)`."""
    body = {"id": receipt.id, **receipt.body()}
    signature = message.signature(key.secret, {"journalId": journal_id, "receipt": body})
    return json.dumps({"receipt": body, "keyId": key.id, "signature": signature}, separators=(",", ":"))


def decode(entry: str | bytes, *, journal_id: str, secret_of: Callable[[str], bytes | None]) -> Receipt:
    """The receipt of an entry. Raises `errors.SignatureRefused` or `errors.DamagedLine`: drop it and count it."""
    try:
        value = json.loads(entry)
        body, key_id, given = value["receipt"], value["keyId"], value["signature"]
        secret = secret_of(key_id)
        if secret is None:
            raise errors.SignatureRefused("unknown_key")
        expected = message.signature(secret, {"journalId": journal_id, "receipt": body})
        if not hmac.compare_digest(expected.encode(), str(given).encode("utf-8", "replace")):
            raise errors.SignatureRefused("wrong_signature")
        return of_body(str(body["id"]), body)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, errors.ContractViolation):
        raise errors.DamagedLine("not a receipt entry") from None
