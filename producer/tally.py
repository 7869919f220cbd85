"""What a dispatcher counts, and the status it makes of that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DispatcherStatus", "Tally"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatcherStatus:
    """Counts since this dispatcher began. A second old at most while its thread runs."""

    role: str
    pending: int = 0
    in_flight: int = 0
    in_flight_bytes: int = 0
    deferred: int = 0
    dead: int = 0
    oldest_pending_s: float = 0.0
    published: int = 0
    republished: int = 0
    receipts: Mapping[str, int]  # by state
    receipts_refused: int = 0  # not signed by our key, or not a receipt
    receipts_unknown: int = 0  # of lines that are not here: late ones, or another directory has this journal's id
    receipts_unjournaled: int = 0
    unmarked: int = 0  # published although the journal had no room for their `sent`
    broker_failures: int = 0
    redis_failures: int = 0
    failed_rounds: int = 0
    damaged: int = 0
    checked: int = 0  # questions about dead lines
    unreadable: int = 0  # pending lines whose bytes were gone or damaged when they were to be published
    not_quarantined: int = 0  # damage that the quarantine had no room for
    segments_removed: int = 0
    journal_bytes: int = 0
    last_stored_s: float | None = None  # how long ago a line was stored


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts that only grow. `counted` has the names of fields of the status."""

    counted: Counter[str]
    receipts: Counter[str]  # by state
    stored_at_s: float | None = None  # on the dispatcher's clock

    @classmethod
    def new(cls) -> Tally:
        return cls(counted=Counter(), receipts=Counter())
