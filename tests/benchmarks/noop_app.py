"""Celery's no-op task under our worker's settings: the ceiling that ingestion is compared with."""

from __future__ import annotations

import os

import celery

app = celery.Celery("noop", broker=os.environ["NOOP_BROKER_URL"], set_as_current=False)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=2,
    worker_send_task_events=True,
    task_default_queue="noop",
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop", ignore_result=True)
def noop(text: str) -> None:
    """Take a message of an event's size and do nothing."""
