"""Refusing a broker that evicts: under memory pressure it would drop queues and unfinished messages in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from producer import errors

__all__ = ["check"]


def check(memory: Mapping[str, Any]) -> None:
    """Take the answer of `INFO memory`. Raises `errors.SettingsRefused` for any policy but noeviction, also while no
    limit is set: somebody may set one later. A server that tells no policy is taken as it is."""
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise errors.SettingsRefused(
            "MEMORY_BROKER_URL",
            f"this Redis evicts keys when it is full ({policy}) and would lose queued events: "
            "set maxmemory-policy noeviction, or use another Redis for the broker",
        )
