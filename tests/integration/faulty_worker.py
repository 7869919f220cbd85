"""The worker's composition root with a store that a test can make fail or hang; everything else is the real thing.

`TEST_FAULTS_DIR` names a directory. While it holds a file `fail-find`, every find fails as in an outage (503). While it
holds `hang-upsert`, an upsert of an EPISODE is committed and then does not return, and leaves a file `hung`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from memory_tasks import app as app_module
from memory_tasks import settings, worker
from producer import errors, store
from producer.store import port


class FaultyStore:
    def __init__(self, real: port.Store, faults: Path) -> None:
        self._real = real
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def find(self, *args: Any, **kwargs: Any) -> port.Page:
        if (self._faults / "fail-find").exists():
            raise errors.StoreUnavailable("no answer", status=503)
        return self._real.find(*args, **kwargs)

    def upsert(self, label: str, *args: Any, **kwargs: Any) -> Any:
        answer = self._real.upsert(label, *args, **kwargs)
        if label == "EPISODE" and (self._faults / "hang-upsert").exists():
            (self._faults / "hung").touch()
            while (self._faults / "hang-upsert").exists():
                time.sleep(0.02)
        return answer


def _open_store(url: str, **more: Any) -> port.Store:
    return FaultyStore(store.open_store(url, **more), Path(os.environ["TEST_FAULTS_DIR"]))  # type: ignore[return-value]


_settings = settings.Settings.load(os.environ)
app = app_module.make_app(_settings, worker.Worker(_settings, open_store=_open_store).handler)
