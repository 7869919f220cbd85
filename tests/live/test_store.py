"""The store contract on a real RushDB: `make test-live RUSHDB_URL=http://host:3000 RUSHDB_TOKEN=key`.

Use an empty project: every test works under labels of its own and deletes its records, but indexes stay behind.
`RUSHDB_URL` may also be a store URL, as `rushdb+direct+http://host:3000` for an engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from producer.store import open_store
from producer.store.port import Store
from tests.contract.store_contract import StoreContract

pytestmark = pytest.mark.live


class TestLive(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        url = os.environ["RUSHDB_URL"]
        store = open_store(url if url.startswith("rushdb+") else f"rushdb+{url}", token=os.environ["RUSHDB_TOKEN"])
        yield store
        store.close()
