"""The store: `port` says what a store does, `open_store` gives the one that a URL names.

Adapters are imported when they are asked for, so that the port costs an agent host nothing but the standard library.
"""

from __future__ import annotations

from producer import errors
from producer.store.port import Store

__all__ = ["open_store"]


def open_store(url: str, *, token: str = "", timeout_s: float = 20.0, pool: int = 16) -> Store:
    """The store at `url`; the caller closes it. Every call on it ends within `timeout_s`.

    `sqlite:///path` (always absolute) · `rushdb+https://host[:port][/api/v1]` or `rushdb+http://…` (Cloud, platform) ·
    `rushdb+direct+https://host[:port]` or `rushdb+direct+http://…` (engine). `token`: API key or engine token. `pool`:
    connections kept open, at most. Raises `errors.SettingsRefused` for anything else.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator:
        if not rest.startswith("/") or not rest.strip("/"):
            raise errors.SettingsRefused("MEMORY_STORE_URL", "names no file: use sqlite:///absolute/path")
        from producer.store.sqlite import SqliteStore

        return SqliteStore("/" + rest.lstrip("/"), timeout_s=timeout_s)
    if scheme in ("rushdb+https", "rushdb+http", "rushdb+direct+https", "rushdb+direct+http"):
        from producer.store.rushdb import RushDBStore

        return RushDBStore.connect(url, token=token, timeout_s=timeout_s, pool=pool)
    raise errors.SettingsRefused(
        "MEMORY_STORE_URL",
        "unknown form; use sqlite:///path, rushdb+https://host, rushdb+http://host or rushdb+direct+http://host",
    )
