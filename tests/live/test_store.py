"""The store contract on a real RushDB: `make test-live RUSHDB_URL=http://host:3000 RUSHDB_TOKEN=key`.

Use an empty project: every test works under labels of its own and deletes its records, but indexes stay behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from producer.store.port import Store
from tests.contract.store_contract import StoreContract
from tests.live.server import open_live

pytestmark = pytest.mark.live


class TestLive(StoreContract):
    clean_up = True

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = open_live()
        yield store
        store.close()
