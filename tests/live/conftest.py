"""Only `make test-live` names a server; without one there is nothing here to collect."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("RUSHDB_URL") else ["test_*.py"]
