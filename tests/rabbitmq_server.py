"""A private RabbitMQ node for tests: own directory, name, cookie, ports on loopback, and own epmd; no plugins.

    with rabbitmq_server(tmp_path / "rabbitmq") as rabbit:       # about five seconds
        rabbit.broker_url, rabbit.pid
        rabbit.kill(); rabbit.start()                            # same directory, same address
        rabbit.control("list_queues", "name", "type")            # rabbitmqctl; a second or two each

It takes nothing from a system's own node (its files, cookie, ports or epmd) and gives it nothing. Debian's wrapper in
/usr/sbin changes the user, so the scripts behind it are called. Two processes are ours to end, the node and its epmd;
what the node itself starts ends with it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import kombu
import pytest

__all__ = ["RabbitServer", "rabbitmq_server", "skip_without_rabbitmq"]

START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 30.0
_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
_STARTED = "Server startup complete"


def skip_without_rabbitmq() -> None:
    """Skip where no rabbitmq-server is installed. In CI that is a failure."""
    if not (_SCRIPTS / "rabbitmq-server").exists():
        if os.environ.get("CI"):
            pytest.fail("rabbitmq-server is not installed, and CI must have it")
        pytest.skip("rabbitmq-server is not installed")


def _free_ports(count: int) -> list[int]:
    """All at once, so that they differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class RabbitServer:
    """One node. `start`, `stop` and `kill` may be repeated; addresses and data stay."""

    user = "memory"
    password = "between-hosts-and-workers"

    def __init__(
        self,
        directory: Path,
        *,
        config: Mapping[str, str] | None = None,
        advanced: str = "",
        certificate: tuple[Path, Path, Path] | None = None,
    ) -> None:
        """`config`: further lines of rabbitmq.conf; `advanced`: advanced.config, an Erlang term. `certificate`: the
        files of a CA, a certificate and its key; then the node listens with TLS beside plain TCP."""
        self.directory = Path(directory)
        self.port, self._distribution, self._epmd_port, self.tls_port = _free_ports(4)
        self._name = f"memory-test-{self.port}@localhost"
        self._log = self.directory / "server.log"
        self._node: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._write_files(dict(config or {}), advanced, certificate)

    def _write_files(self, config: dict[str, str], advanced: str, certificate: tuple[Path, Path, Path] | None) -> None:
        for name in ("home", "data", "logs"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        cookie = self.directory / "home" / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(secrets.token_hex(16))
            cookie.chmod(0o400)
        lines = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "default_user": self.user,
            "default_pass": self.password,
            "disk_free_limit.absolute": "10MB",
            "log.file": "false",
            "log.console": "true",
        }
        if certificate is not None:
            authority, own, key = certificate
            lines |= {
                "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
                "ssl_options.cacertfile": str(authority),
                "ssl_options.certfile": str(own),
                "ssl_options.keyfile": str(key),
            }
        text = "".join(f"{name} = {value}\n" for name, value in (lines | config).items())
        (self.directory / "rabbitmq.conf").write_text(text)
        (self.directory / "advanced.config").write_text(advanced or "[].\n")
        (self.directory / "env.conf").write_text("")
        (self.directory / "enabled_plugins").write_text("[].\n")

    @property
    def broker_url(self) -> str:
        """For kombu and Celery."""
        return f"amqp://{self.user}:{self.password}@127.0.0.1:{self.port}//"

    @property
    def pid(self) -> int:
        assert self._node is not None, "the node is not running"
        return self._node.pid

    @property
    def running(self) -> bool:
        return self._node is not None

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory / "home"),  # where Erlang looks for the cookie
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_ALLOW_INPUT": "1",  # no shell in between: the process that we start is the node
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CTL_DIST_PORT_MIN": "0",
            "RABBITMQ_CTL_DIST_PORT_MAX": "0",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def start(self) -> None:
        """Return once it takes connections."""
        assert self._node is None, "already started"
        with self._log.open("ab") as log:
            if self._epmd is None:  # else the node would start one that outlives it
                self._epmd = subprocess.Popen(
                    ["epmd"], env=self._environ(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            seen = self._starts()
            self._node = subprocess.Popen(
                [_SCRIPTS / "rabbitmq-server"],
                env=self._environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while self._starts() == seen:
            if self._node.poll() is not None or time.monotonic() > deadline:
                self.remove()
                raise AssertionError(f"rabbitmq-server did not start: {self.log()[-3000:]}")
            time.sleep(0.05)

    def _starts(self) -> int:
        return self.log().count(_STARTED)

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def stop(self) -> None:
        """SIGTERM; what was written stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP: connections are accepted by the kernel, nothing answers. Returns when every thread has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + STOP_DEADLINE_S
        while not all(_has_stopped(thread) for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            assert time.monotonic() < deadline, "it does not stop"
            time.sleep(0.01)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        node, self._node = self._node, None
        if node is not None:
            _end(node, how)

    def remove(self) -> None:
        """Stop it and its epmd; the directory stays."""
        self._end(signal.SIGKILL)
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            _end(epmd, signal.SIGTERM)

    def control(self, *words: str) -> str:
        """What `rabbitmqctl` with these words prints. Raises when it fails."""
        done = subprocess.run(
            [_SCRIPTS / "rabbitmqctl", "--quiet", "--node", self._name, *words],
            env=self._environ(),
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.directory,
        )
        assert done.returncode == 0, f"rabbitmqctl {' '.join(words)}: {done.stdout[-500:]} {done.stderr[-500:]}"
        return done.stdout

    def connection(self) -> kombu.Connection:
        """One for the test itself."""
        return kombu.Connection(self.broker_url, connect_timeout=5.0)


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)  # a frozen one could not obey
        process.send_signal(how)
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_DEADLINE_S)


def _has_stopped(thread: Path) -> bool:
    """Whether this entry of /proc/PID/task is in the stopped state."""
    return (thread / "stat").read_text("ascii").rpartition(")")[2].split()[0] == "T"


@contextmanager
def rabbitmq_server(
    directory: Path,
    *,
    config: Mapping[str, str] | None = None,
    advanced: str = "",
    certificate: tuple[Path, Path, Path] | None = None,
) -> Iterator[RabbitServer]:
    """A running node, gone at the end with its data. Skips, or fails in CI, where RabbitMQ is not installed."""
    skip_without_rabbitmq()
    server = RabbitServer(directory, config=config, advanced=advanced, certificate=certificate)
    try:
        server.start()
        yield server
    finally:
        server.remove()
        shutil.rmtree(server.directory / "data", ignore_errors=True)
