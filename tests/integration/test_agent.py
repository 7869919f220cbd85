"""The local agent: a real socket, a real journal, Redis, store and rules."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from memory_tasks import agent
from producer import errors
from producer.config import ProducerConfig
from producer.memory import AgentMemory
from producer.scope import Scope
from tests.redis_server import RedisServer, redis_server
from tests.tiny_worker import TinyWorker

SCOPE = Scope(
    agent_id="claude-code",
    profile_id="default",
    privacy_scope="private",
    participant_scope_hash="a" * 64,
    sandbox_eligible=False,
)


def until(claim: Callable[[], Any], deadline_s: float = 10) -> Any:
    end = time.monotonic() + deadline_s
    while not (value := claim()) and time.monotonic() < end:
        time.sleep(0.005)
    return value


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), persistent=False) as running:
        yield running


@pytest.fixture
def config(tmp_path: Path, server: RedisServer) -> Iterator[ProducerConfig]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    # The path of a unix socket is short, and pytest's directories are long.
    with tempfile.TemporaryDirectory(prefix="agent-") as short:
        yield ProducerConfig(
            state_dir=tmp_path,
            journal_dir=tmp_path / "journal",
            store_url=f"sqlite:///{tmp_path}/store.sqlite3",
            broker_url=server.broker_url,
            redis_url=server.url,
            agent_socket=Path(short) / "agent.sock",
            producer_key="p" * 32,
            cache_key="c" * 32,
            tenant=tmp_path.name,
            recall_deadline_ms=5000,
        )


@contextmanager
def running(config: ProducerConfig) -> Iterator[agent.Client]:
    stop, problems = threading.Event(), []

    def work() -> None:
        try:
            agent.run(config, stop=stop)
        except errors.IngestError as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert until(lambda: config.agent_socket.exists() or problems)
        if problems:
            raise problems[0]
        yield agent.client(config.agent_socket, timeout_s=5)
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def client(config: ProducerConfig) -> Iterator[agent.Client]:
    with running(config) as asked:
        yield asked


def recall(client: agent.Client, query: str, session: str | None = "s-2", **more: Any) -> dict[str, Any]:
    named = {"session": {"runtime": "custom", "externalSessionId": session}} if session else {}
    return client.ask({"op": "recall", "scope": SCOPE.fields(), "query": query, "deadlineMs": 5000, **named, **more})


def capture(config: ProducerConfig, text: str, session: str = "s-1") -> str:
    """As a one-shot process does: append, and go."""
    with AgentMemory(config, scope=SCOPE, dispatches=False) as memory:
        outcome = memory.capture_turn(session_id=session, user_text=text, assistant_text="noted")
    assert outcome
    return outcome.id  # type: ignore[union-attr]


def test_what_one_shot_processes_append_is_recalled_at_once_and_delivered_by_the_agent(client, config):
    capture(config, "I prefer the Helix editor")
    answer = recall(client, "which editor?")
    assert "Helix" in answer["context"] and answer["count"] == 1 and answer["ms"] < 5000
    assert recall(client, "which editor?", session="s-1")["context"] == ""
    with TinyWorker(config) as worker:
        assert client.flush(10)
        assert worker.settled == 1
    assert "Helix" in recall(client, "which editor?", session="s-3")["context"]


def test_a_conversation_is_told_each_memory_once(client, config):
    capture(config, "the editor is Helix")
    assert recall(client, "editor")["count"] == 1
    assert recall(client, "editor") | {"ms": 0} == {"context": "", "count": 0, "partial": False, "ms": 0}
    capture(config, "the editor theme is dark")
    assert "theme" in (again := recall(client, "editor"))["context"] and again["count"] == 1
    assert recall(client, "editor", session="s-9")["count"] == 2
    assert recall(client, "editor", session=None)["count"] == 2
    assert recall(client, "editor", session=None)["count"] == 2


def test_a_memory_that_found_no_room_may_still_be_told_later(client, config):
    for number in range(4):
        capture(config, f"editor note {number} " + "x" * 1500)
    first = recall(client, "editor", maxChars=3000)
    assert first["count"] == 1 and len(first["context"]) <= 3000
    assert recall(client, "editor", maxChars=8000)["count"] == 3


def test_only_what_was_told_in_time_counts_as_told():
    told = agent._Told()
    told.add("c", ["m1", "m2"])
    told.remove("c", ["m1"])  # it could not be sent
    told.remove("nobody", ["m1"])
    assert told.ids("c") == {"m2"}
    told = agent._Told()
    for number in range(agent.MAX_SESSIONS + 10):
        told.add(number, [f"m{n}" for n in range(agent.MAX_TOLD + 5)])
    assert len(told) == agent.MAX_SESSIONS and told.ids(0) == frozenset()
    assert len(told.ids(agent.MAX_SESSIONS)) == agent.MAX_TOLD


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"op": "recall"}, "invalid_request"),
        ({"op": "unknown"}, "invalid_request"),
        ({}, "invalid_request"),
        ({"op": "recall", "query": "x", "scope": {**SCOPE.fields(), "agentId": ""}}, "agent_missing"),
        ({"op": "recall", "query": "x", "scope": {**SCOPE.fields(), "sandboxEligible": 0}}, "scope_invalid"),
        ({"op": "recall", "query": "x", "scope": {}}, "scope_invalid"),
        ({"op": "recall", "query": "x", "scope": SCOPE.fields(), "session": {"runtime": 5}}, "invalid_request"),
        ({"op": "recall", "query": "x", "scope": SCOPE.fields(), "deadlineMs": "soon"}, "invalid_request"),
        ({"op": "recall", "query": "x", "scope": SCOPE.fields(), "deadlineMs": -1}, "invalid_request"),
        ({"op": "flush", "deadlineMs": True}, "invalid_request"),
    ],
)
def test_a_request_of_another_form_gets_a_code_and_the_agent_goes_on(client, request_, error):
    assert client.ask(request_) == {"error": error}
    assert client.status()["pid"] == os.getpid()


def test_garbage_giants_and_silence_cost_the_agent_nothing(client, config):
    for data in (b"\xff\xfe\n", b"[" * 50_000 + b"\n", b"x" * 200_000, b""):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(config.agent_socket))
            connection.sendall(data)
            if data.endswith(b"\n"):
                assert json.loads(connection.recv(1000)) == {"error": "invalid_request"}
    assert client.status()["pid"]


def test_connections_beyond_the_bound_are_closed_at_once(client, config):
    held = []
    try:
        for _ in range(agent.MAX_CONNECTIONS):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(5)
            connection.connect(str(config.agent_socket))
            connection.sendall(b'{"op":"status"}\n')
            assert connection.recv(1 << 16)
            held.append(connection)
        with pytest.raises(ConnectionError):
            client.status()
    finally:
        for connection in held:
            connection.close()
    status = until(lambda: _status_of(client))
    assert status["shed"] >= 1


def _status_of(client: agent.Client) -> dict[str, Any] | None:
    try:
        return client.status()
    except ConnectionError:
        return None


def test_one_connection_may_ask_many_times(client, config):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(config.agent_socket))
        reader = connection.makefile("rb")
        connection.sendall(b'{"op":"status"}\n{"op":"unknown"}\n')
        assert "pid" in json.loads(reader.readline())
        assert json.loads(reader.readline()) == {"error": "invalid_request"}
        reader.close()


def test_the_socket_is_private_and_gone_at_the_end(config):
    with running(config):
        assert config.agent_socket.stat().st_mode & 0o777 == 0o600
    assert not config.agent_socket.exists()


def test_one_agent_runs_per_socket_and_a_stale_socket_is_replaced(config):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(config.agent_socket))
    stale.close()  # nobody listens, the file stays
    stop = threading.Event()
    thread = threading.Thread(target=lambda: agent.run(config, stop=stop))
    thread.start()
    asked = agent.client(config.agent_socket, timeout_s=2)
    assert until(lambda: _status_of(asked))
    with pytest.raises(errors.SettingsRefused, match="another agent"):
        agent.run(config, stop=threading.Event())
    assert asked.status()["pid"]
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_socket_that_cannot_be_safe_is_refused(config):
    import dataclasses

    config.agent_socket.parent.chmod(0o777)
    with pytest.raises(errors.SettingsRefused, match="chmod 700"):
        agent.run(config, stop=threading.Event())
    config.agent_socket.parent.chmod(0o700)
    long = dataclasses.replace(config, agent_socket=config.agent_socket.parent / ("x" * 110))
    with pytest.raises(errors.SettingsRefused, match="longer than"):
        agent.run(long, stop=threading.Event())


def test_without_an_agent_a_client_says_so(config):
    with pytest.raises(ConnectionError, match="memory-tasks agent"):
        agent.client(config.agent_socket, timeout_s=0.5).status()


def test_sigterm_ends_the_process_soon_and_sigkill_leaves_nothing_that_stops_the_next(config):
    script = f"""
import signal, threading
from pathlib import Path
from memory_tasks import agent
from producer.config import ProducerConfig
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
agent.run(ProducerConfig(state_dir=Path({str(config.state_dir)!r}), journal_dir=Path({str(config.journal_dir)!r}),
    store_url={config.store_url!r}, broker_url={config.broker_url!r}, redis_url={config.redis_url!r},
    agent_socket=Path({str(config.agent_socket)!r}), producer_key="p" * 32, cache_key="c" * 32,
    tenant={config.tenant!r}), stop=stop)
"""
    asked = agent.client(config.agent_socket, timeout_s=2)
    for how in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen([sys.executable, "-c", script])
        try:
            status = until(lambda: _status_of(asked), 30)
            assert status and status["pid"] == process.pid
            process.send_signal(how)
            assert process.wait(10) == (0 if how is signal.SIGTERM else -how)
        finally:
            process.kill()
            process.wait()
    assert not config.agent_socket.exists()
