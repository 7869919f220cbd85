"""Entry point of Celery's own commands: `celery -A memory_tasks.worker_app worker` (and `flower`, `inspect`).

Reads the environment, once, at import: that is what Celery's `-A` asks for. A worker makes its parts at its start, so
that one whose parts cannot be made ends there, and takes no message; it connects to stores and Redis when its first
message comes. Flower and `inspect` load this too and make nothing.
"""

from __future__ import annotations

import os
from typing import Any

from celery import signals

from memory_tasks import app as app_module
from memory_tasks import settings
from memory_tasks import worker as worker_module
from producer import errors

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


@signals.worker_init.connect(weak=False)
def _make_parts(**_: Any) -> None:
    """Celery logs what a signal's receiver raises and goes on; only the end of the process gets past it."""
    try:
        _worker.handler()
    except errors.IngestError as refusal:
        raise SystemExit(f"error {type(refusal).__name__}: {refusal}") from None
    except Exception as fault:  # noqa: BLE001 (the edge of the process; its words may quote a secret)
        raise SystemExit(f"error {type(fault).__name__}: the parts of this worker cannot be made") from None


@signals.worker_shutdown.connect(weak=False)
def _close(**_: Any) -> None:
    _worker.close()
