"""The test server: our verified fake of RushDB.

    with rushdb_server(tmp_path / "rushdb.sqlite") as server:
        open_store(server.url, token=server.token)
        server.fail("lie", on="write", label="MEMORY_MARK", count=1)
        ...
        assert server.counts()["write"] == 2

It speaks RushDB's wire forms over the SQLite adapter: profile `2.11` is the REST form as recorded from a real 2.11.2,
`direct` the protocol of a RushDB 3 engine as the vendor's SDK speaks it. `tests/contract/test_rushdb_recordings.py`
replays the recordings against it. It knows nothing of our RushDB adapter and does not use the vendor's SDK.

`faults` lists the switches. `python -m tests.rushdb_server --data FILE --token T` runs it as a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http import client
from pathlib import Path
from typing import Any, Protocol

from producer.store import sqlite
from producer.store.port import Record

from .faults import Fault
from .project import public_records
from .server import CONTROL_PATH, Logged, Server

__all__ = ["Fault", "Logged", "RunningServer", "rushdb_server"]

_ROOT = Path(__file__).resolve().parents[2]
_ANSWER_WITHIN_S = 10.0


class RunningServer(Protocol):
    """A server as tests hold it, in a thread or in a process of its own."""

    url: str
    port: int
    token: str
    data: Path

    def fail(self, kind: str, **settings: Any) -> None:
        """Set a switch: `fail("busy", on="write", count=3)`; the settings are those of `Fault`."""
        ...

    def clear_faults(self) -> None: ...

    def release(self) -> None:
        """End the requests that hang."""
        ...

    def lose_indexes(self) -> None: ...

    def faults_taken(self) -> dict[str, int]:
        """How many requests each kind of fault has had."""
        ...

    def counts(self) -> dict[str, int]:
        """Requests by class (`faults` names them), and `connections`."""
        ...

    def requests(self) -> list[Logged]:
        """The latest requests in order, those that went wrong included."""
        ...

    def forget_requests(self) -> None: ...

    def crashes(self) -> int:
        """Requests that the server itself failed on: 0, or a test or this server has a bug."""
        ...

    def records(self, label: str) -> list[Record]:
        """What is stored, by record id, read from the file: also while the server is stopped."""
        ...

    def stop(self) -> None:
        """Refuse connections and cut those that are open; `start` serves the same data at the same address."""
        ...

    def kill(self) -> None:
        """`stop` without a farewell: SIGKILL for a process."""
        ...

    def start(self) -> None: ...

    @property
    def pid(self) -> int:
        """Of the server's process; a thread has none of its own."""
        ...

    def freeze(self) -> None:
        """SIGSTOP: connections are still accepted, nothing is answered until `thaw`. Processes only."""
        ...

    def thaw(self) -> None: ...


class _Running:
    data: Path

    def records(self, label: str) -> list[Record]:
        store = sqlite.SqliteStore(self.data)
        try:
            return public_records(store, label)
        finally:
            store.close()


class _InThread(_Running):
    def __init__(self, data: Path, *, token: str, port: int, **settings: Any) -> None:
        self.token = token
        self.data = data
        self._settings = settings
        self._server: Server | None = None
        self.port = port
        self.start()

    @property
    def _running(self) -> Server:
        assert self._server is not None, "the server is stopped"
        return self._server

    def start(self) -> None:
        self._server = Server(self.data, token=self.token, port=self.port, **self._settings)
        self.port, self.url = self._server.port, self._server.url

    def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.close()

    kill = stop

    @property
    def pid(self) -> int:
        raise AttributeError("a server in a thread has no process of its own: ask for process=True")

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    thaw = freeze

    def fail(self, kind: str, **settings: Any) -> None:
        self._running.faults.add(Fault(kind=kind, **settings))

    def clear_faults(self) -> None:
        self._running.faults.clear()

    def release(self) -> None:
        self._running.faults.release()

    def lose_indexes(self) -> None:
        self._running.lose_indexes()

    def faults_taken(self) -> dict[str, int]:
        return self._running.faults.taken

    def counts(self) -> dict[str, int]:
        return self._running.counts()

    def requests(self) -> list[Logged]:
        return self._running.requests()

    def forget_requests(self) -> None:
        self._running.forget_requests()

    def crashes(self) -> int:
        return self._running.crashes


class _InProcess(_Running):
    def __init__(self, data: Path, *, token: str, port: int, profile: str, embeds: bool, embed_delay_s: float) -> None:
        self.token = token
        self.data = data
        self.port = port
        self._options = ["--profile", profile, "--embed-delay-s", str(embed_delay_s), *(["--embeds"] if embeds else [])]
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    def start(self) -> None:
        options = ["--data", str(self.data), "--token", self.token, "--port", str(self.port), *self._options]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rushdb_server", *options, "--until-stdin-closes"],
            cwd=_ROOT,
            env={"PATH": os.environ.get("PATH", "")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the server did not start"
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a frozen one would not hear of it
        try:
            process.wait(_ANSWER_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def fail(self, kind: str, **settings: Any) -> None:
        self._ask("fail", fault=asdict(Fault(kind=kind, **settings)))

    def clear_faults(self) -> None:
        self._ask("clear")

    def release(self) -> None:
        self._ask("release")

    def lose_indexes(self) -> None:
        self._ask("lose_indexes")

    def faults_taken(self) -> dict[str, int]:
        return self._ask("report")["faults"]

    def counts(self) -> dict[str, int]:
        return self._ask("report")["counts"]

    def requests(self) -> list[Logged]:
        return [Logged(*one) for one in self._ask("requests")]

    def forget_requests(self) -> None:
        self._ask("forget_requests")

    def crashes(self) -> int:
        return self._ask("report")["crashes"]

    def _ask(self, what: str, **more: Any) -> Any:
        connection = client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_WITHIN_S)
        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            connection.request("POST", CONTROL_PATH, json.dumps({"do": what, **more}), headers)
            response = connection.getresponse()
            document = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(document["message"])
        return document


@contextlib.contextmanager
def rushdb_server(
    data: Path | None = None,
    *,
    token: str = "test-token",
    profile: str = "2.11",
    port: int = 0,
    embeds: bool = False,
    embed_delay_s: float = 0.0,
    process: bool = False,
    clock: Callable[[], float] = time.time,
) -> Iterator[RunningServer]:
    """A running server on `data` (a file that need not be there; a temporary one when None), stopped at the end.

    `embeds`: managed indexes work, and embed `embed_delay_s` after they were woken. `process`: a process of its own, so
    that it can be killed or frozen (`pid`); `clock` is for threads only.
    """
    with contextlib.ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "rushdb.sqlite"
        settings: dict[str, Any] = {"profile": profile, "embeds": embeds, "embed_delay_s": embed_delay_s}
        if process:
            server: _InThread | _InProcess = _InProcess(data, token=token, port=port, **settings)
        else:
            server = _InThread(data, token=token, port=port, clock=clock, **settings)
        stack.callback(server.stop)
        yield server
