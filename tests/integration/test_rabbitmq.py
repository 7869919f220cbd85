"""A real Celery worker on a real RabbitMQ: receipts in Redis, the store in SQLite. One node for all of these tests.

The slow ones end, freeze and refuse things; what needs a load and a count at the end is in tests/faults/on_rabbitmq.py.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from memory_tasks import app as app_module
from memory_tasks import counts, doctor, lease, status
from memory_tasks import settings as settings_module
from producer import broker, errors, message, rabbitmq, receipt
from producer.receipt import State
from producer.store.sqlite import SqliteStore
from tests import worker_messages as make
from tests.integration.conftest import SHORT_WAITS
from tests.integration.local_nodes import ROOT, WorkerContainer
from tests.rabbitmq_server import RabbitServer, rabbitmq_server
from tests.redis_server import RedisServer, redis_server

DEADLINE_S = 40.0


def wait_for(condition: Callable[[], bool], what: str, *, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    with rabbitmq_server(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def rabbit(node: RabbitServer) -> RabbitServer:
    """The node with our queues empty; it runs."""
    if not node.running:
        node.start()
    with node.connection() as connection:
        for queue in rabbitmq.queues():
            queue(connection.default_channel).declare()
            connection.default_channel.queue_purge(queue.name)
    return node


def forget_queues(node: RabbitServer) -> None:
    with node.connection() as connection:
        for queue in rabbitmq.queues():
            connection.default_channel.queue_delete(queue.name)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


class Bench:
    """The test's hands on everything: worker, publisher, receipts, store, faults."""

    def __init__(self, tmp_path: Path, broker_url: str, redis: RedisServer) -> None:
        self.faults = tmp_path / "faults"
        self.faults.mkdir()
        self._directory = tmp_path
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.environ = {
            **keep,
            **SHORT_WAITS,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PYTHONUNBUFFERED": "1",
            "MEMORY_STATE_DIR": str(tmp_path / "state"),
            "MEMORY_BROKER_URL": broker_url,
            "MEMORY_REDIS_URL": redis.url,
            "MEMORY_CONCURRENCY": "4",
            "TEST_FAULTS_DIR": str(self.faults),
        }
        self.settings = settings_module.Settings.load(self.environ)
        self.key = self.settings.producer.key
        self.redis = redis_py.Redis.from_url(redis.url)
        self.publisher = broker.KombuPublisher(broker_url)
        self.store = SqliteStore(self.settings.producer.store_url.removeprefix("sqlite:///"))
        self.workers: list[WorkerContainer] = []
        self.taken: list[receipt.Receipt] = []

    def worker(self, *, wait: bool = True, **changes: str) -> WorkerContainer:
        made = WorkerContainer(
            f"worker{len(self.workers)}",
            app="tests.integration.faulty_worker",
            directory=self._directory,
            environment={**self.environ, **changes},
        )
        self.workers.append(made)
        made.start(wait=wait)
        return made

    def publish(self, *items: message.Item, task_id: str, queue: str = message.QUEUE, **more: Any) -> None:
        self.publisher.publish([make.publication(items, self.key, task_id=task_id, queue=queue, **more)])

    def publish_event(self, number: int = 1, **changes: Any) -> dict[str, Any]:
        event = make.episode(number)
        self.publish(make.item(make.line(event), **changes), task_id=event["eventId"])
        return event

    def publishes(self, number: int) -> bool:
        """Unsure, so that it comes back over the delayed delivery."""
        try:
            self.publish_event(number, unsure=True)
        except errors.BrokerUnavailable:
            return False
        return True

    def receipts(self, count: int) -> list[receipt.Receipt]:
        """All receipts so far, once there are `count`."""

        def enough() -> bool:
            for entry in self.redis.lpop(receipt.list_name(make.JOURNAL), 1000) or []:
                self.taken.append(
                    receipt.decode(entry, journal_id=make.JOURNAL, secret_of={self.key.id: self.key.secret}.get)
                )
            return len(self.taken) >= count

        wait_for(enough, f"{count} receipts; the worker's log: {self.logs()}")
        return self.taken

    def logs(self) -> str:
        return "\n".join(worker.logs()[-4000:] for worker in self.workers)

    def records(self, event: dict[str, Any]) -> int:
        return self.store.find("EPISODE", {"eventId": event["eventId"]}).total

    def close(self) -> None:
        for worker in self.workers:
            worker.teardown()
        self.publisher.close()
        self.redis.close()
        self.store.close()


