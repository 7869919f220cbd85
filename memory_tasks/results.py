"""What became of one item of a message, before it is judged.

Settled, Failed   of the rules of memory, see producer.convergence
Checked           a dead line, asked about: whether it was forgotten
Held              nothing was sent: the tenant's store is known to be away (memory_tasks.breaker)
Died              it was alone in a child of the worker, and the child died over it
Fault             an error nobody foresaw; how far it came is unknown
None              it was refused when it was opened; its entry says why
"""

from __future__ import annotations

from dataclasses import dataclass

from memory_tasks import incoming
from producer.convergence import delivery

__all__ = ["Checked", "Died", "Fault", "Handled", "Held", "Result"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    forgotten: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    delay_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Died:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    kind: str  # class of the error


Result = delivery.Settled | delivery.Failed | Checked | Held | Died | Fault


@dataclass(frozen=True, kw_only=True, slots=True)
class Handled:
    """An item as far as it was opened, and what became of it."""

    entry: incoming.Entry
    result: Result | None
