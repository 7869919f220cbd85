"""A store that a test can make fail, hang or kill its process; everything else of it is real.

`TEST_FAULTS_DIR` names a directory. While it holds a file `fail-find`, every find fails as in an outage (503). While it
holds `quote`, an upsert of an EPISODE raises an error of no known class that quotes what it was given. While it
holds `hang-upsert`, an upsert of an EPISODE is committed and then does not return, and leaves a file `hung`. While it
holds `exit-<eventId>`, `segv-<eventId>` or `hang-<eventId>`, an upsert of that EPISODE ends the process with exit code
137, ends it by SIGSEGV, or does not return and leaves a file `hung`.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

from producer import errors, store
from producer.store import port

__all__ = ["open_store"]


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

    def upsert(self, label: str, rows: Any, *args: Any, **kwargs: Any) -> Any:
        if label != "EPISODE":
            return self._real.upsert(label, rows, *args, **kwargs)
        if (self._faults / "quote").exists():
            raise ValueError(f"cannot write {rows!r}")
        for row in rows:
            self._die_over(row["eventId"])
        answer = self._real.upsert(label, rows, *args, **kwargs)
        if (self._faults / "hang-upsert").exists():
            (self._faults / "hung").touch()
            while (self._faults / "hang-upsert").exists():
                time.sleep(0.02)
        return answer

    def _die_over(self, event_id: str) -> None:
        if (self._faults / f"exit-{event_id}").exists():
            os._exit(137)
        if (self._faults / f"segv-{event_id}").exists():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)
        while (self._faults / f"hang-{event_id}").exists():
            (self._faults / "hung").touch()
            time.sleep(0.02)


def open_store(url: str, **more: Any) -> port.Store:
    return FaultyStore(store.open_store(url, **more), Path(os.environ["TEST_FAULTS_DIR"]))  # type: ignore[return-value]