@pytest.fixture
def bench(tmp_path: Path, rabbit: RabbitServer, redis: RedisServer) -> Iterator[Bench]:
    made = Bench(tmp_path, rabbit.broker_url, redis)
    yield made
    made.close()


def unacknowledged(rabbit: RabbitServer) -> dict[str, tuple[int, int]]:
    """Of each queue that is not empty: how many messages wait in it, and how many consumers have."""
    rows = rabbit.control("list_queues", "name", "messages_ready", "messages_unacknowledged").splitlines()[1:]
    told = {name: (int(ready), int(taken)) for name, ready, taken in (row.split("\t") for row in rows)}
    return {name: numbers for name, numbers in told.items() if any(numbers)}


def test_fresh_events_and_a_backlog_are_stored_and_events_of_both_reach_flower(bench, rabbit):
    worker = bench.worker()
    event = make.episode(1)
    seen: list[dict[str, Any]] = []
    client = app_module.make_app(bench.settings, lambda: pytest.fail("a client handles no message"))
    with client.connection_for_read() as connection:
        receiver = client.events.Receiver(connection, handlers={"*": seen.append})
        thread = threading.Thread(target=receiver.capture, kwargs={"limit": None, "timeout": None, "wakeup": True})
        thread.start()
        try:
            wait_for(lambda: bool(seen), "events")
            bench.publish(make.item(make.line(event)), task_id=event["eventId"])
            many = [make.item(make.line(make.episode(number))) for number in range(2, 12)]
            bench.publish(*many, task_id="chunk-1", queue=message.BACKLOG_QUEUE)
            assert {got.state for got in bench.receipts(11)} == {State.STORED}
            ends = lambda: {one["uuid"] for one in seen if one["type"] == "task-succeeded"}  # noqa: E731
            wait_for(lambda: ends() == {event["eventId"], "chunk-1"}, "both tasks end")
        finally:
            receiver.should_stop = True  # heard within a second
            thread.join()
    client.close()
    assert bench.records(event) == 1
    assert counts.read(bench.redis, "local")["stored"] == 11
    # Heartbeats: what dies without a word is left after twice these seconds.
    assert "20" in rabbit.control("list_connections", "timeout").split()
    worker.kill("SIGTERM")
    assert worker.wait_exit() == 0
    assert unacknowledged(rabbit) == {}


@pytest.mark.slow
def test_expired_facts_are_removed_by_a_task_over_rabbitmq_too(bench, rabbit):
    bench.worker(MEMORY_EXPIRY_EVERY_S="0.5", MEMORY_EXPIRED_KEPT_S="0")
    events = [
        make.fact(source_event_id="lasting"),
        make.fact(source_event_id="over", valid_from="2020-01-01T00:00:00Z", valid_until="2020-01-02T00:00:00Z"),
    ]
    for event in events:
        bench.publish(make.item(make.line(event)), task_id=event["factId"])
    assert {got.state for got in bench.receipts(2)} == {State.STORED}
    facts = lambda: [record.get("factId") for record in bench.store.find("MEMORY_FACT", {}).records]  # noqa: E731
    wait_for(lambda: facts() == [events[0]["factId"]], "the other one is gone")
    assert counts.read(bench.redis, "local")["expired"] == 1


@pytest.mark.slow
def test_a_retry_waits_in_rabbitmq_and_holds_no_place_in_the_worker(bench, rabbit):
    bench.worker(MEMORY_RETRY_MAX_COUNTDOWN_S="2.9")  # less than half the visibility timeout; whole seconds are waited
    (bench.faults / "fail-find").touch()
    events = [bench.publish_event(number) for number in range(1, 7)]  # more than the worker has threads

    def all_wait() -> bool:
        waiting = unacknowledged(rabbit)
        delayed = sum(ready for name, (ready, _) in waiting.items() if name.startswith("celery_delayed"))
        return delayed == len(events) and message.QUEUE not in waiting

    wait_for(all_wait, "all retries wait, none in the worker")
    (bench.faults / "fail-find").unlink()
    # Some come back when the breaker is still open and their retries are used up: their journal keeps those.
    assert {got.state for got in bench.receipts(len(events))} <= {State.STORED, State.DEFERRED}
    assert "retry:" in bench.logs().lower()


