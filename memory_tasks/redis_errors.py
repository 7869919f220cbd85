"""Redis errors become ours, once, for everything that workers keep in Redis beside the queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from producer import errors, redis_client

__all__ = ["translated"]


@contextmanager
def translated() -> Iterator[None]:
    """Turn what redis-py raises into `errors.RedisUnavailable`; its own text may quote a command, so it is left out."""
    try:
        yield
    except (redis.RedisError, OSError) as problem:
        raise errors.RedisUnavailable(f"Redis {redis_client.trouble(problem)}") from None
