"""A store, Redis and two workers as processes, kept running for many histories.

Times are short: what takes minutes in service takes seconds here. A late request lands well before the later look.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import redis as redis_py

from memory_tasks import counts
from producer import broker, config, message, receipt
from producer.dispatcher import Publication
from producer.recall.recent import RecentWrites
from producer.store import open_store, port
from tests.integration.local_nodes import ROOT, WorkerContainer
from tests.redis_server import redis_server
from tests.rushdb_server import RunningServer, rushdb_server

__all__ = ["STORES", "World"]

STORES = ("sqlite", "rest", "direct")
JOURNAL = "0123456789abcdef" * 2
TIMES = {
    "MEMORY_VISIBILITY_TIMEOUT_S": "600",  # nobody is killed: one receipt a message, however slow the machine
    "MEMORY_RETRY_MAX_COUNTDOWN_S": "0.5",
    "MEMORY_STORE_LATE_S": "3",
    "MEMORY_STORE_TIMEOUT_S": "4",
    "MEMORY_CONCURRENCY": "8",
}
LATE_S = 0.3


class World:
    """`with World("rest") as world:`. `receipts` and `publish` are a host's; `store` and `recent` are a reader's."""

    def __init__(self, store: str, *, workers: int = 2, faults: bool = True) -> None:
        assert store in STORES
        self.name = store
        self._workers = workers
        self._faults = faults and store != "sqlite"
        self._stack = ExitStack()

    def __enter__(self) -> World:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="histories-")))
            server = stack.enter_context(redis_server(directory / "redis", persistent=False))
            self.rushdb: RunningServer | None = None
            store_url, token = f"sqlite:///{directory}/store.sqlite3", ""
            if self.name != "sqlite":
                profile, form = ("direct", "rushdb+direct+") if self.name == "direct" else ("2.11", "rushdb+")
                self.rushdb = stack.enter_context(rushdb_server(directory / "store", profile=profile, process=True))
                store_url, token = f"{form}{self.rushdb.url}", self.rushdb.token
            self.environ = {
                **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
                **TIMES,
                "PYTHONPATH": str(ROOT),
                "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", ""),
                "MEMORY_STATE_DIR": str(directory / "state"),
                "MEMORY_BROKER_URL": server.broker_url,
                "MEMORY_STORE_URL": store_url,
                "MEMORY_STORE_TOKEN": token,
            }
            settings = config.load(self.environ)  # makes the secrets that all share
            self.key = settings.key
            self.redis = stack.enter_context(redis_py.Redis.from_url(settings.redis_url))
            self.store: port.Store = open_store(store_url, token=token, timeout_s=30.0)
            stack.callback(self.store.close)
            self.recent = RecentWrites(
                settings.redis_url, tenant=settings.tenant, cache_key=settings.cache_key, timeout_s=10.0
            )
            stack.callback(self.recent.close)
            self._publisher = broker.KombuPublisher(settings.broker_url, socket_timeout_s=10.0)
            stack.callback(self._publisher.close)
            self.workers = [
                WorkerContainer(
                    f"worker-{n}", app="memory_tasks.worker_app", directory=directory, environment=self.environ
                )
                for n in range(self._workers)
            ]
            for worker in self.workers:
                worker.start()
                stack.callback(worker.teardown)
            if self._faults:
                self._set_faults()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _set_faults(self) -> None:
        """What RushDB was seen to do, far more often than it does."""
        assert self.rushdb is not None
        self.rushdb.fail("late_double", on="write", probability=0.004, seed=1, late_s=LATE_S)
        self.rushdb.fail("late", on=("link", "delete"), probability=0.002, seed=2, late_s=LATE_S)
        self.rushdb.fail("error_after", on=("write", "link"), probability=0.01, seed=3)
        self.rushdb.fail("lie", on=("write", "link", "delete"), probability=0.03, seed=4)
        self.rushdb.fail("double", on="write", probability=0.2, seed=5)

    def publish(self, messages: list[list[message.Item]], task_ids: list[str]) -> None:
        self._publisher.publish(
            [self._publication(items, task_id) for items, task_id in zip(messages, task_ids, strict=True)]
        )

    def _publication(self, items: list[message.Item], task_id: str) -> Publication:
        kwargs = message.arguments(items)
        queue = message.BACKLOG_QUEUE if task_id.startswith("chunk-") else message.QUEUE
        return Publication(
            task_id=task_id, queue=queue, kwargs=kwargs, headers=message.sign(kwargs, self.key), count=len(items)
        )

    def receipts(self, wait_s: float) -> list[receipt.Receipt]:
        """What has come, or the first that comes within this time."""
        name = receipt.list_name(JOURNAL)
        entries = self.redis.lpop(name, 1000) or []
        if not entries and (one := self.redis.blpop([name], timeout=wait_s)):
            entries = [one[1]]
        secrets = {self.key.id: self.key.secret}
        return [receipt.decode(entry, journal_id=JOURNAL, secret_of=secrets.get) for entry in entries]

    def counts(self) -> Mapping[str, int]:
        return counts.read(self.redis, "local")

    def logs(self) -> str:
        return "\n".join(worker.logs()[-2000:] for worker in self.workers)
