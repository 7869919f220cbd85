"""All scenarios, in the order of the table."""

from __future__ import annotations

from tests.faults import on_broker, on_clock, on_journal, on_processes, on_store  # noqa: F401 they register themselves
from tests.faults.scenario import KNOWN, Scale, Scenario

__all__ = ["ALL", "Scale", "Scenario"]

ALL: dict[str, Scenario] = KNOWN
