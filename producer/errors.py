"""Every error this project raises, in one tree. Whether to try again is in the class.

    IngestError
    ├── Retryable                     the same call may succeed later; nothing is lost by waiting
    │   ├── StoreUnavailable          refused, timed out, 5xx, half an answer; `outcome_unknown`: it may land
    │   ├── StoreThrottled            429, or 403 from a key that worked before; wait `retry_after_s`
    │   ├── BrokerUnavailable         publishing failed; the journal keeps the line
    │   ├── RedisUnavailable          receipts or recent writes out of reach
    │   ├── DeliveryTooOld            half the visibility timeout is over; no further request may be sent
    │   ├── ChildUnavailable          no child process of the worker could take the delivery
    │   └── SyncUnknown               the disk did not answer within the budget; the line may still land
    └── Permanent                     the same call will fail again; a person or a caller must change something
        ├── ContractViolation         the event breaks AgentMemoryEvent v1 (`field`, `reason`)
        ├── ScopeRefused              the scope could not be proven (`reason`)
        ├── StoreRefused              the store refused the request (`status`); a refused batch is bisected
        ├── StoreDenied               key missing, wrong or read-only
        ├── SignatureRefused          a message or receipt without a valid signature (`reason`)
        ├── SettingsRefused           a setting is missing, unsafe or unknown (`setting`)
        ├── JournalFull               the journal's byte budget is spent; the caller drops the line and counts it
        ├── JournalFailed             the disk refused to write or sync; the line is not durable
        ├── DamagedLine               bytes that are not a whole journal line
        └── Unsupported               refused on purpose and listed in the README

No message holds memory text, a secret or a raw participant id: data that may be private stands in attributes that are
never formatted. The base is not called MemoryError, which is a builtin.
"""

from __future__ import annotations

__all__ = [
    "BrokerUnavailable",
    "ChildUnavailable",
    "ContractViolation",
    "DamagedLine",
    "DeliveryTooOld",
    "IngestError",
    "JournalFailed",
    "JournalFull",
    "Permanent",
    "RedisUnavailable",
    "Retryable",
    "ScopeRefused",
    "SettingsRefused",
    "SignatureRefused",
    "StoreDenied",
    "StoreRefused",
    "StoreThrottled",
    "StoreUnavailable",
    "SyncUnknown",
    "Unsupported",
]


class IngestError(Exception):
    """Base of all errors of this project."""


class Retryable(IngestError):
    """The same call may succeed later."""

    retry_after_s: float = 0.0  # how long the other side asked to wait; 0 when it said nothing


class Permanent(IngestError):
    """The same call will fail again."""


class StoreUnavailable(Retryable):
    """The store gave no complete answer. `outcome_unknown`: a write may have been applied, or may be applied later."""

    def __init__(self, message: str, *, outcome_unknown: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        self.status = status


class StoreThrottled(Retryable):
    """The store asked for a pause; nothing was written."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status


class BrokerUnavailable(Retryable):
    """The broker could not be reached or refused; the line stays in the journal."""


class RedisUnavailable(Retryable):
    """Redis (receipts, recent writes) could not be reached."""


class DeliveryTooOld(Retryable):
    """Half the visibility timeout has passed since this delivery was received: another copy may be running."""


class ChildUnavailable(Retryable):
    """No child process could be started or take the delivery; nothing is known against the event."""


class SyncUnknown(Retryable):
    """The disk did not answer within the budget. The line may still land; if it does, it is delivered."""


class ContractViolation(Permanent):
    """The event breaks the contract. `field` names the place, `reason` what is wrong there; neither quotes a value."""

    def __init__(self, reason: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.reason = reason
        self.field = field


class ScopeRefused(Permanent):
    """No scope can be proven from the host's metadata. `reason` is a stable code, counted and shown by status."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class StoreRefused(Permanent):
    """The store refused the request as it stands (a 4xx that is not about the key)."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class StoreDenied(Permanent):
    """The store key is missing, wrong, expired or read-only: set MEMORY_STORE_TOKEN to one that may do this."""


class SignatureRefused(Permanent):
    """Unknown key id, missing or wrong signature. The content was not parsed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SettingsRefused(Permanent):
    """A setting is missing, unsafe or unknown. The message says which and what to set."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting


class JournalFull(Permanent):
    """The journal's byte budget is spent. The caller drops this line and counts it; deliveries make room."""


class JournalFailed(Permanent):
    """Writing or syncing failed. The line is not durable; the segment is closed and the next append takes a new one."""


class DamagedLine(Permanent):
    """These bytes are not one whole, self-checking journal line. They belong into quarantine."""


class Unsupported(Permanent):
    """Refused on purpose; the README lists it."""
