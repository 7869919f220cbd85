"""What `capture` answers: `Durable` or `Refused`, never an exception."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Durable", "Outcome", "Refused"]


@dataclass(frozen=True, slots=True)
class Durable:
    """The line is on disk: file and directory are synced. It survives kill -9 and power loss."""

    id: str  # eventId, factId or order id

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Refused:
    """Not captured. `reason` is a stable code, counted by status; `detail` says what to do and quotes nothing.

    `sync_unknown` says that the disk did not answer within the budget: the event may still land, and is then delivered.
    """

    reason: str
    detail: str = ""

    def __bool__(self) -> bool:
        return False


Outcome = Durable | Refused
