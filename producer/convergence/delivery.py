"""What goes in and what comes out: one delivery of a journal line, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from producer import errors, receipt

__all__ = ["Delivery", "Failed", "Settled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """One journal line as a worker got it: signature checked, event validated."""

    line_hash: str
    id: str  # eventId, factId or order id
    kind: str  # "event" or "order"
    event: Mapping[str, Any]  # the plain event, or the order
    appended_at: str  # the journal's time, in our one form
    line_key: str | None = None
    session_key: str | None = None
    received: float = 0.0  # when the worker got it; the caller's clock, for the caller's deadline


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """The last look found nothing left to mend: this is the receipt's content.

    `unsure`: a write ended in anything but a complete answer; the worker makes the delivery once more, later.
    """

    state: receipt.State  # stored, forgotten or dead
    reason: str = ""  # dead: a stable code
    conflict: bool = False  # other content stands in the same scope under the same id
    duplicate: bool = False  # the first look found it stored and settled, or its twin in the same batch wrote it
    unsure: bool = False
    cache_errors: int = 0  # recent writes that could not be put or dropped; ignored otherwise


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """Not settled. Whether to try again is in the error's class; `unsure` as in `Settled`."""

    error: errors.IngestError
    unsure: bool = False
    cache_errors: int = 0
