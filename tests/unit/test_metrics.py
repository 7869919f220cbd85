"""What `memory-tasks metrics` says: every number of the status, and nothing private."""

from __future__ import annotations

import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from memory_tasks import metrics
from producer import errors

REPORT = {
    "journal": {"path": "/home/ada/private", "journalId": "a" * 32, "pending": 3, "maxBytes": 100, "unreachable_": 1},
    "turns": {"python": {"seen": 4, "captured": 3, "refused.invalid": 1}},
    "redis": {
        "counts": {"stored": 5, "dead": 2, "dead:poison": 1, "dead:contract:text:too_long": 1, "attempts:4": 1},
        "countsSince": "2026-12-02T01:00:00.500Z",
        "refusedMessages": {"unknown_key": 7},
        "lastStoredAgoS": 1.5,
        "deadLetters": 2,
        "troubles": [
            {"id": "b" * 64, "lineHash": "c" * 64, "attempts": 4, "error": "store_throttled:429", "atMs": 1_500},
            {"id": "b" * 64, "lineHash": "c" * 64, "attempts": 1, "error": "older", "atMs": 500},
        ],
        "queues": {"memory": 8, "memory.backlog": 9},
        "unacknowledged": 1,
    },
    "agent": {
        "pid": 5,
        "dispatcher": {
            "role": "drainer",
            "inFlight": 6,
            "published": 10,
            "receipts": {"stored": 4},
            "lastStoredS": None,
        },
    },
    "store": "sqlite:////home/ada/private/store",
}


def samples(report: dict[str, object]) -> dict[tuple[str, ...], float]:
    found = {}
    for family in text_string_to_metric_families(metrics.text_of(report)):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


def test_every_number_of_the_status_is_there_with_its_code() -> None:
    assert samples(REPORT) == {
        ("memory_up", "journal"): 1,
        ("memory_up", "redis"): 1,
        ("memory_up", "agent"): 1,
        ("memory_deliveries_total", "stored"): 5,
        ("memory_deliveries_total", "dead"): 2,
        ("memory_dead_total", "poison"): 1,
        ("memory_dead_total", "contract:text:too_long"): 1,
        ("memory_ended_after_attempts_total", "4"): 1,
        ("memory_refused_messages_total", "unknown_key"): 7,
        ("memory_last_error_timestamp_seconds", "store_throttled:429"): 1.5,
        ("memory_counts_since_timestamp_seconds",): 1_796_173_200.5,
        ("memory_last_stored_age_seconds",): 1.5,
        ("memory_dead_letters",): 2,
        ("memory_unacknowledged_messages",): 1,
        ("memory_queue_messages", "memory"): 8,
        ("memory_queue_messages", "memory.backlog"): 9,
        ("memory_journal_pending",): 3,
        ("memory_journal_max_bytes",): 100,
        ("memory_journal_unreachable_",): 1,
        ("memory_dispatcher_in_flight",): 6,
        ("memory_dispatcher_published_total",): 10,
        ("memory_dispatcher_receipts_total", "stored"): 4,
        ("memory_turns_total", "python", "seen"): 4,
        ("memory_turns_total", "python", "captured"): 3,
        ("memory_turns_total", "python", "refused.invalid"): 1,
    }


def test_no_path_no_id_and_no_text_is_told() -> None:
    planted = "my secret words"
    report = {**REPORT, "turns": {planted: {"seen": 1}, planted * 2: {"seen": 2}}}
    text = metrics.text_of(report)
    for private in (planted, "ada", "a" * 32, "b" * 64, "c" * 64):
        assert private not in text
    assert samples(report)[("memory_turns_total", "other", "seen")] == 3


def test_a_part_that_does_not_answer_hides_no_other() -> None:
    found = samples({**REPORT, "redis": {"unreachable": "why"}, "agent": {"unreachable": "why"}})
    assert (found[("memory_up", "redis")], found[("memory_up", "agent")]) == (0, 0)
    assert found[("memory_journal_pending",)] == 3
    assert not any(name[0].startswith("memory_deliveries") for name in found)
    found = samples({**REPORT, "redis": {**REPORT["redis"], "queues": {"unreachable": "why"}}})
    assert ("memory_queue_messages", "unreachable") not in found


def test_without_prometheus_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(errors.Unsupported, match="worker"):
        metrics.text_of(REPORT)
