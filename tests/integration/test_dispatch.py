"""Journal, dispatcher and broker over a real Redis, with a worker of a few lines: what a host lives through."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_client

from producer import message, receipt
from producer.broker import KombuPublisher
from producer.dispatcher import Dispatcher
from producer.journal import Journal
from producer.journal import line as lines
from producer.receipt import Receipt, State
from producer.receipt_source import RedisReceipts
from tests.redis_server import RedisServer, redis_server
from tests.unit.journal.support import event

KEY = message.Key(id="host", secret=b"k" * 32)


class Worker:
    """Takes messages off the queues as kombu put them there, checks them, and answers that they are stored."""

    def __init__(self, server: RedisServer) -> None:
        self.client = redis_client.Redis.from_url(server.url, socket_timeout=5)
        self.stored: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                taken = self.client.brpop([message.QUEUE, message.BACKLOG_QUEUE], timeout=0.2)
                if taken is not None:
                    self._answer(json.loads(taken[1]))
            except redis_client.RedisError:
                self._stop.wait(0.05)

    def _answer(self, envelope: dict[str, object]) -> None:
        _, kwargs, _ = json.loads(base64.b64decode(str(envelope["body"])))
        message.verify(kwargs, envelope["headers"], {KEY.id: KEY.secret}.get)  # type: ignore[arg-type]
        for item in kwargs["batch"]:
            line = lines.parse(item["line"])
            self.stored.append(line.id)
            made = Receipt(line_hash=line.hash, id=line.id, state=State.STORED)
            text = receipt.encode(made, journal_id=item["journalId"], key=KEY)
            self.client.rpush(receipt.list_name(item["journalId"]), text)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self.client.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(
        tmp_path / "journal", max_bytes=1 << 26, reserve_bytes=1 << 20, segment_max_bytes=1 << 20
    ) as opened:
        yield opened


@pytest.fixture
def dispatcher(redis: RedisServer, journal: Journal) -> Iterator[Dispatcher]:
    made = Dispatcher(
        journal,
        KombuPublisher(redis.broker_url, connect_timeout_s=0.2, socket_timeout_s=0.2),
        RedisReceipts(redis.url, broker_url=redis.broker_url, connect_timeout_s=0.2, socket_timeout_s=0.2),
        key=KEY,
        republish_after_s=1.0,
        poll_interval_s=0.02,
    )
    yield made
    assert made.close(10)


@pytest.fixture
def worker(redis: RedisServer) -> Iterator[Worker]:
    made = Worker(redis)
    yield made
    made.close()


def capture(journal: Journal, count: int, *, start: int = 0) -> set[str]:
    return {journal.append_event(event(start + number)).id for number in range(count)}


def test_captured_events_are_stored_once_and_their_lines_retire(
    journal: Journal, dispatcher: Dispatcher, worker: Worker
) -> None:
    backlog = capture(journal, 150)
    dispatcher.start()
    fresh = capture(journal, 50, start=1000)
    assert dispatcher.flush(20)
    assert sorted(worker.stored) == sorted(backlog | fresh)
    status = dispatcher.status()
    assert (status.pending, status.in_flight, status.receipts["stored"]) == (0, 0, 200)
    assert journal.status().settled == 200


def test_a_frozen_broker_does_not_slow_capture_and_everything_is_stored_when_it_thaws(
    redis: RedisServer, journal: Journal, dispatcher: Dispatcher, worker: Worker
) -> None:
    dispatcher.start()
    assert dispatcher.flush(20)
    redis.freeze()
    slowest, captured = 0.0, set()
    for number in range(100):
        started = time.monotonic()
        captured |= {journal.append_event(event(number)).id}
        slowest = max(slowest, time.monotonic() - started)
    assert slowest < 0.5, "ten times the 50 ms of the benchmark"
    assert not dispatcher.flush(0.5)
    redis.thaw()
    assert dispatcher.flush(40)
    assert set(worker.stored) == captured


def test_a_redis_that_forgot_everything_costs_nothing(
    redis: RedisServer, journal: Journal, dispatcher: Dispatcher
) -> None:
    captured = capture(journal, 120)
    dispatcher.start()
    assert not dispatcher.flush(0.7)
    client = redis_client.Redis.from_url(redis.url)
    assert client.llen(message.BACKLOG_QUEUE) > 0
    client.flushall()
    client.close()
    worker = Worker(redis)
    try:
        assert dispatcher.flush(40)
    finally:
        worker.close()
    assert set(worker.stored) == captured


def test_a_broker_killed_and_started_again_is_found(
    redis: RedisServer, journal: Journal, dispatcher: Dispatcher, worker: Worker
) -> None:
    dispatcher.start()
    captured = capture(journal, 20)
    assert dispatcher.flush(20)
    for round_ in range(3):
        redis.kill()
        captured |= capture(journal, 20, start=100 * (round_ + 1))
        assert not dispatcher.flush(0.2)
        redis.start()
        assert dispatcher.flush(40)
    assert set(worker.stored) == captured
