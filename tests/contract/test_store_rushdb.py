"""The store contract on the RushDB adapter, over the test server, in both forms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from producer.store import open_store
from producer.store.port import Store
from tests.contract.store_contract import StoreContract
from tests.rushdb_server import RunningServer, rushdb_server


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with rushdb_server(tmp_path_factory.mktemp("platform") / "data.sqlite") as server:
        yield server
        assert server.crashes() == 0


@pytest.fixture(scope="module")
def embedding_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with rushdb_server(tmp_path_factory.mktemp("embedding") / "data.sqlite", embeds=True) as server:
        yield server
        assert server.crashes() == 0


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with rushdb_server(tmp_path_factory.mktemp("engine") / "data.sqlite", profile="direct") as server:
        yield server
        assert server.crashes() == 0


class TestPlatform(StoreContract):
    """RushDB 2.11 without embeddings: keyword search is refused."""

    @pytest.fixture
    def store(self, platform: RunningServer) -> Iterator[Store]:
        store = open_store(f"rushdb+{platform.url}", token=platform.token)
        yield store
        store.close()


class TestEmbeddingPlatform(StoreContract):
    """RushDB 2.11 that embeds: text is searched by the server's own vectors."""

    @pytest.fixture
    def store(self, embedding_platform: RunningServer) -> Iterator[Store]:
        store = open_store(f"rushdb+{embedding_platform.url}", token=embedding_platform.token)
        yield store
        store.close()


class TestEngine(StoreContract):
    """The engine's protocol: keyword, vector and hybrid search."""

    @pytest.fixture
    def store(self, engine: RunningServer) -> Iterator[Store]:
        store = open_store(f"rushdb+direct+{engine.url}", token=engine.token)
        yield store
        store.close()
