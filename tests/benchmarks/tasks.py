"""Events per second through a real worker into the SQLite store, against Celery's no-op tasks per second; and what an
event costs the worker in CPU time, which says more on a machine that is busy.

Both workers are real processes, `-P threads` with the same concurrency, on the same embedded server. Counted from the
first publication until the last one is done (for us: its receipt is in the journal).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis

from memory_tasks import embedded, processes, supervisor
from producer import config, scope
from producer.memory import AgentMemory
from tests.benchmarks.table import Row, median

CONCURRENCY = 16
DEADLINE_S = 120.0


def measure(*, quick: bool) -> list[Row]:
    rounds, count = (1, 60) if quick else (3, 1500)
    ours, noop, ours_ms, noop_ms = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as folder:  # a short path: it holds a unix socket
        state = Path(folder)
        env = supervisor.child_environment(
            {**os.environ, "MEMORY_STATE_DIR": folder, "MEMORY_IN_FLIGHT_EVENTS": str(count)}
        )
        env["NOOP_BROKER_URL"] = f"redis+socket://{embedded.socket_of(state)}"
        server = embedded.EmbeddedRedis(state)
        children = [server.start(env)]
        try:
            command = supervisor.worker_command(concurrency=CONCURRENCY)
            worker = processes.start("worker", command, env=env, log=state / "worker.log")
            children.insert(0, worker)
            other = processes.start("noop", _noop_command(), env=env, log=state / "noop.log")
            children.insert(0, other)
            settings = config.load(env)
            _events(settings, 20, "warm")
            _noops(env, server.socket, 20)
            for number in range(rounds):
                used_s = _cpu_s(worker)
                ours.append(_events(settings, count, str(number)))
                ours_ms.append((_cpu_s(worker) - used_s) * 1000 / count)
                used_s = _cpu_s(other)
                noop.append(_noops(env, server.socket, count))
                noop_ms.append((_cpu_s(other) - used_s) * 1000 / count)
        finally:
            processes.stop_all(children)
    return [
        Row(
            name="events stored, captured one by one",
            figure=median(ours),
            baseline=median(noop),
            baseline_name="Celery no-op",
            unit="1/s",
        ),
        Row(
            name="CPU time of the worker, an event",
            figure=median(ours_ms),
            baseline=median(noop_ms),
            baseline_name="Celery no-op",
            unit="ms",
        ),
    ]


def _cpu_s(child: processes.Child) -> float:
    """What a process has used so far, its threads included (Linux)."""
    fields = Path(f"/proc/{child.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _noop_command() -> list[str]:
    return [
        *(sys.executable, "-m", "celery", "-A", "tests.benchmarks.noop_app", "worker", "--pool", "threads"),
        *(
            "--concurrency",
            str(CONCURRENCY),
            "--hostname",
            "noop@%h",
            "--loglevel",
            "WARNING",
            "-E",
            "--without-mingle",
            "--without-gossip",
        ),
    ]


def _events(settings: config.ProducerConfig, count: int, session: str) -> float:
    """Events per second, capture to receipt."""
    context = scope.HostContext(
        runtime="custom",
        platform="local",
        agent_id="bench",
        profile_id="default",
        session_id=session,
        user="bench",
        sandboxed=False,
    )
    who = scope.scope_of(context, salt=settings.scope_salt, salt_required=True)
    with AgentMemory(settings, scope=who) as memory:
        began = time.perf_counter()
        for number in range(count):
            text = f"turn {number} of {session}: " + "what was said " * 50
            if not memory.capture_turn(session_id=session, user_text=text, assistant_text=text, turn_index=number):
                raise SystemExit("a capture was refused: the figures would mean nothing")
        if not memory.flush(deadline_s=DEADLINE_S):
            raise SystemExit("not everything got its receipt: the figures would mean nothing")
        return count / (time.perf_counter() - began)


def _noops(env: dict[str, str], socket: Path, count: int) -> float:
    """No-op tasks per second, with messages of an event's size."""
    os.environ.setdefault("NOOP_BROKER_URL", env["NOOP_BROKER_URL"])
    from tests.benchmarks.noop_app import noop  # reads its broker when it is imported

    client = redis.Redis(unix_socket_path=str(socket))
    try:
        began = time.perf_counter()
        for _ in range(count):
            noop.delay("x" * 1500)
        _until(lambda: client.llen("noop") == 0 and client.hlen("unacked") == 0)
        return count / (time.perf_counter() - began)
    finally:
        client.close()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit("the no-op tasks did not finish: the figures would mean nothing")
        time.sleep(0.005)
