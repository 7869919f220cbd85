"""`memory-tasks up`: one command starts all that a machine needs, one signal stops all of it, nothing stays behind."""

from __future__ import annotations

import base64
import fcntl
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.machine import Machine, Service, are_gone, free_port, machine, until
from tests.rushdb_server import rushdb_server

PASSWORD = "grebe-and-heron"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, MEMORY_FLOWER_PASSWORD=PASSWORD) as one:
        yield one


def start_up(made: Machine, flower_port: int = 0) -> Service:
    """Return once agent and worker answer."""
    worker_log = made.state / "logs" / "worker.log"
    before = worker_log.read_text().count(" ready.") if worker_log.exists() else 0
    up = made.start("up", "--flower-port", str(flower_port))

    def is_ready() -> bool:
        assert up.runs(), up.logged()
        return bool(made.agent_status()) and worker_log.exists() and worker_log.read_text().count(" ready.") > before

    until(is_ready, "`up`", said=up.logged)
    return up


def child(made: Machine, up: Service, words: str) -> psutil.Process:
    """The running child whose command holds these words."""
    (found,) = (one for one in made.tree_of(up)[1:] if words in " ".join(one.cmdline()))
    return found


def flower(path: str, port: int, password: str = PASSWORD) -> bytes:
    """A page of Flower; nothing where there is none yet."""
    login = base64.b64encode(f"operator:{password}".encode()).decode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Basic {login}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read()
    except urllib.error.HTTPError as problem:
        with problem:
            return b"" if problem.code == 404 else f"status {problem.code}".encode()
    except OSError:
        return b""


def assert_nothing_is_left(made: Machine, processes: list[psutil.Process]) -> None:
    until(lambda: are_gone(processes), f"the end of {processes}", deadline_s=15)
    for lock in ("up.lock", "agent.sock.lock", "redis/lock", "journal/drainer.lock"):
        with (made.state / lock).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises when somebody holds it


def test_everything_starts_works_and_stops_with_one_signal_and_starts_again_on_the_same_directory(made):
    port = free_port()
    up = start_up(made, flower_port=port)
    processes = made.tree_of(up)
    assert len(processes) == 5, processes  # itself, server, worker, agent, Flower

    fact = made.json("remember", "The spare key hangs in the boathouse.", "--wait")
    assert fact["settled"]
    (memory,) = made.json("recall", "spare key")["memories"]
    assert (memory["id"], memory["from"]) == (fact["id"], "store")

    def page_of_a_task() -> bytes:  # of one that came after Flower began to listen
        words = "The boathouse is locked at night."
        return flower(f"/task/{made.json('remember', words, '--wait')['id']}", port)

    page = until(page_of_a_task, "a task's page in Flower", said=made.logged)
    assert b"memory.ingest" in page and b"&lt;1 line&gt;" in page and b"boathouse" not in page
    assert flower("/", port, password="another") == b"status 401"
    assert not any(PASSWORD in " ".join(one.cmdline()) for one in processes)
    checks = {check["name"]: check["level"] for check in made.json("doctor")}
    assert {checks[name] for name in ("journal", "broker", "redis", "store", "agent", "workers")} == {"ok"}

    second = made.run("up", "--flower-port", "0")
    assert second.returncode == 2 and second.stdout == ""
    assert second.stderr.count("\n") == 1 and "another `memory-tasks up` runs there" in second.stderr

    up.send(signal.SIGINT)  # to it alone, as a terminal's would reach it: its children have sessions of their own
    assert up.exit_code() == 0, up.logged()
    assert_nothing_is_left(made, processes)
    assert list(made.state.rglob("*.sock")) == []
    assert "had to kill" not in up.logged()

    up = start_up(made)
    (memory,) = made.json("recall", "spare key")["memories"]
    assert memory["id"] == fact["id"]
    assert up.stop() == 0


def test_killing_up_leaves_nothing_running_and_it_starts_again_at_once(made):
    up = start_up(made, flower_port=free_port())
    processes = made.tree_of(up)
    up.kill()
    again = start_up(made)  # while what the first one left is still ending
    until(lambda: are_gone(processes), f"the end of {processes}", deadline_s=15)
    assert made.json("remember", "The kettle is blue.", "--wait")["settled"]
    assert again.stop() == 0


def test_killing_up_leaves_nothing_running_also_while_the_worker_waits_for_a_store_that_hangs(tmp_path):
    with rushdb_server(tmp_path / "rushdb.sqlite") as server:
        where = {"MEMORY_STORE_URL": f"rushdb+{server.url}", "MEMORY_STORE_TOKEN": server.token}
        with machine(tmp_path, **where) as made:
            up = start_up(made)
            server.fail("hang", on="write")
            made.json("remember", "The kettle is blue.")
            until(lambda: server.faults_taken().get("hang"), "a write that hangs", said=made.logged)
            processes = made.tree_of(up)
            up.kill()
            assert_nothing_is_left(made, processes)
            assert len(made.pending()) == 1


@pytest.mark.parametrize("what", ["memory_tasks.worker_app", "memory_tasks.cli agent", "valkey-server"])
def test_a_part_that_is_killed_is_started_again_and_nothing_is_lost(made, what):
    up = start_up(made)
    part = child(made, up, what)
    os.kill(part.pid, signal.SIGKILL)
    kept = made.json("remember", "The kettle is blue.")
    until(lambda: are_gone([part]), "the end of the part")
    until(lambda: not made.pending(), "the receipt", said=lambda: up.logged() + made.logged())
    assert child(made, up, what).pid != part.pid
    assert [memory["id"] for memory in made.json("recall", "kettle")["memories"]] == [kept["id"]]
    assert "ended" in up.logged()
    assert up.stop() == 0
