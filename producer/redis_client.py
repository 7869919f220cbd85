"""A Redis by URL: the forms of a URL that we take, as redis-py wants them. Imported by name, loaded lazily."""

from __future__ import annotations

from producer import errors

__all__ = ["redis_url_of"]


def redis_url_of(url: str) -> str:
    """The form redis-py takes of a Redis URL in Celery's form. Raises `errors.SettingsRefused` for anything else."""
    scheme, _, rest = url.partition("://")
    if scheme == "redis+socket":
        return f"unix://{rest}"
    if scheme in ("redis", "rediss", "unix"):
        return url
    if scheme == "sentinel":
        raise errors.Unsupported("receipts through Redis Sentinel: name the Redis itself in MEMORY_REDIS_URL")
    raise errors.SettingsRefused("MEMORY_REDIS_URL", "unknown form; use redis://, rediss:// or unix://")
