"""The worker's composition root with the store of `faulty_store`, in the worker and in its children.

While `TEST_FAULTS_DIR` holds a file `quote-receipts`, sending receipts raises an error that quotes what was received.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import signals

from memory_tasks import app as app_module
from memory_tasks import ingest, settings, worker
from tests.integration import faulty_store

_faults = Path(os.environ["TEST_FAULTS_DIR"])


class _Worker(worker.Worker):
    def handler(self) -> ingest.Ingest:
        return _Quoting(super().handler(), _faults)  # type: ignore[return-value]


class _Quoting:
    def __init__(self, real: ingest.Ingest, faults: Path) -> None:
        self._real = real
        self._faults = faults

    def receive(self, arguments: Any, *args: Any, **more: Any) -> Any:
        self._raise(arguments)
        return self._real.receive(arguments, *args, **more)

    def answer_fault(self, arguments: Any, *args: Any, **more: Any) -> None:
        self._raise(arguments)
        self._real.answer_fault(arguments, *args, **more)

    def _raise(self, arguments: Any) -> None:
        if (self._faults / "quote-receipts").exists():
            raise ValueError(f"cannot send receipts for {arguments!r}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


_settings = settings.Settings.load(os.environ)
_worker = _Worker(_settings, open_store=faulty_store.open_store, child_module="tests.integration.faulty_child")
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
