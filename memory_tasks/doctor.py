"""Check every setting and every part of this machine's memory, and say what to do about each fault.

Nothing is changed, but for a file written and removed to try the journal's disk. Secrets are shown as set or not set.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from rich.console import Console

from memory_tasks import agent, eviction, hook_checks, settings, status
from producer import counts as turn_counts
from producer import errors, rabbitmq, redis_client, redis_url, store
from producer.convergence.check import SKEW_S
from producer.hosts import claude_code

__all__ = ["Check", "clock", "examine", "show"]

_RABBITMQ_LEAST = (3, 10)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding. `level`: ok, note (worth knowing), warn (works, but), fail (memory waits or is lost)."""

    name: str
    level: str
    found: str
    todo: str = ""


def examine(environ: Mapping[str, str]) -> list[Check]:
    """All checks, in the order in which an event travels."""
    checks = [_python()]
    try:
        tree = settings.Settings.load(environ, make_secrets=False)
    except errors.Permanent as problem:
        return [*checks, Check(name="settings", level="fail", found=str(problem), todo="set it and run doctor again")]
    checks += _values(tree, environ)
    for part in (_journal, _hooks, _broker, _redis, _store, _agent):
        checks += part(tree)
    has_broker = any(check.name == "broker" and check.level == "ok" for check in checks)
    return [*checks, *_workers(tree, has_broker)]


def _python() -> Check:
    return Check(name="python", level="ok", found=f"{platform.python_version()} ({sys.executable})")


def _values(tree: settings.Settings, environ: Mapping[str, str]) -> Iterator[Check]:
    for row in settings.table():
        if not row.field:
            continue
        owner: Any = tree.producer if row.side == "host" else tree
        value = getattr(owner, row.field)
        origin = "environment" if environ.get(row.variable) else "default"
        if row.secret:
            shown = "set" if _revealed(value) else "not set"
            if origin == "default" and _revealed(value):
                origin = "state directory"
        else:
            shown = status.without_secrets(str(value)) if row.unit == "URL" else _plain(value)
        yield Check(name=row.variable, level="ok", found=f"{shown} ({origin})")
    for name in tree.unknown:
        yield Check(
            name=name,
            level="warn",
            found="nothing reads this variable",
            todo="check the spelling against the README's table",
        )
    if tree.tenants_file is None and not tree.producer.local:
        yield Check(
            name="tenants",
            level="note",
            found="one key for everyone",
            todo="name MEMORY_TENANTS_FILE on workers to tell hosts apart",
        )


def _plain(value: Any) -> str:
    """As it would be written in the environment."""
    if value is None or value in ("", ()):
        return "empty"
    return ",".join(value) if isinstance(value, tuple) else str(value) or "empty"


def _revealed(value: Any) -> str:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def _journal(tree: settings.Settings) -> Iterator[Check]:
    directory = tree.producer.journal_dir
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = directory / f".doctor-{os.getpid()}"
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, b"x")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            probe.unlink()
    except OSError as problem:
        yield Check(
            name="journal",
            level="fail",
            found=f"{directory} cannot be written and synced (errno {problem.errno}): nothing can be captured",
            todo="make it writable for this user, on a local disk with room",
        )
        return
    if directory.stat().st_mode & 0o077:
        yield Check(
            name="journal mode", level="warn", found="others may read the journal", todo=f"chmod 700 {directory}"
        )
    report = status._journal(tree)
    if "unreachable" in report:
        yield Check(
            name="journal",
            level="fail",
            found=report["unreachable"],
            todo="see the runbook, 'The journal does not open'",
        )
        return
    used = report.get("bytes", 0) / max(tree.producer.journal_max_bytes, 1)
    level = "fail" if used > 0.95 else "warn" if used > 0.7 or report.get("damaged") else "ok"
    yield Check(
        name="journal",
        level=level,
        found=f"{report.get('pending', 0)} pending, {report.get('dead', 0)} dead, {used:.0%} of its budget, "
        f"{report.get('damaged', 0)} damaged",
        todo=""
        if level == "ok"
        else "start workers, or raise MEMORY_JOURNAL_MAX_BYTES; damaged bytes are in quarantine/",
    )
    if later := report.get("unreadableSegments", 0) + report.get("unreadableLines", 0):
        yield Check(
            name="journal version",
            level="warn",
            found=f"{later} lines or segments were written by a later version: they are kept, and not delivered",
            todo="run that version again until they are delivered",
        )


