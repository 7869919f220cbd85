"""Why an event was not captured: the stable code of each error that capture can meet. Standard library only.

the scope's own reason   nobody can say whose memory this is (see producer.scope)
invalid                  the event breaks the contract; `detail` names the field
journal_full             the disk budget is spent; deliveries make room
journal_failed           the disk refused
sync_unknown             the disk did not answer in time; the event may still land
internal                 a fault of ours; the log has its kind
"""

from __future__ import annotations

from producer import errors
from producer.outcomes import Refused

__all__ = ["of"]


def of(problem: Exception) -> Refused:
    """The answer of a capture that met this error."""
    match problem:
        case errors.ScopeRefused():
            return Refused(problem.reason, str(problem))
        case errors.ContractViolation():
            return Refused("invalid", str(problem))
        case errors.JournalFull():
            return Refused("journal_full", "start workers, or raise MEMORY_JOURNAL_MAX_BYTES")
        case errors.JournalFailed():
            return Refused("journal_failed", str(problem))
        case errors.SyncUnknown():
            return Refused("sync_unknown", "the disk did not answer in time; the event may still land")
    return Refused("internal", type(problem).__name__)
