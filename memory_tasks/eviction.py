"""Refusing a Redis that cannot be a broker: one that evicts would drop queues and unfinished messages in silence, a
member of a cluster cannot hold queues, and a sentinel holds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from producer import errors

__all__ = ["NO_CLUSTER", "check", "check_mode"]

NO_CLUSTER = "Redis Cluster as broker; use one Redis, or Sentinel for failover"


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


def check_mode(server: Mapping[str, Any]) -> None:
    """Take the answer of `INFO server`. Raises `errors.Unsupported` for a cluster, `errors.SettingsRefused` for a
    sentinel under a URL for its master."""
    mode = server.get("redis_mode", "standalone")
    if mode == "cluster":
        raise errors.Unsupported(NO_CLUSTER)
    if mode == "sentinel":
        raise errors.SettingsRefused(
            "MEMORY_BROKER_URL", "names a sentinel: use sentinel://host:port/?master_name=… for the master it watches"
        )