def _hooks(tree: settings.Settings) -> Iterator[Check]:
    found = hook_checks.faults(tree.producer)
    if found is None:
        return
    for fault in found:
        yield Check(name="claude code hooks", level="fail", found=fault.found, todo=fault.todo)
    if not found:
        turns = turn_counts.read(tree.producer.journal_dir).get(claude_code.HOST, {})
        seen = f"{turns.get('seen', 0)} turns seen, {turns.get('captured', 0)} captured"
        yield Check(name="claude code hooks", level="ok", found=f"{seen}; `status` tells refusals by reason")


def _tried(name: str, todo: str, call: Callable[[], str]) -> Check:
    try:
        return Check(name=name, level="ok", found=call())
    except redis.RedisError as problem:
        return Check(name=name, level="fail", found=redis_client.trouble(problem), todo=todo)
    except (errors.IngestError, OSError, ValueError) as problem:
        found = str(problem) if isinstance(problem, errors.IngestError) else type(problem).__name__
        return Check(name=name, level="fail", found=found, todo=todo)


def _broker(tree: settings.Settings) -> Iterator[Check]:
    if rabbitmq.is_rabbitmq(tree.producer.broker_url):
        yield from _rabbitmq(tree.producer.broker_url)
        yield from _trusting("MEMORY_BROKER_URL", tree.producer.broker_url)
        return
    from memory_tasks import app as celery_app  # Celery: slow, and only doctor asks like this

    def connect() -> str:
        client = celery_app.make_app(tree, _unused)
        try:
            with client.connection_for_write() as connection:
                connection.transport_options = connection.transport_options | {
                    "socket_timeout": 3,
                    "socket_connect_timeout": 3,
                }
                connection.ensure_connection(max_retries=0)
        except Exception as problem:  # noqa: BLE001 (every transport has its own errors)
            is_redis = redis_url.is_redis(tree.producer.broker_url)
            words = redis_client.trouble(problem) if is_redis else type(problem).__name__
            raise errors.BrokerUnavailable(words) from None
        finally:
            client.close()
        return "answers"

    yield _tried(
        "broker",
        "start it (`memory-tasks up` starts the embedded one) or set MEMORY_BROKER_URL; the journal keeps all",
        connect,
    )
    yield from _trusting("MEMORY_BROKER_URL", tree.producer.broker_url)


def _unused() -> Any:
    raise errors.Unsupported("doctor handles no messages")


def _rabbitmq(url: str) -> Iterator[Check]:
    try:
        with rabbitmq.opened(url, connect_timeout_s=3.0, socket_timeout_s=3.0) as connection:
            told = connection.connection.server_properties
            queues = rabbitmq.examine(connection)
    except errors.IngestError as problem:
        todo = "start it, or set MEMORY_BROKER_URL; the journal keeps all"
        yield Check(name="broker", level="fail", found=str(problem), todo=todo)
        return
    version = str(told.get("version", "of an unknown version"))
    yield Check(name="broker", level="ok", found=f"{told.get('product', 'RabbitMQ')} {version} answers")
    if version.startswith(("2.", "3.")) and tuple(map(int, version.split(".")[:2])) < _RABBITMQ_LEAST:
        yield Check(
            name="broker version",
            level="fail",
            found="retries wait in quorum queues with a time to live, which it does not have",
            todo="use RabbitMQ 3.10 or later",
        )
    yield from map(_quorum, queues)


def _quorum(queue: rabbitmq.QueueState) -> Check:
    name = f"queue {queue.name}"
    if not queue.exists:
        return Check(name=name, level="note", found="is not there yet; a host or worker makes it")
    found = f"{queue.waiting} waiting, {queue.consumers} workers"
    if queue.is_quorum:
        return Check(name=name, level="ok", found=f"quorum queue, {found}")
    return Check(
        name=name,
        level="fail",
        found=f"is no quorum queue, or has other arguments ({found}): hosts and workers refuse it",
        todo="drain and delete it, or use a virtual host of its own; limits belong into a policy",
    )


def _trusting(setting: str, url: str) -> Iterator[Check]:
    is_redis = redis_url.is_redis(url)
    if not (redis_url.parse(url, setting=setting).verified if is_redis else rabbitmq.is_verified(url)):
        yield Check(
            name=f"{setting} TLS",
            level="warn",
            found="ssl_cert_reqs=none: anybody on the way can read and change what travels",
            todo="name the server's authority in ssl_ca_certs instead",
        )


