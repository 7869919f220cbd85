"""The count sees what it is there to see: each kind of wrong end, made by hand, is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from producer import capture
from producer.convergence.delivery import Delivery
from producer.convergence.driver import settle_all
from producer.journal import Journal
from producer.journal import line as lines
from producer.recall.where import Session
from producer.receipt import Receipt, State
from producer.store.sqlite import SqliteStore
from tests import worker_messages as make
from tests.faults.count import Count, JournalWatch, count, promises

SESSION = Session(runtime="custom", external_session_id="session-1").key(make.SCOPE)


class Bench:
    """A journal and a store; events go through both as a worker would settle them."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "store.sqlite"
        self.store = SqliteStore(self.file)
        self.journal = Journal.open(
            directory / "journal", max_bytes=1 << 24, reserve_bytes=1 << 12, segment_max_bytes=1 << 20
        )
        self.promised: list[dict[str, Any]] = []

    def captured(self, event: dict[str, Any], kind: str = "turn") -> lines.Line:
        line = self.journal.append_event(event, session_key=SESSION)
        self.promised.append({"kind": kind, "id": line.id, "target": event.get("supersedesFactId"), "ms": 1.0})
        return line

    def ordered(self, order: dict[str, Any]) -> lines.Line:
        line = self.journal.append_order(order)
        self.promised.append({"kind": order["what"], "id": line.id, "target": order["target"], "ms": 1.0})
        return line

    def settled(self, *found: lines.Line) -> None:
        for line in found:
            kind = "event" if line.kind == "event" else "order"
            one = Delivery(
                line_hash=line.hash,
                id=line.id,
                kind=line.kind,
                event=line.body[kind],
                appended_at=line.appended_at,
                line_key=line.body.get("lineKey"),
                session_key=line.body.get("sessionKey"),
            )
            (result,) = settle_all(self.store, [one], recent=None)
            self.receipted(line, result.state)

    def receipted(self, line: lines.Line, state: State) -> None:
        self.journal.append_receipts([Receipt(line_hash=line.hash, id=line.id, state=state)])

    def count(self) -> Count:
        self.journal.close()
        self.store.close()
        watch = JournalWatch(Path(self.journal.directory))
        try:
            return count(self.promised, [watch], self.file)
        finally:
            watch.close()


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.journal.close()
    made.store.close()


def test_what_was_stored_forgotten_and_dead_is_neither_lost_nor_doubled(bench):
    stored, forgotten, dead = (bench.captured(make.episode(number)) for number in (1, 2, 3))
    order = capture.build_forget_order(scope=make.SCOPE, runtime="custom", at=make.AT, target=forgotten.id)
    bench.settled(stored, forgotten, bench.ordered(order))
    bench.receipted(dead, State.DEAD)
    made = bench.count()
    assert (made.lost, made.doubled, made.problems) == ([], [], [])
    assert (made.events, made.stored, made.forgotten, made.dead) == (4, 2, 1, 1)


def test_an_acknowledged_event_that_is_nowhere_is_lost_also_when_its_receipt_says_stored(bench):
    line = bench.captured(make.episode(1))
    bench.receipted(line, State.STORED)
    assert bench.count().lost == [line.id]


def test_an_order_without_its_mark_is_lost(bench):
    line = bench.ordered(
        capture.build_retract_order(scope=make.SCOPE, runtime="custom", at=make.AT, target=make.fact()["factId"])
    )
    bench.receipted(line, State.STORED)
    assert bench.count().lost == [line.id]


def test_an_event_that_is_there_twice_is_doubled(bench):
    line = bench.captured(make.episode(1))
    bench.settled(line)
    (record,) = bench.store.find("EPISODE", {}).records
    bench.store.create("EPISODE", [dict(record.properties)])
    made = bench.count()
    assert made.doubled == [line.id]
    assert "1 episodes are not in exactly one session" in made.problems


def test_a_line_without_a_receipt_is_pending(bench):
    line = bench.captured(make.episode(1))
    bench.settled(line)
    bench.captured(make.episode(2))
    assert any("1 lines are pending" in problem for problem in bench.count().problems)


def test_a_fact_with_the_wrong_verdict_is_told(bench):
    first = bench.captured(make.fact(), "fact")
    second = bench.captured(make.fact("another", source_event_id="write-2", supersedes_fact_id=first.id), "fact")
    bench.settled(first, second)
    (old,) = bench.store.find("MEMORY_FACT", {"factId": first.id}).records
    bench.store.upsert("MEMORY_FACT", [{**old.properties, "active": True}], ["factId", "contentHash"])
    assert "1 facts have the wrong verdict" in bench.count().problems


def test_a_forgotten_event_that_came_back_is_told(bench):
    line = bench.captured(make.episode(1))
    order = bench.ordered(capture.build_forget_order(scope=make.SCOPE, runtime="custom", at=make.AT, target=line.id))
    bench.settled(line)
    (record,) = bench.store.find("EPISODE", {}).records
    bench.settled(order)
    bench.store.create("EPISODE", [dict(record.properties)])
    assert "1 forgotten ids are there" in bench.count().problems


def test_a_doubled_session_is_told(bench):
    line = bench.captured(make.episode(1))
    bench.settled(line)
    (session,) = bench.store.find("SESSION", {"sessionKey": SESSION}).records
    bench.store.create("SESSION", [dict(session.properties)])
    assert "1 sessions are doubled" in bench.count().problems


def test_a_promise_counts_when_its_line_is_whole(tmp_path):
    file = tmp_path / "promises"
    file.write_text('{"kind":"turn","id":"a"}\n{"kind":"turn","id":"b')
    assert promises([file, tmp_path / "none"]) == [{"kind": "turn", "id": "a"}]