@pytest.mark.slow
@pytest.mark.parametrize("queue", [message.QUEUE, message.BACKLOG_QUEUE])
def test_the_later_look_comes_back_over_the_queue_of_its_delivery(bench, queue):
    bench.worker()
    event = make.episode(1)
    bench.publish(make.item(make.line(event), unsure=True), task_id=event["eventId"], queue=queue)
    began = time.monotonic()
    (got,) = bench.receipts(1)
    assert got.state is State.STORED
    assert time.monotonic() - began >= 1.0  # MEMORY_STORE_LATE_S
    assert bench.records(event) == 1
    assert "look=True" in bench.logs()


def test_doctor_and_status_tell_queues_and_their_kind(bench, rabbit):
    bench.publish_event()
    found = {check.name: check for check in doctor.examine(bench.environ)}
    assert (found["broker"].level, found["broker"].found.split()[0]) == ("ok", "RabbitMQ")
    assert found[f"queue {message.QUEUE}"].found.startswith("quorum queue, 1 waiting")
    assert status.gather(bench.settings)["redis"]["queues"] == {message.QUEUE: 1, message.BACKLOG_QUEUE: 0}
    forget_queues(rabbit)
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(message.QUEUE, durable=True, auto_delete=False)
    found = {check.name: check for check in doctor.examine(bench.environ)}
    assert (found[f"queue {message.QUEUE}"].level, found[f"queue {message.BACKLOG_QUEUE}"].level) == ("fail", "note")
    for url, words in (
        (rabbit.broker_url.replace(rabbit.password, "wrong"), "refuses this user"),
        (rabbit.broker_url.removesuffix("/") + "nowhere", "no such virtual host"),
    ):
        environ = {**bench.environ, "MEMORY_BROKER_URL": url}
        found = {check.name: check for check in doctor.examine(environ)}
        assert (found["broker"].level, words in found["broker"].found) == ("fail", True)
        told = status.gather(settings_module.Settings.load(environ))["redis"]
        assert words in told["queues"]["unreachable"] and "counts" in told
    with rabbit.connection() as connection:
        connection.default_channel.queue_delete(message.QUEUE)  # the classic one


@pytest.mark.slow
def test_the_redelivery_of_a_killed_worker_is_handled_in_a_child_and_looked_at_again(bench):
    worker = bench.worker()
    (bench.faults / "hang-upsert").touch()
    event = bench.publish_event()
    wait_for(lambda: (bench.faults / "hung").exists(), "the write is committed")
    worker.kill("SIGKILL")
    (bench.faults / "hang-upsert").unlink()
    began = time.monotonic()
    bench.worker()
    (got,) = bench.receipts(1)
    assert got.state is State.STORED
    assert "redelivered=True" in bench.logs()
    assert time.monotonic() - began < DEADLINE_S / 2  # no visibility timeout: the connection's end is enough
    assert bench.records(event) == 1


@pytest.mark.slow
def test_an_event_that_kills_its_process_kills_the_worker_once_and_then_a_child(bench):
    worker = bench.worker()
    event = make.episode(1)
    (bench.faults / f"exit-{event['eventId']}").touch()
    bench.publish(make.item(make.line(event)), task_id=event["eventId"])
    wait_for(lambda: worker.status == "exited", "the worker dies, nobody had warned it")
    second = bench.worker()
    (got,) = bench.receipts(1)
    assert (got.state, got.deaths) == (State.DEFERRED, 1)
    assert second.status == "running"


@pytest.mark.slow
def test_a_worker_that_starts_before_its_rabbitmq_works_once_it_is_there(bench, rabbit):
    rabbit.stop()
    bench.worker(wait=False)
    wait_for(lambda: "Cannot connect" in bench.logs(), "the worker says so")
    rabbit.start()
    bench.publish_event()
    assert bench.receipts(1)[0].state is State.STORED


