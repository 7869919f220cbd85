"""Everything one machine needs, as one foreground process: embedded server, worker, local agent, Flower.

Children that end on their own are started again with a growing pause; the stop takes them down in the order in which
work flows (agent, worker, Flower, server), each within a bound, and leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from memory_tasks import embedded, processes
from producer import errors

__all__ = [
    "Part",
    "Supervisor",
    "child_environment",
    "flower_command",
    "flower_environment",
    "only_one",
    "parts_of",
    "worker_command",
    "worker_part",
]

_STEADY_S = 30.0  # a child that ran this long starts with a fresh pause
_PAUSE_MAX_S = 15.0
# As `app.start` does it, which drops the exit code: a worker that refused its settings would end in 0.
_CELERY = (
    "import sys; from celery.bin.celery import celery; from memory_tasks.worker_app import app; "
    "celery.params[0].default = app; celery(sys.argv[1:])"
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process to keep running. Stopped in ascending `stop_order`; `grace_s` before it is killed."""

    name: str
    command: Sequence[str]
    stop_order: int
    grace_s: float = 10.0
    env: Mapping[str, str] = field(default_factory=dict)  # beside what all parts get
    orphaned: signal.Signals = signal.SIGTERM  # what it gets when we are killed


def worker_command(*, concurrency: int, name: str = "worker") -> list[str]:
    return [
        *_celery("worker", "--pool", "threads", "--concurrency", str(concurrency), "--hostname", f"{name}@%h"),
        *("--loglevel", "INFO", "-E", "--without-mingle", "--without-gossip"),
    ]


def flower_command(*, port: int, state_dir: Path, address: str = "127.0.0.1") -> list[str]:
    """Flower. Its `/metrics` and `/healthcheck` are open whatever the password: anything but loopback needs a proxy."""
    return [
        *_celery("flower", f"--address={address}", f"--port={port}", f"--conf={os.devnull}"),
        *("--persistent=True", f"--db={state_dir / 'flower.db'}", "--state_save_interval=10000", "--max_tasks=10000"),
        "--tasks_columns=name,uuid,state,args,retries,exception,received,started,runtime,worker",
    ]


def flower_environment(*, user: str, password: str) -> dict[str, str]:
    """What Flower is told beside its command: a password does not stand in the list of processes."""
    return {"FLOWER_BASIC_AUTH": f"{user}:{password}"} if password else {}


def _celery(*words: str) -> list[str]:
    """A Celery command on our app. Not `python -m celery -A …`: that imports from the current directory first, where
    anybody's `celery.py` or `producer/` may lie."""
    return [sys.executable, "-P", "-c", _CELERY, *words]


def worker_part(command: Sequence[str], *, grace_s: float) -> Part:
    """A worker bears SIGKILL; asked to end, it first waits for what its tasks wait for, however long."""
    return Part(name="worker", command=command, stop_order=1, grace_s=grace_s, orphaned=signal.SIGKILL)


def parts_of(*, worker: Sequence[str], flower: Sequence[str] | None, flower_env: Mapping[str, str]) -> list[Part]:
    parts = [
        worker_part(worker, grace_s=30.0),
        Part(name="agent", command=[sys.executable, "-P", "-m", "memory_tasks.cli", "agent"], stop_order=0),
    ]
    if flower is not None:
        parts.append(Part(name="flower", command=flower, stop_order=2, env=flower_env))
    return parts


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold this directory's lock of `up`; it ends with this process, however that ends. Raises
    `errors.SettingsRefused` when another one holds it."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(state_dir / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.SettingsRefused(
                "MEMORY_STATE_DIR", "another `memory-tasks up` runs there: stop it first, or name another directory"
            ) from None
        yield
    finally:
        os.close(lock)


class Supervisor:
    """Starts the parts, keeps them running, stops them. Use from the main thread."""

    def __init__(
        self,
        *,
        parts: Sequence[Part],
        state_dir: Path,
        env: Mapping[str, str],
        own_redis: bool,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.parts = list(parts)
        self.state_dir = state_dir
        self.env = dict(env)
        self.say = say
        self.redis = embedded.EmbeddedRedis(state_dir) if own_redis else None
        self.children: dict[str, processes.Child] = {}
        self._pauses: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._stop = threading.Event()

    def start(self) -> None:
        if self.redis is not None:
            self.redis.start(self.env)
            self.say(f"redis    embedded, {self.redis.socket}")
        for part in self.parts:
            self._start(part)

    def _start(self, part: Part) -> None:
        log = self.state_dir / "logs" / f"{part.name}.log"
        self.children[part.name] = processes.start(
            part.name, part.command, env={**self.env, **part.env}, log=log, orphaned=part.orphaned
        )
        self.say(f"{part.name:<8} pid {self.children[part.name].pid}, log {log}")

    def kill(self, name: str) -> int:
        """SIGKILL one part (the demo's accident) and return its pid; `watch` starts it again."""
        child = self.children[name]
        child.process.kill()
        child.process.wait()
        return child.pid

    def watch(self) -> None:
        """Start again what has ended, and keep logs within their bound. Call often; blocks only while the embedded
        server starts. Raises `errors.SettingsRefused` when it does not."""
        now = time.monotonic()
        if self.redis is not None and self.redis.child is not None:
            processes.bound_log(self.redis.log)
            if not self.redis.child.running():
                self.say("redis    ended; starting it again")
                self.redis.start(self.env)
        for part in self.parts:
            processes.bound_log(self.state_dir / "logs" / f"{part.name}.log")
            child = self.children[part.name]
            if child.running():
                continue
            if part.name not in self._due:
                steady = now - child.started_at > _STEADY_S
                pause = 0.0 if steady else self._pauses.get(part.name, 0.0)
                self._pauses[part.name] = min(max(pause * 2, 1.0), _PAUSE_MAX_S)
                self._due[part.name] = now + pause
                self.say(f"{part.name:<8} ended with {child.process.returncode}; starting it again")
            if now >= self._due[part.name]:
                del self._due[part.name]
                self._start(part)

    def stop(self) -> list[str]:
        """Stop everything. Returns the names of those that had to be killed."""
        killed = []
        for part in sorted(self.parts, key=lambda p: p.stop_order):
            child = self.children.get(part.name)
            if child is not None and not child.stop(part.grace_s):
                killed.append(part.name)
        if self.redis is not None and self.redis.child is not None and not self.redis.child.stop(10.0):
            killed.append("redis")
        return killed

    def run(self) -> int:
        """Start, watch until SIGINT, SIGTERM or the terminal's end, stop. Returns the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda *_: self._stop.set())
        try:
            self.start()
            while not self._stop.wait(0.5):
                self.watch()
        finally:
            killed = self.stop()
        if killed:
            self.say(f"had to kill: {', '.join(killed)}")
        return 1 if killed else 0


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What children inherit: the environment, with byte-compiled starts allowed (Celery: 0.3 s in place of 1.3 s)."""
    env = dict(environ)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("PATH", os.defpath)
    return env
