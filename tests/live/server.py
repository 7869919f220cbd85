"""The real RushDB that `make test-live` names."""

from __future__ import annotations

import os

from producer.store import open_store
from producer.store.port import Store

__all__ = ["open_live"]


def open_live() -> Store:
    """`RUSHDB_URL` is the server's address, or a store URL as `rushdb+direct+http://host:3000` for an engine."""
    url = os.environ["RUSHDB_URL"]
    store_url = url if url.startswith("rushdb+") else f"rushdb+{url}"
    return open_store(store_url, token=os.environ["RUSHDB_TOKEN"], timeout_s=60.0)
