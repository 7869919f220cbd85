"""The command by which `up`, `demo` and `worker` start a worker, as a process."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import redis as redis_py

from memory_tasks import supervisor
from producer import broker, config, message
from tests import worker_messages as make
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


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"MEMORY_EMBED_URL": "http://127.0.0.1:9/v1/embeddings"}, "MEMORY_EMBED_DIMENSIONS"),
        ({"MEMORY_TENANTS_FILE": "tenants.json"}, "MEMORY_STORE_TOKEN"),
    ],
    ids=["embedder", "store of a tenant"],
)
def test_a_worker_whose_parts_cannot_be_made_ends_at_its_start_and_takes_nothing_off_the_queue(tmp_path, changes, says):
    key = {"keyId": "host", "secret": "s" * 32, "tenant": "acme", "storeUrl": "rushdb+https://127.0.0.1:9"}
    (tmp_path / "tenants.json").write_text(json.dumps([key]))
    (tmp_path / "tenants.json").chmod(0o600)
    with redis_server(tmp_path / "redis") as server:
        environment = {
            "PATH": os.environ["PATH"],
            "MEMORY_STATE_DIR": str(tmp_path / "state"),
            "MEMORY_BROKER_URL": server.broker_url,
            **{name: str(tmp_path / value) if name.endswith("_FILE") else value for name, value in changes.items()},
        }
        event = make.episode()
        publisher = broker.KombuPublisher(server.broker_url)
        publisher.publish(
            [make.publication([make.item(make.line(event))], config.load(environment).key, task_id=event["eventId"])]
        )
        publisher.close()
        ended = subprocess.run(
            supervisor.worker_command(concurrency=1), env=environment, capture_output=True, text=True, timeout=60
        )
        with redis_py.Redis.from_url(server.url) as client:
            assert client.llen(message.QUEUE) == 1
            assert not client.exists("memory:unacked")
    assert ended.returncode != 0
    assert says in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
