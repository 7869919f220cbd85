"""The store contract on the RushDB adapter, over the test server, in both forms."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from producer import errors
from producer.store import open_store
from producer.store.port import IndexSpec, LinkSpec, Store
from producer.store.rushdb import RushDBStore
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


# -- a server that misbehaves ------------------------------------------------------------------------------------------

LABEL = "MEMORY_FACT"
ROW = {"key": "k1", "text": "a private matter"}

# fault -> the error of a write, whether its outcome is unknown, and whether it was written
ILL: dict[str, tuple[type[errors.Retryable], bool, bool]] = {
    "hang": (errors.StoreUnavailable, True, False),
    "reset": (errors.StoreUnavailable, True, False),
    "reset_after": (errors.StoreUnavailable, True, True),
    "half_body": (errors.StoreUnavailable, True, True),
    "throttle": (errors.StoreThrottled, False, False),
    "timeout": (errors.StoreUnavailable, True, False),
    "busy": (errors.StoreThrottled, False, False),
    "error": (errors.StoreUnavailable, True, False),
    "error_after": (errors.StoreUnavailable, True, True),
    "database_error": (errors.StoreUnavailable, True, False),
    "bad_gateway": (errors.StoreUnavailable, True, False),
}


@pytest.fixture(params=["2.11", "direct"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    with rushdb_server(tmp_path / "data.sqlite", profile=request.param) as server:
        yield server


@pytest.fixture
def ill(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[RushDBStore]:
    """A store whose key has worked, on a server that the test will make ill."""
    form = "rushdb+direct" if request.node.callspec.params["server"] == "direct" else "rushdb"
    store = RushDBStore.connect(f"{form}+{server.url}", token=server.token, timeout_s=0.5)
    store.ping()
    yield store
    server.clear_faults()
    server.release()
    store.close()


@pytest.mark.parametrize("fault", ILL)
def test_a_write_tells_what_its_caller_knows_of_the_outcome(
    server: RunningServer, ill: RushDBStore, fault: str
) -> None:
    kind, unknown, written = ILL[fault]
    server.fail(fault, on="write", retry_after_s=7)
    for wake in (False, True):
        with pytest.raises(kind) as caught:
            ill.upsert(LABEL, [ROW], ["key"], wake=wake)
        assert getattr(caught.value, "outcome_unknown", False) is unknown
        assert "private" not in str(caught.value)
    if fault == "busy":
        assert caught.value.retry_after_s == 7
    server.clear_faults()
    server.release()
    assert len(ill.with_timeout(5).find(LABEL, {}).records) == written
    assert server.faults_taken()[fault] == 2  # one try per call


@pytest.mark.parametrize("fault", ILL)
def test_a_read_never_has_an_unknown_outcome(server: RunningServer, ill: RushDBStore, fault: str) -> None:
    server.fail(fault, on=("read", "search", "index"), retry_after_s=7)
    for call in (
        lambda: ill.find(LABEL, {"key": "k1"}),
        lambda: ill.edges(LABEL, {"key": "k1"}),
        lambda: ill.search(LABEL, "text", {"key": "k1"}, vector=[1.0, 0.0]),
        ill.ping,
    ):
        with pytest.raises(ILL[fault][0]) as caught:
            call()
        assert getattr(caught.value, "outcome_unknown", False) is False


@pytest.mark.parametrize("fault", ["reset", "half_body", "database_error"])
def test_links_deletes_and_vectors_are_writes_too(server: RunningServer, ill: RushDBStore, fault: str) -> None:
    patient = ill.with_timeout(5)
    patient.ensure_indexes([IndexSpec(label=LABEL, property="text", dimensions=2)])
    patient.upsert(LABEL, [ROW], ["key"])
    (record,) = patient.find(LABEL, {}).records
    server.fail(fault, on=("link", "delete", "vector"))
    spec = LinkSpec(
        type="T", source_label=LABEL, source_key="key", source_where={}, target_label=LABEL, target_key="key"
    )
    for call in (
        lambda: ill.link(spec),
        lambda: ill.set_vectors(LABEL, "text", {record.id: [1.0, 0.0]}),
        lambda: ill.delete(LABEL, record.id),
    ):
        with pytest.raises(errors.StoreUnavailable) as caught:
            call()
        assert caught.value.outcome_unknown is True


def test_a_server_that_is_down_wrote_nothing_and_is_found_again(server: RunningServer, ill: RushDBStore) -> None:
    ill.upsert(LABEL, [ROW], ["key"])
    server.stop()
    with pytest.raises(errors.StoreUnavailable):  # the open connection breaks, or a new one is refused
        ill.find(LABEL, {})
    with pytest.raises(errors.StoreUnavailable) as caught:
        ill.upsert(LABEL, [{"key": "k2"}], ["key"])
    assert caught.value.outcome_unknown is False
    server.start()
    assert ill.with_timeout(5).find(LABEL, {}).total == 1


def test_a_lie_is_only_found_by_looking(server: RunningServer, ill: RushDBStore) -> None:
    server.fail("lie", on="write", count=1)
    ill.upsert(LABEL, [ROW], ["key"])
    assert ill.find(LABEL, {}).total == 0


def test_a_key_that_never_worked_is_denied(server: RunningServer, ill: RushDBStore, request: Any) -> None:
    form = "rushdb+direct" if request.node.callspec.params["server"] == "direct" else "rushdb"
    stranger = RushDBStore.connect(f"{form}+{server.url}", token="wrong", timeout_s=5)
    with pytest.raises(errors.StoreDenied):
        stranger.ping()
    with pytest.raises(errors.StoreDenied):
        stranger.upsert(LABEL, [ROW], ["key"])
    stranger.close()


def test_many_threads_work_over_few_connections(server: RunningServer, ill: RushDBStore) -> None:
    patient = ill.with_timeout(20)
    before = server.counts()["connections"]

    def work(number: int) -> None:
        patient.upsert(f"LABEL_{number % 4}", [{"key": f"k{number}"}], ["key"])
        assert patient.find(f"LABEL_{number % 4}", {"key": f"k{number}"}).total == 1

    with ThreadPoolExecutor(24) as threads:
        list(threads.map(work, range(96)))
    assert server.counts()["connections"] - before < 16
