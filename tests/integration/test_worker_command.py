"""The command by which `up`, `demo` and `worker` start a worker, as a process."""

from __future__ import annotations

import os
import subprocess

from memory_tasks import supervisor
from tests.redis_server import redis_server


def test_a_worker_that_refuses_its_broker_ends_with_an_exit_code_that_says_so(tmp_path):
    with redis_server(tmp_path / "evicting", extra=["--maxmemory-policy", "allkeys-lru"]) as evicting:
        environment = {
            "PATH": os.environ["PATH"],
            "MEMORY_STATE_DIR": str(tmp_path / "state"),
            "MEMORY_BROKER_URL": evicting.broker_url,
        }
        ended = subprocess.run(
            supervisor.worker_command(concurrency=1), env=environment, capture_output=True, text=True, timeout=60
        )
    assert ended.returncode != 0
    assert "set maxmemory-policy noeviction" in ended.stderr
