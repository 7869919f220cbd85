"""A worker of a few lines, for tests of the agent side: what it takes off the queues it settles with the real rules.

No Celery, no retries, no later look; signatures are checked, receipts are real.
"""

from __future__ import annotations

import base64
import json
import threading

import redis

from producer import message, receipt
from producer.config import ProducerConfig
from producer.convergence.delivery import Delivery, Settled
from producer.convergence.driver import settle_all
from producer.journal import line as lines
from producer.recall.recent import RecentWrites
from producer.store import open_store
from producer.store.port import IndexSpec

__all__ = ["TinyWorker"]


class TinyWorker:
    """`with TinyWorker(config) as worker:` works until the end. `settled` counts deliveries."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiny-worker")
        self.settled = 0

    def __enter__(self) -> TinyWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        store = open_store(self._config.store_url)
        store.ensure_indexes(
            [IndexSpec(label="EPISODE", property="summary"), IndexSpec(label="MEMORY_FACT", property="text")]
        )
        recent = RecentWrites(
            self._config.redis_url, tenant=self._config.tenant, cache_key=self._config.cache_key, ttl_s=900
        )
        with redis.Redis.from_url(self._config.redis_url) as client:
            while not self._stop.is_set():
                try:
                    taken = client.blpop([message.QUEUE, message.BACKLOG_QUEUE], timeout=0.05)
                except redis.ConnectionError:
                    self._stop.wait(0.02)
                    continue
                if taken is not None:
                    self._work(client, json.loads(taken[1]), store, recent)
        recent.close()
        store.close()

    def _work(self, client: redis.Redis, raw: dict, store, recent: RecentWrites) -> None:
        _, kwargs, _ = json.loads(base64.b64decode(raw["body"]))
        secrets = {self._config.key_id: self._config.key.secret}
        message.verify(kwargs, raw["headers"], secrets.get)
        parsed = [(lines.parse(item["line"]), item["journalId"]) for item in kwargs["batch"]]
        deliveries = [
            Delivery(
                line_hash=line.hash,
                id=line.id,
                kind=line.kind,
                event=line.body["event" if line.kind == "event" else "order"],
                appended_at=line.appended_at,
                line_key=line.body.get("lineKey"),
                session_key=line.body.get("sessionKey"),
            )
            for line, _ in parsed
        ]
        for (line, journal_id), result in zip(parsed, settle_all(store, deliveries, recent=recent), strict=True):
            assert isinstance(result, Settled), result
            self.settled += 1
            entry = receipt.encode(
                receipt.Receipt(line_hash=line.hash, id=line.id, state=result.state, reason=result.reason),
                journal_id=journal_id,
                key=self._config.key,
            )
            client.rpush(receipt.list_name(journal_id), entry)
