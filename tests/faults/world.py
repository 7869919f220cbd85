"""A world of real processes: Redis, a store, workers, hosts and the local agent, each ours to kill, freeze and restart.

    with World(workers=2) as world:
        host = world.host(rate=20)
        world.begin()                       # hosts capture from now on
        world.redis.kill(); world.redis.start()
        world.end()                         # they capture no more, and go on dispatching
        row = world.row("name")             # waits until nothing is pending, stops all, counts

Times are short, so what takes minutes in service takes seconds here. Each countdown is below half of the visibility
timeout; late commits (a frozen or slow store) must come sooner than `MEMORY_STORE_LATE_S`, as in service.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import redis as redis_py

from memory_tasks import counts, supervisor
from producer import config, message, redis_client
from tests.faults import count as counting
from tests.faults.count import Count, JournalWatch
from tests.faults.process import ROOT, Process
from tests.faults.proxy import FaultProxy
from tests.faults.table import Row
from tests.rabbitmq_server import RabbitServer, rabbitmq_server
from tests.redis_server import RedisServer
from tests.rushdb_server import RunningServer, rushdb_server
from tests.sentinel_group import SentinelGroup

__all__ = ["LATE_BOUND_S", "SHORT_TIMES", "World", "frozen", "is_ready", "wait_for"]

SHORT_TIMES = {
    "MEMORY_VISIBILITY_TIMEOUT_S": "12",
    "MEMORY_RESTORE_INTERVAL_S": "1",
    "MEMORY_RETRY_MAX_COUNTDOWN_S": "1",
    "MEMORY_STORE_LATE_S": "4",
    "MEMORY_STORE_TIMEOUT_S": "2",
    "MEMORY_REPUBLISH_AFTER_S": "4",
    "MEMORY_REDIS_TIMEOUT_S": "2",
    "MEMORY_CONCURRENCY": "8",
    "MEMORY_EXPIRY_EVERY_S": "0",  # its key would be one more at the end than at the beginning
}
LATE_BOUND_S = 1.5  # how long a store may be frozen: less than MEMORY_STORE_LATE_S, with room for a busy machine
SETTLE_DEADLINE_S = 180.0
MARK = "FAULTS_WORLD"  # in the environment of every process of a world

_POLL_S = 0.1


def wait_for(condition: Callable[[], bool], deadline_s: float, what: str = "") -> None:
    """Return once it holds. Raises `AssertionError` after the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"waited {deadline_s:g} s in vain: {what}"
        time.sleep(_POLL_S)


def is_ready(worker: Process) -> bool:
    """Whether a worker takes messages since its last start."""
    return worker.running and worker.times_said(" ready.") >= worker.starts