@pytest.mark.slow
def test_a_retry_that_waits_survives_the_kill_of_rabbitmq_and_of_its_worker(bench, rabbit):
    worker = bench.worker(MEMORY_RETRY_MAX_COUNTDOWN_S="2.9", MEMORY_RETRY_LIMIT="9")
    (bench.faults / "fail-find").touch()
    bench.publish_event()
    wait_for(lambda: "again=" in bench.logs() and "Retry" in bench.logs(), "a retry is published")
    worker.kill("SIGKILL")
    rabbit.kill()
    rabbit.start()
    (bench.faults / "fail-find").unlink()
    bench.worker()
    assert bench.receipts(1)[0].state is State.STORED


@pytest.mark.slow
def test_queues_that_are_deleted_under_a_worker_are_declared_again_and_consumed(bench, rabbit):
    bench.worker()
    bench.publish_event(1)
    bench.receipts(1)
    forget_queues(rabbit)
    with rabbit.connection() as connection:
        connection.default_channel.exchange_delete("celery_delayed_27")
        connection.default_channel.queue_delete("celery_delayed_0")
    wait_for(lambda: bench.publishes(2), "the publisher takes the queue as it is")
    assert {got.state for got in bench.receipts(2)} == {State.STORED}


@pytest.mark.slow
def test_an_alarm_that_blocks_publishers_stalls_no_worker_and_loses_no_retry(bench, rabbit):
    worker = bench.worker(MEMORY_REDIS_TIMEOUT_S="1", MEMORY_RETRY_LIMIT="1")
    bench.publish_event(1)
    bench.receipts(1)
    (bench.faults / "hang-upsert").touch()
    bench.publish_event(2)
    bench.publish_event(3, unsure=True)  # has a retry to publish, while it is blocked
    wait_for(lambda: (bench.faults / "hung").exists(), "both are being handled")
    rabbit.control("set_vm_memory_high_watermark", "0.0001")
    try:
        (bench.faults / "hang-upsert").unlink()
        assert bench.receipts(2)[1].state is State.STORED  # consuming and answering go on
    finally:
        rabbit.control("set_vm_memory_high_watermark", "0.4")
    wait_for(lambda: any(got.id == make.episode(3)["eventId"] for got in bench.receipts(3)), "the third is answered")
    assert worker.status == "running"


@pytest.mark.slow
def test_a_message_that_reached_the_delivery_limit_is_dropped_and_stored_when_it_is_published_again(bench, rabbit):
    rabbit.control("set_policy", "limit", "^memory", '{"delivery-limit": 1}', "--apply-to", "queues")
    try:
        (bench.faults / "hang-upsert").touch()
        bench.publish_event()
        for _ in range(2):
            worker = bench.worker()
            wait_for(lambda: (bench.faults / "hung").exists() or "redelivered" in bench.logs(), "it is delivered")
            worker.kill("SIGKILL")  # before that: while it runs it says once more that it hangs
            (bench.faults / "hung").unlink(missing_ok=True)
        wait_for(lambda: not unacknowledged(rabbit), "RabbitMQ has dropped it")
        (bench.faults / "hang-upsert").unlink()
        bench.worker()
        bench.publish_event(unsure=True)  # as its journal does, after MEMORY_REPUBLISH_AFTER_S
        assert bench.receipts(1)[0].state is State.STORED
    finally:
        rabbit.control("clear_policy", "limit")


@pytest.mark.slow
@pytest.mark.parametrize("name", [message.QUEUE, "celery_delayed_3"])
def test_a_worker_ends_when_a_queue_of_its_names_is_of_another_kind(bench, rabbit, name):
    with rabbit.connection() as connection:
        connection.default_channel.queue_delete(name)
        connection.default_channel.queue_declare(name, durable=True, auto_delete=False)
    try:
        worker = bench.worker(wait=False)
        wait_for(lambda: worker.status == "exited", "the worker ends")
        assert worker.wait_exit() != 0
        assert f"RabbitMQ has the queue {name}, but of another kind" in worker.logs()
        assert "drain and delete it" in worker.logs()
    finally:
        with rabbit.connection() as connection:
            connection.default_channel.queue_delete(name)


