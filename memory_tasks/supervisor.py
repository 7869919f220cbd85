"""Everything one machine needs, as one foreground process: embedded server, worker, local agent, Flower.

Children that end on their own are started again with a growing pause; the stop takes them down in the order in which
work flows (agent, worker, Flower, server), each within a bound, and leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_tasks import embedded, processes

__all__ = ["Part", "Supervisor", "parts_of"]

logger = logging.getLogger(__name__)

_STEADY_S = 30.0  # a child that ran this long starts with a fresh pause
_PAUSE_MAX_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process to keep running. Stopped in ascending `stop_order`; `grace_s` before it is killed."""

    name: str
    command: Sequence[str]
    stop_order: int
    grace_s: float = 10.0


def worker_command(*, concurrency: int, name: str = "worker") -> list[str]:
    return [
        *(sys.executable, "-m", "celery", "-A", "memory_tasks.worker_app", "worker"),
        *(
            "--pool",
            "threads",
            "--concurrency",
            str(concurrency),
            "--hostname",
            f"{name}@%h",
            "--loglevel",
            "INFO",
            "-E",
        ),
        *("--without-mingle", "--without-gossip"),
    ]


def flower_command(*, port: int, state_dir: Path, basic_auth: str = "", address: str = "127.0.0.1") -> list[str]:
    """Flower. Its `/metrics` and `/healthcheck` are open whatever the password: anything but loopback needs a proxy."""
    command = [
        *(
            sys.executable,
            "-m",
            "celery",
            "-A",
            "memory_tasks.worker_app",
            "flower",
            f"--address={address}",
            f"--port={port}",
        ),
        *("--persistent=True", f"--db={state_dir / 'flower.db'}", "--state_save_interval=10000", "--max_tasks=10000"),
        "--tasks_columns=name,uuid,state,args,retries,exception,received,started,runtime,worker",
    ]
    return [*command, f"--basic-auth={basic_auth}"] if basic_auth else command


def parts_of(*, concurrency: int, flower: list[str] | None) -> list[Part]:
    parts = [
        Part(name="worker", command=worker_command(concurrency=concurrency), stop_order=1, grace_s=30.0),
        Part(name="agent", command=[sys.executable, "-m", "memory_tasks.cli", "agent"], stop_order=0),
    ]
    if flower is not None:
        parts.append(Part(name="flower", command=flower, stop_order=2))
    return parts


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
        self.children[part.name] = processes.start(part.name, part.command, env=self.env, log=log)
        self.say(f"{part.name:<8} pid {self.children[part.name].pid}, log {log}")

    def kill(self, name: str) -> int:
        """SIGKILL one part (the demo's accident) and return its pid; `watch` starts it again."""
        child = self.children[name]
        child.process.kill()
        child.process.wait()
        return child.pid

    def watch(self) -> None:
        """Start again what has ended. Call often; never blocks."""
        now = time.monotonic()
        if self.redis is not None and self.redis.child is not None and not self.redis.child.running():
            self.say("redis    ended; starting it again")
            self.redis.start(self.env)
        for part in self.parts:
            child = self.children[part.name]
            if child.running():
                continue
            if part.name not in self._due:
                steady = now - child.started_at > _STEADY_S
                pause = 0.0 if steady else self._pauses.get(part.name, 0.0)
                self._pauses[part.name] = min(max(pause * 2, 1.0), _PAUSE_MAX_S)
                self._due[part.name] = now + pause
                logger.warning(
                    "action=child_ended name=%s code=%s; starting it again in %.0f s",
                    part.name,
                    child.process.returncode,
                    pause,
                )
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
        """Start, watch until SIGINT or SIGTERM, stop. Returns the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
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