class World:
    """Everything one scenario runs on, in one short directory. Use from the main thread."""

    def __init__(
        self,
        *,
        workers: int = 1,
        seed: int = 0,
        store: str = "rushdb",
        settings: Mapping[str, str] | None = None,
        persistent: bool = True,
        redis_proxy: bool = False,
        store_proxy: bool = False,
        redis_extra: Sequence[str] = (),
        broker: str = "redis",
        journal_dir: Path | None = None,
    ) -> None:
        """`broker`: "redis", "sentinel" for a `group` of two Redis and three sentinels, or "rabbitmq" for a node of it
        beside the Redis of the receipts."""
        self.seed = seed
        self._broker = broker
        self._began = time.monotonic()
        self._given = (workers, store, dict(settings or {}), persistent, redis_proxy, store_proxy, tuple(redis_extra))
        self._journal_dir = journal_dir
        self._stack = ExitStack()
        self.workers: list[Process] = []
        self.hosts: list[Process] = []
        self.agents: list[Process] = []
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.kept: Path | None = None

    # Life

    def __enter__(self) -> World:
        workers, store, settings, persistent, redis_proxied, store_proxied, redis_extra = self._given
        self.directory = Path(tempfile.mkdtemp(prefix="mf-", dir="/tmp"))
        try:
            self._enter(store, settings, persistent, redis_proxied, store_proxied, redis_extra)
            for _ in range(workers):
                self.worker()
        except BaseException:
            self._stop_all()
            raise
        return self

    def _enter(
        self,
        store: str,
        settings: Mapping[str, str],
        persistent: bool,
        redis_proxied: bool,
        store_proxied: bool,
        redis_extra: Sequence[str],
    ) -> None:
        self.group = SentinelGroup(self.directory / "group", extra=redis_extra) if self._broker == "sentinel" else None
        if self.group is not None:
            self._stack.callback(self.group.remove)
            self.group.start()
            self.redis = self.group.servers[0]
        else:
            self.redis = RedisServer(
                self.directory / "redis", unixsocket=False, persistent=persistent, extra=redis_extra
            )
            self._stack.callback(self.redis.remove)
            self.redis.start()
        self.redis_proxy = self._proxy(("127.0.0.1", self.redis.port)) if redis_proxied else None
        redis_port = self.redis_proxy.port if self.redis_proxy else self.redis.port
        self.rabbit: RabbitServer | None = None
        if self._broker == "rabbitmq":
            self.rabbit = self._stack.enter_context(rabbitmq_server(self.directory / "rabbitmq"))
        redis_url = self.group.url if self.group is not None else f"redis://127.0.0.1:{redis_port}/0"
        self.store_file = self.directory / "store.sqlite"
        self.store: RunningServer | None = None
        self.store_proxy: FaultProxy | None = None
        if store == "rushdb":
            self.store = self._stack.enter_context(rushdb_server(self.store_file, process=True))
            self.store_proxy = self._proxy(("127.0.0.1", self.store.port)) if store_proxied else None
            store_port = self.store_proxy.port if self.store_proxy else self.store.port
            store_url = f"rushdb+http://127.0.0.1:{store_port}"
        else:
            store_url = f"sqlite:///{self.store_file}"
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.environ = {
            **kept,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
            MARK: str(self.directory),
            **SHORT_TIMES,
            "MEMORY_STATE_DIR": str(self.directory / "state"),
            "MEMORY_BROKER_URL": self.rabbit.broker_url if self.rabbit is not None else redis_url,
            **({"MEMORY_REDIS_URL": redis_url} if self.rabbit is not None else {}),
            "MEMORY_STORE_URL": store_url,
            "MEMORY_STORE_TOKEN": self.store.token if self.store else "",
            "MEMORY_JOURNAL_DIR": str(self._journal_dir or self.directory / "journal-0"),
            **settings,
        }
        self.settings = config.load(self.environ)  # makes the secrets that all share
        self.load_file = self.directory / "load"
        of_redis = self.group.url if self.group is not None else self.redis.url
        self.client = redis_client.connect(of_redis, connect_timeout_s=5.0, socket_timeout_s=5.0)
        self._stack.callback(self.client.close)
        self._watches: dict[str, JournalWatch] = {}

    def _proxy(self, upstream: tuple[str, int]) -> FaultProxy:
        proxy = FaultProxy(upstream)
        self._stack.callback(proxy.close)
        return proxy

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_all()
        if kind is not None or self.kept is not None:
            self.kept = self.directory  # for whoever looks into it
            print(f"kept {self.directory}", file=sys.stderr)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _stop_all(self) -> None:
        for watch in getattr(self, "_watches", {}).values():
            watch.close()
        for process in (*self.hosts, *self.agents, *self.workers):
            if process.running:
                process.kill()
        self._stack.close()

    def age_s(self) -> float:
        return time.monotonic() - self._began

    # Processes

    def worker(
        self, *, wait: bool = True, env: Mapping[str, str] | None = None, entry: Sequence[str] | None = None
    ) -> Process:
        """One more worker; returns once it takes messages. `entry`: the interpreter's arguments for another app."""
        name = f"w{len(self.workers)}"
        environ = {**self.environ, **(env or {})}
        command = supervisor.worker_command(concurrency=int(environ["MEMORY_CONCURRENCY"]), name=name)
        if entry is not None:
            command = [sys.executable, *entry, *command[command.index("worker") :]]
        worker = Process(name, command, env=environ, log=self.directory / f"{name}.log")
        self.workers.append(worker)
        worker.start()
        if wait:
            wait_for(lambda: is_ready(worker) or not worker.running, 60.0, f"{name} starts")
            assert worker.running, f"{name} ended: {worker.words()[-3000:]}"
        return worker

    def host(
        self,
        *,
        name: str = "",
        journal: int = 0,
        rate: float = 20.0,
        count: int | None = None,
        mix: str = "mixed",
        leave: str = "stay",
        dispatches: bool = True,
        env: Mapping[str, str] | None = None,
        start: bool = True,
        more: Sequence[str] = (),
    ) -> Process:
        """One more host on this journal. Captures `count` events, or from `begin` to `end`."""
        name = name or f"h{len(self.hosts)}"
        command = [sys.executable, "-m", "tests.faults.host", "--out", str(self.promises_of(name)), "--name", name]
        command += ["--seed", str(self.seed), "--rate", str(rate), "--mix", mix, "--leave", leave]
        command += ["--count", str(count)] if count is not None else ["--while", str(self.load_file)]
        command += [*([] if dispatches else ["--no-dispatch"]), *more]
        environ = {**self.environ, "MEMORY_JOURNAL_DIR": str(self.journal(journal)), **(env or {})}
        process = Process(name, command, env=environ, log=self.directory / f"{name}.log")
        self.hosts.append(process)
        self.watch(Path(environ["MEMORY_JOURNAL_DIR"]))
        if start:
            process.start()
        return process

    def agent(self, *, journal: int = 0) -> Process:
        """The local agent of this journal, which dispatches for one-shot hosts."""
        name = f"a{len(self.agents)}"
        environ = {
            **self.environ,
            "MEMORY_JOURNAL_DIR": str(self.journal(journal)),
            "MEMORY_AGENT_SOCKET": str(self.directory / f"{name}.sock"),
        }
        command = [sys.executable, "-m", "memory_tasks.cli", "agent"]
        process = Process(name, command, env=environ, log=self.directory / f"{name}.log")
        self.agents.append(process)
        self.watch(Path(environ["MEMORY_JOURNAL_DIR"]))
        process.start()
        return process

    def journal(self, number: int = 0) -> Path:
        base = Path(self.environ["MEMORY_JOURNAL_DIR"])
        return base if number == 0 else self.directory / f"journal-{number}"

    def watch(self, directory: Path) -> JournalWatch:
        key = str(directory)
        if key not in self._watches:
            self._watches[key] = JournalWatch(directory)
        return self._watches[key]

    # Load

    def begin(self) -> None:
        self.load_file.touch()

    def end(self) -> None:
        self.load_file.unlink(missing_ok=True)

    def promises_of(self, name: str) -> Path:
        return self.directory / f"{name}.promises"

    def promised(self, *names: str) -> list[dict[str, Any]]:
        """What these hosts wrote down, or all."""
        paths = [self.promises_of(n) for n in names] if names else sorted(self.directory.glob("*.promises"))
        return counting.promises(paths)

    def command(self, *words: str, journal: int = 0) -> str:
        """What `memory-tasks` with these words prints, on this journal's host. Raises when it fails."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "memory_tasks.cli", *words],
            env={**self.environ, "MEMORY_JOURNAL_DIR": str(self.journal(journal))},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"memory-tasks {' '.join(words)}: {done.stderr[-500:]}"
        return done.stdout

    def acknowledged(self, *names: str) -> list[dict[str, Any]]:
        return [one for one in self.promised(*names) if "id" in one]

    def wait_done(self, *hosts: Process, deadline_s: float = 60.0) -> None:
        """Until these hosts (or all that count) have captured what they had to."""
        for host in hosts or self.hosts:
            wait_for(
                lambda host=host: (
                    any(p["kind"] in ("done", "ended") for p in self.promised(host.name)) or not host.running
                ),
                deadline_s,
                f"{host.name} captures",
            )

    def pending(self) -> int:
        return sum(watch.pending() for watch in self._watches.values())

    def stored(self) -> int:
        """Events and facts that the store has now."""
        return sum(len(self.records(label)) for label in ("EPISODE", "MEMORY_FACT"))

    def records(self, label: str) -> list[Any]:
        from producer.store import sqlite

        if not self.store_file.exists():
            return []
        store = sqlite.SqliteStore(self.store_file)
        try:
            return counting.records(store, label)
        finally:
            store.close()

    def counts(self) -> dict[str, int]:
        return counts.read(self.client, self.settings.tenant)

    def queued(self) -> int:
        """Messages that wait, and those a worker has."""
        if self.rabbit is not None:  # those that wait for a retry too; up to five seconds old
            return sum(map(int, self.rabbit.control("list_queues", "messages").split()[1:]))
        return (
            int(self.client.llen(message.QUEUE))
            + int(self.client.llen(message.BACKLOG_QUEUE))
            + int(self.client.hlen("memory:unacked"))
        )

    # The end

    def settle(self, deadline_s: float = SETTLE_DEADLINE_S, *, empties_queues: bool = True) -> bool:
        """Whether nothing is pending in any journal, and nothing on its way any more, by then."""
        until = time.monotonic() + deadline_s
        while True:
            self.supervise()
            try:
                if not self.pending() and not (empties_queues and self.queued()):
                    return True
            except redis_py.RedisError:
                pass
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)

    def supervise(self, *, expected: int | None = None) -> None:
        """Start again what ended by itself, as in service. A problem all the same, but for this exit code."""
        for process in (*self.workers, *self.agents):
            if not process.running:
                if process.returncode != expected:
                    self.problems.append(f"{process.name} ended by itself with {process.returncode}")
                process.start()

    def stop(self) -> None:
        """Stop everything in the order in which work flows; what does not end by itself is a problem."""
        for process in (*self.hosts, *self.agents, *self.workers):
            if process.running and not process.stop():
                self.problems.append(f"{process.name} had to be killed")
            if process.running is False and process.returncode not in (0, None, -9):
                self.problems.append(f"{process.name} ended with {process.returncode}")
        for promise in self.promised():
            if promise["kind"] == "ended" and (promise["threads"] or not promise["closed"]):
                self.problems.append(f"a host left threads: {promise['threads']}")
        self._check_nothing_runs()

    def _check_nothing_runs(self) -> None:
        left = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.directory):
                    left.append(process.name())
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        if left:
            self.problems.append(f"still running: {', '.join(left)}")

    def row(
        self,
        name: str,
        *,
        dead: int = 0,
        deadline_s: float = SETTLE_DEADLINE_S,
        torn: frozenset[str] = frozenset(),
        empties_queues: bool = True,
    ) -> Row:
        """Wait until all is settled, stop all, count, and say what it came to. `dead`: how many must be dead."""
        self.end()
        settled = self.settle(deadline_s, empties_queues=empties_queues)
        self.stop()
        made: Count = counting.count(self.promised(), list(self._watches.values()), self.store_file, torn=torn)
        problems = [*self.problems, *made.problems]
        if not settled and not any("pending" in problem for problem in problems):
            problems.append(f"not settled within {deadline_s:g} s")
        if made.dead != dead:
            problems.append(f"{made.dead} dead, not {dead}")
        if self.store is not None and self.store.crashes():
            problems.append("the test server failed itself")
        row = Row(
            scenario=name,
            events=made.events,
            lost=len(made.lost),
            doubled=len(made.doubled),
            dead=made.dead,
            seconds=self.age_s(),
            notes=tuple(self.notes),
            problems=tuple(problems),
        )
        if not row.good:
            self.kept = self.directory
        return row


@contextmanager
def frozen(process: Any) -> Iterator[None]:
    """SIGSTOP it meanwhile."""
    process.freeze()
    try:
        yield
    finally:
        process.thaw()
