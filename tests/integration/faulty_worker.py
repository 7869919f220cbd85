"""The worker's composition root with the store of `faulty_store`, in the worker and in its children."""

from __future__ import annotations

import os
from typing import Any

from celery import signals

from memory_tasks import app as app_module
from memory_tasks import settings, worker
from tests.integration import faulty_store

_settings = settings.Settings.load(os.environ)
_worker = worker.Worker(_settings, open_store=faulty_store.open_store, child_module="tests.integration.faulty_child")
app = app_module.make_app(
    _settings,
    _worker.handler,
    lease=_worker.make_lease(),
    expiry_of=_worker.expirer,
    turns=_worker.make_turns(),
)


@signals.worker_shutdown.connect(weak=False)
def _close(**_: Any) -> None:
    _worker.close()
