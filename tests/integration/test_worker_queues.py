"""A worker started by hand with queues of its own: one of ours would be left to nobody."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from memory_tasks import supervisor
from producer import message
from tests.redis_server import redis_server


def test_a_worker_that_would_leave_a_queue_to_nobody_is_refused_at_start(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as redis:
        done = subprocess.run(
            [*supervisor.worker_command(concurrency=1), "-Q", message.QUEUE],
            env={
                "PATH": os.environ["PATH"],
                "MEMORY_STATE_DIR": str(tmp_path / "state"),
                "MEMORY_BROKER_URL": redis.broker_url,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode != 0
    assert f"leaves out {message.BACKLOG_QUEUE}" in done.stderr