def _redis(tree: settings.Settings) -> Iterator[Check]:
    client = status.open_redis(tree.producer.redis_url)
    try:
        yield _tried("redis", "start it or set MEMORY_REDIS_URL", lambda: _version(client))
        yield from _trusting("MEMORY_REDIS_URL", tree.producer.redis_url)
        yield from clock(client, time.time())
        try:
            policy = str(client.config_get("maxmemory-policy").get("maxmemory-policy", ""))
        except redis.RedisError:
            return
        if policy and policy != "noeviction" and rabbitmq.is_rabbitmq(tree.producer.broker_url):
            yield Check(
                name="redis eviction",
                level="warn",
                found=f"maxmemory-policy is {policy}: receipts can vanish, which costs redeliveries",
                todo="CONFIG SET maxmemory-policy noeviction, and in its configuration file",
            )
        elif policy and policy != "noeviction":
            yield Check(
                name="redis eviction",
                level="fail",
                found=f"maxmemory-policy is {policy}: queued messages can vanish, workers refuse to start",
                todo="CONFIG SET maxmemory-policy noeviction, and in its configuration file",
            )
    finally:
        client.close()


def clock(client: redis.Redis, now_s: float) -> Iterator[Check]:
    """Whether this machine's clock agrees with Redis', which all hosts share: times decide between rival facts."""
    try:
        told: Any = client.time()
    except redis.RedisError:
        return
    ahead_s = now_s - told[0]
    if abs(ahead_s) <= SKEW_S:
        yield Check(name="clock", level="ok", found="agrees with Redis'")
        return
    yield Check(
        name="clock",
        level="warn",
        found=f"{abs(ahead_s) / 60:.0f} minutes {'ahead of' if ahead_s > 0 else 'behind'} Redis': "
        "where two facts compete the later time wins, and it may be the wrong one",
        todo="synchronise both clocks (NTP); `memory-tasks facts check` names facts with wrong times",
    )


def _version(client: redis.Redis) -> str:
    client.ping()
    try:
        server = client.info("server")
    except redis.ResponseError:
        return "answers; its access list hides its version"
    eviction.check_mode(server)
    return f"version {server['redis_version']}"


def _store(tree: settings.Settings) -> Iterator[Check]:
    def ask() -> str:
        backend = store.open_store(tree.producer.store_url, token=tree.producer.store_token, timeout_s=5.0)
        try:
            backend.ping()
            can = backend.capabilities()
        finally:
            backend.close()
        words = [
            word
            for word, has in (("keyword", can.keyword_search), ("vector", can.vector_search), ("embeds", can.embeds))
            if has
        ]
        return f"{can.name} answers; search: {', '.join(words) or 'bounded find, ranked here'}"

    yield _tried(
        "store", "check MEMORY_STORE_URL and MEMORY_STORE_TOKEN; meanwhile journal and queue keep everything", ask
    )


def _agent(tree: settings.Settings) -> Iterator[Check]:
    socket = tree.producer.agent_socket
    try:
        agent.client(socket, timeout_s=2.0).status()
        yield Check(name="agent", level="ok", found=f"answers on {socket}")
    except (OSError, errors.IngestError):
        yield Check(
            name="agent",
            level="fail",
            found=f"does not answer on {socket}: one-shot hooks capture, but nothing is delivered and nothing recalled",
            todo="run `memory-tasks agent` (or `up`) as a service",
        )


def _workers(tree: settings.Settings, has_broker: bool) -> Iterator[Check]:
    if not has_broker:
        yield Check(name="workers", level="fail", found="cannot be asked without a broker", todo="see broker")
        return
    from memory_tasks import app as celery_app  # Celery: slow, and only doctor asks like this

    client = celery_app.make_app(tree, _unused)
    try:
        answers = client.control.ping(timeout=2.0)
    except Exception as problem:  # noqa: BLE001 (every transport has its own errors)
        yield Check(
            name="workers", level="fail", found=f"cannot be asked ({type(problem).__name__})", todo="see broker"
        )
        return
    finally:
        client.close()
    names = sorted(name for answer in answers or () for name in answer)
    if names:
        yield Check(name="workers", level="ok", found=", ".join(names))
    else:
        yield Check(
            name="workers",
            level="fail",
            found="none answers: events wait in journal and queue",
            todo="run `memory-tasks worker`",
        )


def show(checks: list[Check], console: Console) -> None:
    """The findings, worst last, so that they stand above the prompt."""
    colour = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "red"}
    for check in sorted(checks, key=lambda c: list(colour).index(c.level)):
        console.print(f"{check.level:<4}", style=colour[check.level], end=" ")
        console.print(f"{check.name}: {check.found}")
        if check.todo:
            console.print(f"     → {check.todo}")
