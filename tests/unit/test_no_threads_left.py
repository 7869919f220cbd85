"""A machine that gives no more threads (a full cgroup, say): nothing stays off for good once it has some again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import agent, children, clock
from producer import config, errors, outcomes, scope
from producer.memory import AgentMemory

OWNER = scope.Scope(
    agent_id="a", profile_id="p", privacy_scope="private", participant_scope_hash="ab" * 32, sandbox_eligible=False
)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """No thread can be started until this is called."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    yield lambda: monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def settings(tmp_path: Path) -> config.ProducerConfig:
    return config.load(
        {
            "MEMORY_STATE_DIR": str(tmp_path / "state"),
            "MEMORY_BROKER_URL": "redis://127.0.0.1:9/0",  # nobody answers there
            "MEMORY_AGENT_SOCKET": str(tmp_path / "agent.sock"),
        }
    )


def test_a_host_captures_without_a_thread_and_dispatches_when_there_is_one(no_threads, settings):
    with closing(AgentMemory(settings, scope=OWNER)) as memory:
        assert isinstance(_capture(memory, 1), outcomes.Durable)
        no_threads()
        assert isinstance(_capture(memory, 2), outcomes.Durable)
        deadline = time.monotonic() + 10
        while memory.status()["dispatcher"]["role"] != "drainer":
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_children_are_started_when_there_is_a_thread_to_start_them(no_threads):
    pool = children.Children("tests.no_such_module", {}, limit=1)
    try:
        with pytest.raises(errors.ChildUnavailable):
            pool.ask({}, until=clock.now_s() + 10)
        no_threads()
        with pytest.raises(errors.ChildUnavailable):  # a child was started, three times, and told so at once
            pool.ask({}, until=clock.now_s() + 10)
    finally:
        pool.close()
    assert pool._keeper is not None


def test_an_agent_turns_a_caller_away_and_goes_on(no_threads, settings):
    stop = threading.Event()
    mine, theirs = socket.socketpair()

    class Listener:
        """One caller, then the end."""

        def __init__(self) -> None:
            self.callers = [theirs]

        def settimeout(self, seconds: float) -> None: ...

        def accept(self) -> Any:
            if self.callers:
                return self.callers.pop(), None
            stop.set()
            raise TimeoutError

    with closing(AgentMemory(settings, scope=OWNER, dispatches=False)) as memory, closing(mine):
        agent.Agent(settings, memory).serve(Listener(), stop)  # type: ignore[arg-type]
        assert mine.recv(1) == b""


def _capture(memory: AgentMemory, number: int) -> outcomes.Outcome:
    return memory.capture_turn(
        session_id="s", user_text=f"Where is number {number}?", assistant_text="Here.", source_event_id=str(number)
    )
