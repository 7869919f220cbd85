"""A Celery worker that knows nothing of this project but names: it writes down what its task saw, in a Redis list.

Run by test_broker.py as a process: python -m tests.contract.foreign_worker BROKER_URL REDIS_URL
"""

from __future__ import annotations

import json
import sys
from typing import Any

import celery
import redis

SEEN = "seen-by-foreign-worker"


def main(broker_url: str, redis_url: str) -> None:
    app = celery.Celery("foreign", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        accept_content=["json"],
        task_acks_late=True,
        broker_connection_retry_on_startup=True,
    )
    client = redis.Redis.from_url(redis_url)

    @app.task(name="memory.ingest", bind=True)
    def ingest(self: Any, *args: Any, **kwargs: Any) -> None:
        request = self.request
        seen = {
            "id": request.id,
            "task": request.task,
            "args": args,
            "kwargs": kwargs,
            "headers": dict(request.headers),
            "gotten": request.get("memorySignature"),
            "attribute": request.memorySignature,
            "argsrepr": request.argsrepr,
            "kwargsrepr": request.kwargsrepr,
            "retries": request.retries,
            "ignore_result": request.ignore_result,
            "redelivered": request.delivery_info.get("redelivered"),
            "queue": request.delivery_info.get("routing_key"),
        }
        client.rpush(SEEN, json.dumps(seen))
        if kwargs["tries"] == 0 and request.id == "again":
            raise self.retry(kwargs={**kwargs, "tries": 1}, countdown=0, max_retries=None)

    arguments = ["--loglevel=WARNING", "--without-mingle", "--without-gossip", "-Q", "memory,memory.backlog"]
    app.worker_main(["worker", "-P", "threads", "-c", "2", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
