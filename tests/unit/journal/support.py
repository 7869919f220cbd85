"""What the journal's tests share: journals on a crashing file system, and clocks that stand until told."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from producer.journal import Journal, compaction
from producer.journal.filesystem import FileSystem
from producer.journal.index import Index
from producer.journal.line import Line
from producer.receipt import Receipt, State

START_S = 1_796_126_400.0  # 2026-12-01T12:00:00Z
LONG_S = 1000.0  # more than the five minutes that a sent line stays


class Clock:
    """Wall and monotonic time that only move when told."""

    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def open_journal(
    fs: FileSystem, clock: Clock | None = None, directory: str = "/state/journal", **changes: Any
) -> Journal:
    clock = clock or Clock()
    options: dict[str, Any] = {
        "max_bytes": 1 << 20,
        "reserve_bytes": 0,
        "segment_max_bytes": 1 << 16,
        "sync_budget_s": 10.0,
        "fs": fs,
        "clock": clock,
        "monotonic": clock,
    }
    return Journal.open(directory, **{**options, **changes})


def event(number: int, *, length: int = 20) -> dict[str, Any]:
    id_ = hashlib.sha256(f"event {number}".encode()).hexdigest()
    return {"schemaVersion": 1, "eventType": "episode", "eventId": id_, "userText": f"{number} é\ud83d" + "x" * length}


def order(number: int) -> dict[str, Any]:
    return {
        "what": "forget",
        "target": hashlib.sha256(f"event {number}".encode()).hexdigest(),
        "nonce": f"{number:032x}",
    }


def receipt_of(line: Line, state: State = State.STORED, **fields: Any) -> Receipt:
    return Receipt(line_hash=line.hash, id=line.id, state=state, **fields)


def texts(journal: Journal, kinds: Iterable[str] = ("event", "order")) -> list[str]:
    return [located.line.text for located in journal.scan() if located.line.kind in kinds]


def seal_all(journal: Journal) -> None:
    """Seal every segment, as if an hour had passed."""
    was, journal.segment_max_age_s = journal.segment_max_age_s, -1.0
    index = Index(journal)
    index.poll()
    compaction.seal_finished(journal, index)
    journal.segment_max_age_s = was


def compact(journal: Journal, clock: Clock) -> compaction.Compacted:
    """A pass over everything that is sealed, long after anything was sent."""
    index = Index(journal, monotonic=clock)
    index.poll()
    return compaction.compact(journal, index, now_s=clock() + LONG_S, everything=True)
