"""Real parts for integration tests: Redis and a Celery worker as processes of their own, under pytest-celery."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import celery
import pytest
from pytest_celery import CeleryBrokerCluster, CeleryWorkerCluster

from producer import broker, message
from tests.integration.local_nodes import ROOT, LocalBroker, LocalWorker, RedisContainer, WorkerContainer
from tests.redis_server import RedisServer

# Short waits, each below half of the visibility timeout, so that what takes minutes in service takes seconds here.
SHORT_WAITS = {
    "MEMORY_VISIBILITY_TIMEOUT_S": "6",
    "MEMORY_RESTORE_INTERVAL_S": "0.5",
    "MEMORY_RETRY_MAX_COUNTDOWN_S": "0.4",
    "MEMORY_STORE_LATE_S": "1",
    "MEMORY_EXPIRY_EVERY_S": "0",  # no task of its own accord, except where a test is about it
}


@pytest.fixture
def worker_environment(tmp_path: Path, celery_broker_cluster: CeleryBrokerCluster) -> dict[str, str]:
    """The environment of the worker, and of everything in the test that shares its settings."""
    (tmp_path / "faults").mkdir()
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **keep,
        **SHORT_WAITS,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),  # for tests' children
        "PYTHONUNBUFFERED": "1",
        "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", ""),
        "MEMORY_STATE_DIR": str(tmp_path / "state"),
        "MEMORY_BROKER_URL": celery_broker_cluster[0].config()["url"],
        "MEMORY_CONCURRENCY": "8",
        "TEST_FAULTS_DIR": str(tmp_path / "faults"),
    }


@pytest.fixture
def celery_broker_cluster(tmp_path: Path) -> Iterator[CeleryBrokerCluster]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    node = LocalBroker(RedisContainer(server))
    yield CeleryBrokerCluster(node)
    gc.collect()  # what still holds a connection lets go before the server does
    node.teardown()


@pytest.fixture
def celery_backend_cluster() -> None:
    """Results are ignored: there is no backend."""


@pytest.fixture
def celery_worker_cluster(tmp_path: Path, worker_environment: dict[str, str]) -> Iterator[CeleryWorkerCluster]:
    container = WorkerContainer(
        "worker", app="tests.integration.faulty_worker", directory=tmp_path, environment=worker_environment
    )
    container.start()
    node = LocalWorker(container, None)
    yield CeleryWorkerCluster(node)
    node.teardown()


@pytest.fixture
def celery_worker_cluster_config(celery_broker_cluster: CeleryBrokerCluster) -> dict[str, object]:
    return {"celery_broker_cluster_config": celery_broker_cluster.config()}


@pytest.fixture
def celery_setup_app(celery_setup_config: dict[str, str], celery_setup_name: str) -> Iterator[celery.Celery]:
    """The test's own client of the broker."""
    app = celery.Celery(celery_setup_name, set_as_current=False)
    app.conf.update(
        celery_setup_config,
        task_queues=broker.queues(celery_setup_config["broker_url"]),
        task_default_queue=message.QUEUE,
        task_ignore_result=True,
    )
    yield app
    app.close()
