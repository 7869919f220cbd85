"""The append-only journal of an agent host. Standard library only; `Journal` is all that a hook needs."""

from producer.journal.journal import Journal, Located

__all__ = ["Journal", "Located"]
