"""Entry point of Celery's own commands: `celery -A memory_tasks.worker_app worker` (and `flower`, `inspect`).

Reads the environment, once, at import: that is what Celery's `-A` asks for. A worker opens stores and Redis when its
first message comes; Flower and `inspect` load this too and open nothing.
"""

from __future__ import annotations

import os
from typing import Any

from celery import signals

from memory_tasks import app as app_module
from memory_tasks import settings
from memory_tasks import worker as worker_module

__all__ = ["app"]

_settings = settings.Settings.load(os.environ)
_worker = worker_module.Worker(_settings)
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
