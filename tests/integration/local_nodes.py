"""pytest-celery nodes without Docker: its "containers" are processes of this machine, ours to kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_celery import CeleryTestBroker, CeleryTestWorker

from tests.redis_server import RedisServer

ROOT = Path(__file__).parents[2]
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 20.0
READY = "ready."  # the last words of Celery's banner

__all__ = ["LocalBroker", "LocalWorker", "RedisContainer", "WorkerContainer"]


class RedisContainer:
    """A real Redis in the form of a container."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.id = self.name = "redis"

    @property
    def status(self) -> str:
        return "running" if self.server._process is not None else "exited"

    @property
    def celeryconfig(self) -> dict[str, str]:
        return {"url": self.server.broker_url, "host_url": self.server.broker_url}

    def ready(self) -> bool:
        return self.status == "running"

    def logs(self) -> str:
        return (self.server.directory / "server.log").read_text()

    def kill(self, signal: str = "SIGKILL") -> None:
        self.server.kill() if signal == "SIGKILL" else self.server.stop()

    def reload(self) -> None:
        """A process has nothing to reload."""

    def restart(self, timeout: float = STOP_DEADLINE_S) -> None:
        self.server.stop()
        self.server.start()

    def teardown(self) -> None:
        self.server.remove()


class WorkerContainer:
    """A real `celery worker` process in the form of a container."""

    def __init__(self, name: str, *, app: str, directory: Path, environment: Mapping[str, str]) -> None:
        self.name = self.id = name
        self._app = app
        self.environment = dict(environment)
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def status(self) -> str:
        return "running" if self._process is not None and self._process.poll() is None else "exited"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def celeryconfig(self) -> dict[str, str]:
        return {}

    def start(self, *, wait: bool = True) -> None:
        command = [sys.executable, "-m", "celery", "-A", self._app, "worker", "--hostname", f"{self.name}@local"]
        command += ["--loglevel", "INFO", "-E", "--without-mingle", "--without-gossip"]
        seen = self.logs().count(READY)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT, env=self.environment
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while wait and self.logs().count(READY) == seen:
            assert self.status == "running", f"the worker ended: {self.logs()[-3000:]}"
            assert time.monotonic() < deadline, f"the worker did not start: {self.logs()[-3000:]}"
            time.sleep(0.02)

    def wait_exit(self) -> int:
        assert self._process is not None
        return self._process.wait(STOP_DEADLINE_S)

    def ready(self) -> bool:
        return self.status == "running"

    def logs(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def kill(self, signal: str = "SIGKILL") -> None:
        self._end(signal)

    def reload(self) -> None:
        """A process has nothing to reload."""

    def restart(self, timeout: float = STOP_DEADLINE_S) -> None:
        self._end("SIGTERM")
        self.start()

    def teardown(self) -> None:
        self._end("SIGTERM")

    def _end(self, how: str) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        os.kill(self._process.pid, signal.Signals[how])
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the worker did not end: {self.logs()[-3000:]}") from None


class LocalBroker(CeleryTestBroker):
    """A broker node on a `RedisContainer`."""


class LocalWorker(CeleryTestWorker):
    """A worker node on a `WorkerContainer`."""