@pytest.mark.slow
def test_a_refused_login_is_said_and_the_worker_works_once_it_is_right(bench, rabbit):
    rabbit.control("add_vhost", "later")
    worker = bench.worker(wait=False, MEMORY_BROKER_URL=rabbit.broker_url.removesuffix("/") + "later")
    wait_for(lambda: "action=broker_refused" in worker.logs(), "the refusal")
    assert rabbit.password not in worker.logs()
    rabbit.control("set_permissions", "-p", "later", rabbit.user, ".*", ".*", ".*")
    wait_for(lambda: " ready." in worker.logs(), "the worker starts")
    assert worker.logs().count("action=broker_refused") < 10


@pytest.mark.slow
def test_workers_of_another_deployment_are_refused_by_what_stands_in_the_receipts_redis(bench):
    bench.worker()
    assert bench.redis.hkeys(lease.KEY) == [b"worker0@local"]
    stranger = bench.worker(wait=False, MEMORY_PRODUCER_KEY="another" * 5)
    wait_for(lambda: stranger.status == "exited", "the stranger ends")
    assert "accept none of the keys" in stranger.logs()
    bench.workers[0].kill("SIGTERM")
    assert bench.redis.hkeys(lease.KEY) == []


@pytest.mark.slow
def test_a_delivery_beyond_the_consumer_timeout_is_redelivered_and_stored_once(tmp_path, redis):
    times = "[{rabbit, [{consumer_timeout, 3000}, {channel_tick_interval, 1000}]}].\n"
    with rabbitmq_server(tmp_path / "rabbitmq", advanced=times) as rabbit:
        bench = Bench(tmp_path, rabbit.broker_url, redis)
        try:
            bench.worker()
            (bench.faults / "hang-upsert").touch()
            event = bench.publish_event(1)
            wait_for(lambda: "delivery acknowledgement on channel" in rabbit.log(), "RabbitMQ closes the channel")
            (bench.faults / "hang-upsert").unlink()
            # Too old for the first and its redelivery waits for the child: either answer is right.
            assert bench.receipts(1)[0].state in (State.STORED, State.DEFERRED)
            other = bench.publish_event(2)  # the worker has come back
            wait_for(lambda: bench.records(other) == 1, "the second is stored")
            assert bench.records(event) == 1
        finally:
            bench.close()


def make_certificates(directory: Path) -> tuple[Path, Path, Path]:
    """A private CA, and a certificate of it for 127.0.0.1."""
    directory.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
    openssl(*new, "-x509", "-days", "2", "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.pem", *usage)
    openssl(*new, "-subj", "/CN=rabbit", "-keyout", "rabbit.key", "-out", "rabbit.csr")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl("x509", "-req", "-in", "rabbit.csr", "-out", "rabbit.pem", *signed)
    return directory / "ca.pem", directory / "rabbit.pem", directory / "rabbit.key"


@pytest.mark.slow
def test_amqps_with_a_private_ca_works_for_all_parts_and_verifies_certificate_and_name(tmp_path, redis):
    files = make_certificates(tmp_path / "tls")
    with rabbitmq_server(tmp_path / "rabbitmq", certificate=files) as rabbit:
        login = f"{rabbit.user}:{rabbit.password}"
        trusting = f"amqps://{login}@127.0.0.1:{rabbit.tls_port}//?ssl_ca_certs={files[0]}"
        bench = Bench(tmp_path, trusting, redis)
        try:
            bench.worker()
            bench.publish_event(1)
            bench.publish_event(2, unsure=True)
            assert {got.state for got in bench.receipts(2)} == {State.STORED}
            assert rabbit.password not in bench.logs()
            found = {check.name: check.level for check in doctor.examine(bench.environ)}
            assert (found["broker"], found["workers"]) == ("ok", "ok")
            for url in (
                trusting.partition("?")[0],  # the system knows no such CA
                trusting.replace("127.0.0.1", "localhost"),  # the certificate is not for this name
            ):
                publisher = broker.KombuPublisher(url)
                with pytest.raises(errors.BrokerUnavailable, match="not trusted"):
                    publisher.publish([make.publication([], bench.key, task_id="1")])
                publisher.close()
            unchecked = broker.KombuPublisher(trusting.replace("127.0.0.1", "localhost") + "&ssl_check_hostname=false")
            unchecked.publish([make.publication([make.item(make.line(make.episode(3)))], bench.key, task_id="3")])
            unchecked.close()
            bench.receipts(3)
        finally:
            bench.close()
