"""Where every event is: journal, queues, counts, dead letters, agent. Gathered read-only, each part within a bound.

A part that does not answer is reported as such and never hides the others: the journal is on disk and always told.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import re
import sys
import time
from typing import Any

import redis
from rich.console import Console
from rich.table import Table

from memory_tasks import agent, counts, dead_letters, redis_errors, troubles
from memory_tasks.settings import Settings
from producer import counts as turn_counts
from producer import errors, message, rabbitmq, redis_client, redis_url
from producer.journal import Journal, segments
from producer.recall.engine import Recalled

__all__ = ["gather", "has_module", "log_to_stderr", "open_redis", "recalled_as_dict", "show", "without_secrets"]

_UNDERSCORE = re.compile(r"_([a-z])")
_REDIS_TIMEOUT_S = 2.0
_NEXT_URL = re.compile(r";(?=[a-z+]+://)")


def has_module(name: str) -> bool:
    """Whether an optional package is installed, without importing it."""
    return importlib.util.find_spec(name) is not None


def log_to_stderr(level: str = "INFO") -> None:
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def without_secrets(url: str) -> str:
    """A URL, or several in one setting, fit for a terminal: passwords and queries left out."""
    if redis_url.is_redis(url):
        try:
            return redis_url.parse(url).shown
        except errors.Permanent:
            pass  # shown as far as it can be told apart
    return ";".join(map(_without_secrets, _NEXT_URL.split(url)))


def _without_secrets(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    login, at, place = rest.rpartition("@")  # a password may hold any sign
    if not at or scheme == "sqlite":
        return scheme + mark + rest.partition("?")[0]
    return f"{scheme}://{login.partition(':')[0]}:***@{place.partition('?')[0]}"


def recalled_as_dict(found: Recalled) -> dict[str, Any]:
    """What one recall brought, JSON-able; stable names."""
    return {
        "memories": [
            {
                "id": m.id,
                "label": m.label,
                "text": m.text,
                "score": round(m.score, 6),
                "at": m.at,
                "from": m.source,
                "trustClass": m.record.get("trustClass"),
                "provenance": m.record.get("provenance"),
            }
            for m in found.memories
        ],
        "partial": found.partial,
        "sources": dict(found.sources),
        "tookMs": round(found.took_ms, 1),
    }


def open_redis(url: str) -> redis.Redis:
    """A client that answers soon or not at all. Raises `errors.Permanent` for a URL it cannot use."""
    return redis_client.connect(url, connect_timeout_s=_REDIS_TIMEOUT_S, socket_timeout_s=_REDIS_TIMEOUT_S)


def gather(settings: Settings) -> dict[str, Any]:
    """One JSON-able report. Keys are stable; a part that does not answer is {"unreachable": reason}."""
    producer = settings.producer
    return {
        "journal": _journal(settings),
        "turns": turn_counts.read(producer.journal_dir),
        "redis": _redis(settings),
        "agent": _agent(settings),
        "store": without_secrets(producer.store_url),
    }


def _camel(value: Any) -> Any:
    """Field names of ours as JSON has them everywhere here; seconds to the millisecond."""
    if isinstance(value, dict):
        return {
            _UNDERSCORE.sub(lambda m: m[1].upper(), k) if k.isidentifier() else k: _camel(v) for k, v in value.items()
        }
    return round(value, 3) if isinstance(value, float) else value


def _journal(settings: Settings) -> dict[str, Any]:
    producer = settings.producer
    if not producer.journal_dir.is_dir():
        return {"path": str(producer.journal_dir), "pending": 0, "missing": True}
    try:
        with Journal.open(
            producer.journal_dir,
            max_bytes=producer.journal_max_bytes,
            reserve_bytes=producer.journal_reserve_bytes,
            segment_max_bytes=producer.segment_max_bytes,
        ) as journal:
            return {
                "path": str(producer.journal_dir),
                "journalId": journal.journal_id,
                **_camel(dataclasses.asdict(journal.status())),
            }
    except errors.IngestError as problem:
        return {"path": str(producer.journal_dir), "unreachable": str(problem)}


def _redis(settings: Settings) -> dict[str, Any]:
    producer = settings.producer
    try:
        client = open_redis(producer.redis_url)
    except errors.Permanent as problem:
        return {"unreachable": str(problem)}
    try:
        counted = counts.read(client, producer.tenant)
        last, since = counted.pop(counts.LAST_STORED, None), counted.pop(counts.SINCE, None)
        report: dict[str, Any] = {
            "counts": counted,
            "countsSince": None if since is None else segments.iso_of_ms(since),
            "refusedMessages": counts.read_refused(client),
            "lastStoredAgoS": None if last is None else round(max(time.time() - last / 1000, 0), 1),
            "deadLetters": dead_letters.total(client, producer.tenant),
            "troubles": [_camel(dataclasses.asdict(one)) for one in troubles.read(client, producer.tenant)],
        }
        if redis_url.is_redis(producer.broker_url):
            report |= _queues(producer.broker_url)
        else:
            report["queues"] = _rabbitmq_queues(producer.broker_url)
        return report
    except errors.RedisUnavailable as problem:
        return {"unreachable": str(problem)}
    finally:
        client.close()


def _queues(broker_url: str) -> dict[str, Any]:
    """How much waits in the broker, which may be another Redis than the one for receipts."""
    client = open_redis(broker_url)
    try:
        with redis_errors.translated():
            return {
                "queues": {name: int(client.llen(name)) for name in (message.QUEUE, message.BACKLOG_QUEUE)},
                "unacknowledged": int(client.hlen("memory:unacked")),
            }
    finally:
        client.close()


def _rabbitmq_queues(broker_url: str) -> dict[str, Any]:
    """How much waits there; it does not tell a client what workers have, nor what waits for a retry."""
    timeouts = {"connect_timeout_s": _REDIS_TIMEOUT_S, "socket_timeout_s": _REDIS_TIMEOUT_S}
    try:
        with rabbitmq.opened(broker_url, **timeouts) as connection:
            return {queue.name: queue.waiting for queue in rabbitmq.examine(connection)}
    except errors.BrokerUnavailable as problem:
        return {"unreachable": str(problem)}


def _agent(settings: Settings) -> dict[str, Any]:
    try:
        return _camel(agent.client(settings.producer.agent_socket, timeout_s=_REDIS_TIMEOUT_S).status())
    except (OSError, errors.IngestError) as problem:
        return {"unreachable": type(problem).__name__}


def show(report: dict[str, Any], console: Console) -> None:
    """The report as tables for a terminal."""
    for title, part in report.items():
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
        for name, value in _flat(part):
            if isinstance(value, list):
                value = "\n".join(
                    f"{t['id'][:12]} {t['attempts']} attempts, last {t['error']}, {t['state'] or 'going on'}"
                    for t in value
                )
            table.add_row(name, str(value))
        console.print(table)


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(prefix or "url", value)]
    rows: list[tuple[str, Any]] = []
    for name, inner in value.items():
        label = f"{prefix}.{name}" if prefix else name
        rows += _flat(inner, label) if isinstance(inner, dict) and inner else [(label, inner if inner != {} else "-")]
    return rows
