"""A master, its replicas and the sentinels that watch them, for a test: real processes on loopback, ours by pid.

    with sentinel_group(tmp_path) as group:
        group.url                        # sentinel://…?master_name=…, for us
        group.master.kill()              # RedisServer: kill, freeze, thaw, start again at the same address
        group.wait_for_master(not_=old)  # the sentinels have agreed on another one

A master that is not heard for half a second is down. An old one that comes back is made a replica by the sentinels.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis as redis_py

from tests.certificates import Certificates
from tests.redis_server import RedisServer

__all__ = ["NAME", "SentinelGroup", "sentinel_group"]

NAME = "the-master"
DOWN_AFTER_MS = 500
_DEADLINE_S = 20.0


class _Sentinel:
    """One sentinel process. Its configuration is its memory, and stays over restarts."""

    def __init__(self, directory: Path, *, port: int, config: Sequence[str]) -> None:
        directory.mkdir(parents=True)
        self.port = port
        self._directory = directory
        self._config = directory / "sentinel.conf"
        self._config.write_text("\n".join(config) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None, "already started"
        with (self._directory / "sentinel.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-sentinel", str(self._config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class SentinelGroup:
    """`servers[0]` begins as the master."""

    def __init__(
        self,
        directory: Path,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        password: str = "",
        sentinel_password: str = "",
        tls: Certificates | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        self.password, self.sentinel_password, self.tls = password, sentinel_password, tls
        common = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", *extra]
        common += ["--masterauth", password] if password else []
        self.servers = [RedisServer(directory / "redis-0", unixsocket=False, password=password, tls=tls, extra=common)]
        first = self.servers[0].port
        for number in range(1, replicas + 1):
            of = [*common, "--replicaof", "127.0.0.1", str(first)]
            self.servers.append(
                RedisServer(directory / f"redis-{number}", unixsocket=False, password=password, tls=tls, extra=of)
            )
        self.sentinels = [
            self._sentinel(directory / f"sentinel-{number}", first, quorum=sentinels // 2 + 1)
            for number in range(sentinels)
        ]

    def _sentinel(self, directory: Path, master_port: int, *, quorum: int) -> _Sentinel:
        port = _free_port()
        config = [f"port {port}"]
        if self.tls is not None:
            certificate, key = self.tls.server
            config = [
                *("port 0", f"tls-port {port}", f"tls-ca-cert-file {self.tls.ca}", f"tls-cert-file {certificate}"),
                *(f"tls-key-file {key}", "tls-replication yes", "tls-auth-clients no"),
            ]
        config += [
            *("bind 127.0.0.1", f"dir {directory}", f"sentinel monitor {NAME} 127.0.0.1 {master_port} {quorum}"),
            *(f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}", f"sentinel failover-timeout {NAME} 4000"),
        ]
        config += [f'sentinel auth-pass {NAME} "{self.password}"'] if self.password else []
        if self.sentinel_password:
            config += [f'requirepass "{self.sentinel_password}"', f'sentinel sentinel-pass "{self.sentinel_password}"']
        return _Sentinel(directory, port=port, config=config)

    @property
    def url(self) -> str:
        """For `MEMORY_BROKER_URL`."""
        return self.url_with()

    def url_with(self, *, password: str | None = None, sentinel_password: str | None = None, **given: str) -> str:
        """The URL with other words in it."""
        word = self.password if password is None else password
        login = f":{urllib.parse.quote(word, safe='')}@" if word else ""
        given = {"master_name": NAME, **given}
        if self.tls is not None:
            given = {"ssl_ca_certs": str(self.tls.ca), **given}
        if sentinel_password is None:
            sentinel_password = self.sentinel_password
        if sentinel_password:
            given |= {"sentinel_password": sentinel_password}
        places = ";".join(f"sentinel://{login}127.0.0.1:{one.port}" for one in self.sentinels)
        return f"{places}/0?{urllib.parse.urlencode(given, safe='/', quote_via=urllib.parse.quote)}"

    @property
    def master(self) -> RedisServer:
        """The one that most sentinels name."""
        ports = [self._named_by(one) for one in self.sentinels]
        named = max((port for port in ports if port), key=ports.count, default=0)
        return next(server for server in self.servers if server.port == named)

    def _named_by(self, one: _Sentinel) -> int:
        try:
            with self.client(one.port, password=self.sentinel_password) as client:
                address = client.sentinel_get_master_addr_by_name(NAME)
                return int(address[1]) if address else 0
        except redis_py.RedisError:
            return 0

    def client(self, port: int, *, password: str | None = None) -> redis_py.Redis:
        """redis-py at one of the processes."""
        tls = {"ssl": True, "ssl_ca_certs": str(self.tls.ca)} if self.tls is not None else {}
        word = self.password if password is None else password
        return redis_py.Redis(
            "127.0.0.1", port, password=word or None, socket_timeout=2, socket_connect_timeout=2, **tls
        )

    def start(self) -> None:
        """Return once replicas follow and every sentinel knows all others."""
        for server in self.servers:
            server.start()
        for one in self.sentinels:
            one.start()
        _wait(lambda: all(self._follows(server) for server in self.servers[1:]), "replicas follow")
        _wait(lambda: all(self._knows_all(one) for one in self.sentinels), "sentinels know each other")

    def _follows(self, server: RedisServer) -> bool:
        with self.client(server.port) as client:
            return client.info("replication").get("master_link_status") == "up"

    def _knows_all(self, one: _Sentinel) -> bool:
        try:
            with self.client(one.port, password=self.sentinel_password) as client:
                known = client.sentinel_masters().get(NAME, {})
        except redis_py.RedisError:
            return False
        return (
            known.get("num-other-sentinels") == len(self.sentinels) - 1
            and known.get("num-slaves") == len(self.servers) - 1
        )

    def wait_for_master(self, *, not_: RedisServer) -> RedisServer:
        """The new master, once it takes writes."""
        _wait(lambda: self.master is not not_ and self._is_master(self.master), "another master")
        return self.master

    def wait_for_replica(self, server: RedisServer) -> None:
        """Return once this one has been made a replica and follows."""
        _wait(lambda: self._is_replica(server), "the old master follows the new one")

    def _is_master(self, server: RedisServer) -> bool:
        try:
            with self.client(server.port) as client:
                return client.info("replication")["role"] == "master"
        except redis_py.RedisError:
            return False

    def _is_replica(self, server: RedisServer) -> bool:
        try:
            return self._follows(server)
        except redis_py.RedisError:
            return False

    def remove(self) -> None:
        for one in self.sentinels:
            one.kill()
        for server in self.servers:
            server.remove()


def _wait(condition: object, what: str) -> None:
    until = time.monotonic() + _DEADLINE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, f"waited {_DEADLINE_S:g} s in vain: {what}"
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def sentinel_group(
    directory: Path,
    *,
    replicas: int = 1,
    sentinels: int = 3,
    password: str = "",
    sentinel_password: str = "",
    tls: Certificates | None = None,
    extra: Sequence[str] = (),
) -> Iterator[SentinelGroup]:
    """A running group, gone at the end."""
    group = SentinelGroup(
        directory,
        replicas=replicas,
        sentinels=sentinels,
        password=password,
        sentinel_password=sentinel_password,
        tls=tls,
        extra=extra,
    )
    try:
        group.start()
        yield group
    finally:
        group.remove()
