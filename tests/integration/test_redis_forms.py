"""Every form of Redis, from a capture to a stored and recalled fact: server, worker and agent are real processes.

What is wrong with a Redis is said in one line that names the remedy, by whoever meets it; nothing is lost meanwhile,
and no password is ever said.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from memory_tasks import app as app_module
from memory_tasks import settings
from tests import certificates
from tests.acceptance.machine import Machine, Service, free_port, machine, until
from tests.redis_server import RedisServer, redis_server
from tests.sentinel_group import SentinelGroup, sentinel_group

PASSWORD = "p@ss:w/o?r#d;%41+é"  # nosec: a password of a test
SENTINELS = "s@nt:i/n?l"


@dataclass(frozen=True, kw_only=True)
class Served:
    url: str
    server: RedisServer | None = None
    group: SentinelGroup | None = None


def _needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            assert not os.environ.get("CI"), f"{program} is not installed"
            pytest.skip(f"{program} is not installed")


@contextmanager
def served(form: str, directory: Path) -> Iterator[Served]:
    """A Redis in this form."""
    with ExitStack() as stack:
        tls = None
        if "tls" in form:
            _needs("openssl", "redis-server")
            tls = certificates.make(directory / "certificates")
        if form.startswith("sentinel"):
            _needs("redis-sentinel", "redis-server")
            group = stack.enter_context(
                sentinel_group(directory, password=PASSWORD, sentinel_password=SENTINELS, tls=tls, sentinels=2)
            )
            yield Served(url=group.url, group=group)
        elif form == "unix-user-db":
            server = stack.enter_context(
                redis_server(directory, password="another", users=[f"memory on >{PASSWORD} ~* &* +@all"])
            )
            yield Served(url=f"{server.url_of('memory', PASSWORD)}?virtual_host=3", server=server)
        else:
            server = stack.enter_context(
                redis_server(
                    directory, unixsocket=False, password=PASSWORD, tls=tls, client_certificates=form == "tls-both"
                )
            )
            yield Served(url=server.url.replace("/0", "/7", 1) if form == "tcp-db" else server.url, server=server)


def _stats(made: Machine) -> dict[str, Any]:
    """What a worker says of itself to Flower and `inspect`."""
    client = app_module.make_app(settings.Settings.load(made.env), lambda: pytest.fail("handles no messages"))
    try:
        return dict(client.control.inspect(timeout=5.0).stats() or {})
    finally:
        client.close()


def _say_nothing_secret(*words: str) -> None:
    said = "\n".join(words)
    for secret in (PASSWORD, SENTINELS, "p@ss", "w/o", "s@nt", "i/n?l", "p%40ss", "s%40nt"):
        assert secret not in said


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("unix-user-db", marks=pytest.mark.slow),
        pytest.param("tls-both", marks=pytest.mark.slow),
        pytest.param("tls", marks=pytest.mark.slow),
        pytest.param("tcp-db", marks=pytest.mark.slow),
        "sentinel-tls",
        pytest.param("sentinel", marks=pytest.mark.slow),
    ],
)
def test_a_fact_is_stored_receipted_and_recalled_over(form: str, tmp_path: Path) -> None:
    with served(form, tmp_path / "redis") as redis, machine(tmp_path / "m", MEMORY_BROKER_URL=redis.url) as made:
        worker, agent = made.start_worker(), made.start_agent()
        stored = made.run("remember", "Prefers tabs.", "--wait", "--json")
        assert stored.returncode == 0, f"{stored.stdout}\n{made.logged()}"
        recalled = made.json("recall", "tabs")
        assert recalled["sources"]["recent"] == "ok"
        status = made.run("status", "--json")
        report = made.json("status")["redis"]
        assert report["counts"]["stored"] == 1
        assert report["queues"] == {"memory": 0, "memory.backlog": 0}
        doctor = made.run("doctor", "--json")
        assert doctor.returncode == 0, doctor.stdout
        stats = _stats(made)
        assert len(stats) == 1
        _say_nothing_secret(
            *(worker.logged(), agent.logged(), status.stdout, doctor.stdout, repr(stats)),
            *(stored.stdout, stored.stderr, status.stderr, doctor.stderr),
        )


@dataclass(frozen=True, kw_only=True)
class Wrong:
    form: str
    words: str  # what worker, doctor and dispatcher say
    change: Any  # Served -> URL


WRONG = {
    "password": Wrong(
        form="tcp-db", words="refuses the login", change=lambda to: to.server.url.replace("p%40ss", "guessed")
    ),
    "authority": Wrong(
        form="tls",
        words="name its authority in ssl_ca_certs",
        change=lambda to: to.url.replace("ca.pem", "stranger.pem"),
    ),
    "scheme": Wrong(
        form="tls",
        words="rediss:// for a TLS port",
        change=lambda to: to.url.replace("rediss", "redis").split("?")[0],
    ),
    "master name": Wrong(
        form="sentinel", words="check master_name", change=lambda to: to.group.url_with(master_name="x")
    ),
    "sentinel password": Wrong(
        form="sentinel", words="check sentinel_username", change=lambda to: to.group.url_with(sentinel_password="x")
    ),
    "port": Wrong(form="tcp-db", words="cannot be reached", change=lambda to: "redis://:secret@127.0.0.1:1/0"),
}


@pytest.mark.parametrize(
    "what", [name if name == "authority" else pytest.param(name, marks=pytest.mark.slow) for name in WRONG]
)
def test_a_wrong_one_is_named_with_its_remedy_and_loses_nothing(what: str, tmp_path: Path) -> None:
    wrong = WRONG[what]
    with (
        served(wrong.form, tmp_path / "redis") as redis,
        machine(tmp_path / "m", MEMORY_BROKER_URL=wrong.change(redis)) as made,
    ):
        worker, agent = made.start("worker"), made.start_agent()
        assert made.json("remember", "Prefers tabs.")["outcome"] == "durable"
        until(lambda: made.agent_status()["dispatcher"]["broker_failures"], "a failed publish", said=made.logged)
        until(lambda: wrong.words in worker.logged(), "the worker's words", said=made.logged)
        assert f"the broker is away (publishing failed: Redis {_start_of(wrong, agent)}" in agent.logged()
        doctor = made.run("doctor", "--json")
        assert doctor.returncode == 1
        assert wrong.words in doctor.stdout
        assert wrong.words in made.json("status")["redis"]["unreachable"]
        assert worker.runs()
        _say_nothing_secret(worker.logged(), agent.logged(), doctor.stdout, doctor.stderr)
        worker.stop(), agent.stop()
        made.env["MEMORY_BROKER_URL"] = redis.url
        made.start_worker(), made.start_agent()
        made.wait_until_settled()


def _start_of(wrong: Wrong, agent: Service) -> str:
    (line,) = [one for one in agent.logged().splitlines() if "the broker is away" in one]
    assert wrong.words in line
    return line.partition("publishing failed: Redis ")[2].partition(" ")[0]


@pytest.mark.slow
def test_a_cluster_ends_the_worker_and_a_sentinel_in_its_masters_place_is_named(tmp_path: Path) -> None:
    _needs("redis-sentinel", "redis-server")
    bus = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    with (
        redis_server(tmp_path / "cluster", unixsocket=False, extra=bus) as cluster,
        sentinel_group(tmp_path / "group", sentinels=1, replicas=0) as group,
        machine(tmp_path / "m") as made,
    ):
        with redis_py.Redis.from_url(cluster.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            until(lambda: b"ok" in client.execute_command("CLUSTER", "INFO").partition(b"state:")[2][:2], "a cluster")
        worker = made.start("worker", changes={"MEMORY_BROKER_URL": cluster.url})
        assert worker.exit_code() != 0
        assert "Redis Cluster as broker" in worker.logged()
        changes = {"MEMORY_BROKER_URL": f"redis://127.0.0.1:{group.sentinels[0].port}/0"}
        worker = made.start("worker", changes=changes)
        until(lambda: "a sentinel where its master is wanted" in worker.logged(), "its words", said=made.logged)
        assert "use sentinel://" in made.run("doctor", "--json", changes=changes).stdout
