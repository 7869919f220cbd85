"""The status report as Prometheus text, for `memory-tasks metrics` and a node exporter's textfile directory.

    memory_up{part}                            1 when journal, redis or agent answered; the others are told all the same
    memory_deliveries_total{outcome}           what workers counted: stored, duplicates, dead, deferred, retried, …
    memory_dead_total{reason}                  the same by code, as in `memory_tasks.counts`
    memory_deferred_total{reason}
    memory_failed_attempts_total{reason}
    memory_ended_after_attempts_total{attempts}  lines that took more than one attempt
    memory_last_error_timestamp_seconds{reason}  the newest failed attempt, by its code
    memory_counts_since_timestamp_seconds      Redis counts since then: what was before it has lost
    memory_last_stored_age_seconds
    memory_refused_messages_total{reason}
    memory_dead_letters, memory_queue_messages{queue}, memory_unacknowledged_messages
    memory_journal_<field>                     of the journal on this host
    memory_dispatcher_<field>, memory_dispatcher_receipts_total{state}   of the agent on this host
    memory_turns_total{host,outcome}           seen, captured, refused

Labels hold codes and names of ours, never text, an id or a secret; what is no code becomes `other`. Counters fall to
zero when Redis forgets or a process begins anew, which `rate` and `increase` understand; some of the dispatcher's
numbers are counters too, and end in `_total`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from producer import errors

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["text_of"]

_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,160}")
_BEFORE_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BY_CODE = {
    "dead": ("memory_dead", "reason", "Lines refused for good, by code."),
    "deferred": ("memory_deferred", "reason", "Lines given back to their journals, by code."),
    "failed": ("memory_failed_attempts", "reason", "Attempts that failed, by code."),
    "attempts": ("memory_ended_after_attempts", "attempts", "Lines that ended at this attempt, from the second."),
}
_GROWING = frozenset(  # of the dispatcher's numbers; the others are as they are now
    [
        "published",
        "republished",
        "unmarked",
        "checked",
        "failed_rounds",
        "broker_failures",
        "redis_failures",
        "receipts_refused",
        "receipts_unknown",
        "receipts_unjournaled",
        "unreadable",
        "segments_removed",
        "not_quarantined",
    ]
)


def text_of(report: Mapping[str, Any]) -> str:
    """The exposition of what `status.gather` reports. Raises `errors.Unsupported` without prometheus-client."""
    try:
        import prometheus_client
    except ImportError:
        raise errors.Unsupported("metrics need prometheus-client: install the package with [worker]") from None
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(_Report(report))
    return prometheus_client.generate_latest(registry).decode("utf-8")


class _Report:
    """A collector of one report."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        parts = ("journal", "redis", "agent")
        up = [((part,), int("unreachable" not in self._report[part])) for part in parts]
        yield _gauge("memory_up", "Whether this part of the status answered.", up, "part")
        yield from _of_redis(self._report["redis"])
        yield from _of_fields("memory_journal", "The journal on this host", self._report["journal"])
        yield from _of_dispatcher(self._report["agent"].get("dispatcher") or {})
        turns = [
            ((host, outcome), number)
            for host, outcomes in self._report["turns"].items()
            for outcome, number in outcomes.items()
        ]
        yield _counter("memory_turns", "What became of turns on this host.", turns, "host", "outcome")


def _of_redis(redis: Mapping[str, Any]) -> Iterator[Metric]:
    counted: Mapping[str, int] = redis.get("counts", {})
    plain = [((name,), number) for name, number in counted.items() if ":" not in name]
    yield _counter("memory_deliveries", "What workers counted; see memory_tasks.counts.", plain, "outcome")
    for prefix, (name, label, said) in _BY_CODE.items():
        found = [
            ((code.removeprefix(f"{prefix}:"),), number)
            for code, number in counted.items()
            if code.startswith(f"{prefix}:")
        ]
        yield _counter(name, said, found, label)
    refused = [((reason,), number) for reason, number in redis.get("refusedMessages", {}).items()]
    yield _counter("memory_refused_messages", "Messages that no tenant answers for.", refused, "reason")
    last = [((one["error"],), one["atMs"] / 1000) for one in redis.get("troubles", ())[:1]]
    yield _gauge("memory_last_error_timestamp_seconds", "When an attempt failed last, and its code.", last, "reason")
    since = redis.get("countsSince")
    for name, said, value in (
        ("memory_counts_since_timestamp_seconds", "Since when Redis counts.", _unix_s(since) if since else None),
        ("memory_last_stored_age_seconds", "How long ago a line was stored.", redis.get("lastStoredAgoS")),
        ("memory_dead_letters", "Dead letters listed in Redis.", redis.get("deadLetters")),
        ("memory_unacknowledged_messages", "Messages that workers have.", redis.get("unacknowledged")),
    ):
        if value is not None:
            yield _gauge(name, said, [((), value)])
    queues = redis.get("queues", {})
    waiting = [((name,), number) for name, number in queues.items() if "unreachable" not in queues]
    yield _gauge("memory_queue_messages", "Messages waiting in the broker.", waiting, "queue")


def _of_dispatcher(dispatcher: Mapping[str, Any]) -> Iterator[Metric]:
    receipts = [((state,), number) for state, number in dispatcher.get("receipts", {}).items()]
    yield _counter("memory_dispatcher_receipts", "Receipts that were journaled, by state.", receipts, "state")
    yield from _of_fields("memory_dispatcher", "The dispatcher of the agent on this host", dispatcher)


def _of_fields(prefix: str, said: str, values: Mapping[str, Any]) -> Iterator[Metric]:
    """One metric for each number."""
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            field = _BEFORE_CAPITAL.sub("_", name).lower()
            make = _counter if prefix == "memory_dispatcher" and field in _GROWING else _gauge
            yield make(f"{prefix}_{field}", f"{said}: {field}, as in `memory-tasks status`.", [((), value)])


_Samples = Iterable[tuple[tuple[str, ...], float]]


def _counter(name: str, said: str, samples: _Samples, *labels: str) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, said, labels=labels), samples)


def _gauge(name: str, said: str, samples: _Samples, *labels: str) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, said, labels=labels), samples)


def _filled(family: Any, samples: _Samples) -> Metric:
    sums: dict[tuple[str, ...], float] = {}  # several that are no codes are one
    for labels, value in samples:
        named = tuple(label if _CODE.fullmatch(label) else "other" for label in labels)
        sums[named] = sums.get(named, 0) + value
    for named, value in sums.items():
        family.add_metric(named, value)
    return family


def _unix_s(iso: str) -> float:
    return datetime.datetime.fromisoformat(iso).timestamp()
