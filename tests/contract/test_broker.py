"""What `producer.broker` sends and takes, against a real Redis and a real Celery worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis as redis_client

from producer import errors, message, receipt
from producer.broker import KombuPublisher, queues
from producer.dispatcher import Publication
from producer.receipt_source import RedisReceipts
from tests.contract.foreign_worker import SEEN
from tests.redis_server import RedisServer, redis_server

KEY = message.Key(id="host-1", secret=b"s" * 32)
REPOSITORY = Path(__file__).parents[2]
LINE = '{"v":1,"kind":"event","id":"é","sum":"0"}'


def publication(task_id: str, *, queue: str = message.QUEUE, count: int = 1) -> Publication:
    kwargs = message.arguments([message.Item(line=LINE, journal_id="ab", unsure=True, deaths=2)] * count)
    return Publication(task_id=task_id, queue=queue, kwargs=kwargs, headers=message.sign(kwargs, KEY), count=count)


def wait_until(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        threading.Event().wait(0.01)


@pytest.fixture(params=["unix socket", "TCP"])
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", unixsocket=request.param == "unix socket") as server:
        yield server


@pytest.fixture
def publisher(redis: RedisServer) -> Iterator[KombuPublisher]:
    made = KombuPublisher(redis.broker_url, connect_timeout_s=0.2, socket_timeout_s=0.2)
    yield made
    made.close()


@pytest.fixture
def source(redis: RedisServer) -> Iterator[RedisReceipts]:
    made = RedisReceipts(redis.url, broker_url=redis.broker_url, connect_timeout_s=0.2, socket_timeout_s=0.2)
    yield made
    made.close()


@pytest.fixture
def client(redis: RedisServer) -> Iterator[redis_client.Redis]:
    made = redis_client.Redis.from_url(redis.url)
    yield made
    made.close()


class Worker:
    """A real worker process and what its task saw."""

    def __init__(self, server: RedisServer, log: Path) -> None:
        self.publisher = KombuPublisher(server.broker_url)
        self.client = redis_client.Redis.from_url(server.url)
        command = [sys.executable, "-m", "tests.contract.foreign_worker", server.broker_url, server.url]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output)

    def seen(self, count: int) -> list[dict[str, Any]]:
        """The next so many deliveries."""
        wait_until(lambda: self.client.llen(SEEN) >= count)
        found = [json.loads(text) for text in self.client.lrange(SEEN, 0, -1)]
        assert len(found) == count
        self.client.delete(SEEN)
        return found

    def close(self) -> None:
        self.publisher.close()
        self.client.close()
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module", params=["unix socket", "TCP"])
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    directory = tmp_path_factory.mktemp("worker")
    with redis_server(directory / "redis", unixsocket=request.param == "unix socket") as server:
        started = Worker(server, directory / "worker.log")
        yield started
        started.close()


def test_a_celery_worker_receives_what_was_published(worker: Worker) -> None:
    sent = publication("e" * 64)
    worker.publisher.publish([sent])
    deliveries = worker.seen(1)
    (got,) = deliveries
    assert got["id"] == "e" * 64
    assert got["task"] == message.TASK_NAME
    assert got["args"] == []
    assert got["kwargs"] == sent.kwargs
    assert got["retries"] == 0
    assert got["ignore_result"] is True
    assert got["queue"] == message.QUEUE
    assert not got["redelivered"]


def test_a_worker_sees_our_headers_in_the_request_and_can_verify_them(worker: Worker) -> None:
    worker.publisher.publish([publication("e" * 64)])
    deliveries = worker.seen(1)
    (got,) = deliveries
    assert set(got["headers"]) == {message.HEADER_KEY_ID, message.HEADER_SIGNATURE}
    assert got["gotten"] == got["attribute"] == got["headers"][message.HEADER_SIGNATURE]
    assert message.verify(got["kwargs"], got["headers"], {KEY.id: KEY.secret}.get) == KEY.id


def test_a_worker_sees_masks_instead_of_arguments(worker: Worker) -> None:
    worker.publisher.publish([publication("chunk-1", queue=message.BACKLOG_QUEUE, count=3)])
    deliveries = worker.seen(1)
    (got,) = deliveries
    assert (got["argsrepr"], got["kwargsrepr"]) == ("()", "<3 lines>")
    assert got["queue"] == message.BACKLOG_QUEUE


def test_a_retry_keeps_our_headers_as_they_were_and_forgets_the_masks(worker: Worker) -> None:
    worker.publisher.publish([publication("again")])
    deliveries = worker.seen(2)
    first, second = deliveries
    assert second["headers"] == first["headers"]
    assert second["kwargs"]["tries"] == 1
    with pytest.raises(errors.SignatureRefused, match="wrong_signature"):
        message.verify(second["kwargs"], second["headers"], {KEY.id: KEY.secret}.get)
    assert second["kwargsrepr"] != "<1 line>"


def test_many_messages_go_in_one_call_and_all_arrive(worker: Worker) -> None:
    worker.publisher.publish([publication(f"task-{number}") for number in range(250)])
    deliveries = worker.seen(250)
    assert {got["id"] for got in deliveries} == {f"task-{number}" for number in range(250)}


def test_the_queue_length_counts_what_waits_in_both_queues(publisher: KombuPublisher, source: RedisReceipts) -> None:
    assert source.queue_length() == 0
    publisher.publish([publication("1"), publication("2"), publication("3", queue=message.BACKLOG_QUEUE)])
    assert source.queue_length() == 3


def test_publishing_leaves_the_two_queues_and_no_other_key(
    publisher: KombuPublisher, client: redis_client.Redis
) -> None:
    publisher.publish([publication("1"), publication("2", queue=message.BACKLOG_QUEUE)])
    assert set(client.keys("*")) == {message.QUEUE.encode(), message.BACKLOG_QUEUE.encode()}


def test_receipts_are_popped_the_oldest_first(source: RedisReceipts, client: redis_client.Redis) -> None:
    client.rpush(receipt.list_name("ab"), b"1", b"2", b"3")
    assert source.pop("ab", 2) == [b"1", b"2"]
    assert source.pop("ab", 2) == [b"3"]
    assert source.pop("ab", 2) == []


def test_a_broker_that_is_gone_is_an_error_of_ours_and_found_again(
    redis: RedisServer, publisher: KombuPublisher, source: RedisReceipts
) -> None:
    publisher.publish([publication("1")])
    redis.kill()
    for _ in range(2):
        with pytest.raises(errors.BrokerUnavailable):
            publisher.publish([publication("2")])
        with pytest.raises(errors.RedisUnavailable):
            source.pop("ab", 1)
        with pytest.raises(errors.RedisUnavailable):
            source.queue_length()
    redis.start()
    publisher.publish([publication("3")])
    assert source.queue_length() == 2


def test_a_frozen_broker_costs_a_bounded_time(
    redis: RedisServer, publisher: KombuPublisher, source: RedisReceipts
) -> None:
    publisher.publish([publication("1")])
    redis.freeze()
    try:
        for _ in range(2):
            started = time.monotonic()
            with pytest.raises(errors.BrokerUnavailable):
                publisher.publish([publication("2")])
            with pytest.raises(errors.RedisUnavailable):
                source.pop("ab", 1)
            assert time.monotonic() - started < 1.0
    finally:
        redis.thaw()


def test_errors_quote_nothing_of_a_message(redis: RedisServer, publisher: KombuPublisher) -> None:
    redis.kill()
    with pytest.raises(errors.BrokerUnavailable) as caught:
        publisher.publish([publication("secret-id")])
    assert "secret-id" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_forked_child_publishes_over_a_connection_of_its_own(
    publisher: KombuPublisher, source: RedisReceipts
) -> None:
    publisher.publish([publication("parent")])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            publisher.publish([publication("child")])
            status = 0 if source.queue_length() == 2 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    publisher.publish([publication("parent again")])
    assert source.queue_length() == 3


def test_a_password_is_used(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", unixsocket=False, password="p" * 20) as server:
        publisher = KombuPublisher(server.broker_url)
        source = RedisReceipts(server.url, broker_url=server.broker_url)
        stranger = KombuPublisher(server.broker_url.replace("p" * 20, "wrong"))
        publisher.publish([publication("1")])
        assert source.queue_length() == 1
        with pytest.raises(errors.BrokerUnavailable):
            stranger.publish([publication("2")])
        for opened in (publisher, source, stranger):
            opened.close()


def test_queues_on_rabbitmq_are_quorum_queues() -> None:
    assert {queue.name for queue in queues("amqp://host")} == {message.QUEUE, message.BACKLOG_QUEUE}
    assert all(queue.queue_arguments == {"x-queue-type": "quorum"} for queue in queues("amqp://host"))
    assert all(isinstance(queue, kombu.Queue) and not queue.queue_arguments for queue in queues("redis://host"))
