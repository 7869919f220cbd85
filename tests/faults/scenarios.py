"""All scenarios, in the order of the table."""

from __future__ import annotations

# Each registers its scenarios when it is imported.
from tests.faults import (  # noqa: F401
    on_broker,
    on_clock,
    on_environment,
    on_journal,
    on_processes,
    on_rabbitmq,
    on_sentinel,
    on_store,
)
from tests.faults.scenario import KNOWN, Scale, Scenario

__all__ = ["ALL", "Scale", "Scenario"]

ALL: dict[str, Scenario] = KNOWN
