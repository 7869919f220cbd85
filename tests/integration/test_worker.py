"""A real Celery worker, a real Redis and a SQLite store: from a published message to a record and its receipt."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from pytest_celery import CeleryTestSetup
from rich.console import Console

from memory_tasks import counts, dead_letters, lease, metrics, receipts, settings, status, troubles
from producer import broker, capture, config, message, receipt
from producer.receipt import State
from producer.store.sqlite import SqliteStore
from tests import worker_messages as make
from tests.integration.local_nodes import ROOT, WorkerContainer
from tests.redis_server import redis_server
from tests.rushdb_server import rushdb_server

DEADLINE_S = 30.0
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


class Bench:
    """The test's hands on everything: publish, receipts, store, events, faults."""

    def __init__(self, setup: CeleryTestSetup, environment: dict[str, str]) -> None:
        self.setup = setup
        self.settings = config.load(environment)
        self.key = self.settings.key
        self.redis = redis_py.Redis.from_url(self.settings.redis_url)
        self.publisher = broker.KombuPublisher(self.settings.broker_url)
        self.store = SqliteStore(self.settings.store_url.removeprefix("sqlite:///"))
        self.faults = Path(environment["TEST_FAULTS_DIR"])
        self.taken: list[receipt.Receipt] = []

    @property
    def container(self) -> WorkerContainer:
        return self.setup.worker.container  # type: ignore[union-attr, return-value]

    def publish(self, *items: message.Item, task_id: str, queue: str = message.QUEUE, **more: Any) -> None:
        self.publisher.publish([make.publication(items, self.key, task_id=task_id, queue=queue, **more)])

    def receipts(self, count: int) -> list[receipt.Receipt]:
        """All receipts so far, once there are `count`; each entry's signature is checked."""

        def enough() -> bool:
            for entry in self.redis.lpop(receipt.list_name(make.JOURNAL), 1000) or []:
                self.taken.append(
                    receipt.decode(entry, journal_id=make.JOURNAL, secret_of={self.key.id: self.key.secret}.get)
                )
            return len(self.taken) >= count

        wait_for(enough, self.setup)
        return self.taken

    def counts(self) -> dict[str, int]:
        return counts.read(self.redis, "local")

    def records(self, event: dict[str, Any]) -> int:
        return self.store.find("EPISODE", {"eventId": event["eventId"]}).total

    def restart(self, **changes: str) -> None:
        """The worker with other settings."""
        self.container.kill("SIGTERM")
        self.container.environment.update(changes)
        self.container.start()

    def let_time_out(self) -> None:
        """Make the visibility timeout of what a killed worker left pass now."""
        for tag in self.redis.zrange("memory:unacked:index", 0, -1):
            self.redis.zadd("memory:unacked:index", {tag: 0})

    def idle(self) -> bool:
        """Nothing queued, nothing unfinished."""
        keys = (message.QUEUE, message.BACKLOG_QUEUE, "memory:unacked:index")
        return not any(self.redis.exists(key) for key in keys)

    @contextmanager
    def watching(self) -> Iterator[list[dict[str, Any]]]:
        """Celery's events, as Flower gets them."""
        events: list[dict[str, Any]] = []
        with self.setup.app.connection() as connection:
            receiver = self.setup.app.events.Receiver(connection, handlers={"*": events.append})
            thread = threading.Thread(target=receiver.capture, kwargs={"limit": None, "timeout": None, "wakeup": True})
            thread.start()
            try:
                wait_for(lambda: bool(events), self.setup)
                yield events
            finally:
                receiver.should_stop = True  # heard within a second
                thread.join()

    def close(self) -> None:
        self.publisher.close()
        self.redis.close()
        self.store.close()


def wait_for(condition: Callable[[], bool], setup: CeleryTestSetup) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain; the worker's log: {setup.worker.logs()[-4000:]}"
        time.sleep(0.02)


@pytest.fixture
def bench(celery_setup: CeleryTestSetup, worker_environment: dict[str, str]) -> Iterator[Bench]:
    made = Bench(celery_setup, worker_environment)
    yield made
    made.close()


def test_a_published_event_becomes_one_record_and_a_signed_receipt(bench):
    event = make.episode()
    line = make.line(event)
    bench.publish(make.item(line), task_id=event["eventId"])
    (got,) = bench.receipts(1)
    assert (got.line_hash, got.id, got.state) == (line.hash, event["eventId"], State.STORED)
    assert bench.records(event) == 1
    assert bench.counts()["stored"] == 1
    wait_for(bench.idle, bench.setup)
    bench.container.kill("SIGTERM")
    assert bench.container.wait_exit() == 0


def test_the_same_message_twice_gives_one_record_two_receipts_and_a_counted_duplicate(bench):
    event = make.episode()
    bench.publish(make.item(make.line(event)), task_id=event["eventId"])
    bench.receipts(1)
    bench.publish(make.item(make.line(event)), task_id=event["eventId"])
    assert [r.state for r in bench.receipts(2)] == [State.STORED, State.STORED]
    assert bench.records(event) == 1
    counted = bench.counts()
    assert (counted["stored"], counted["duplicates"]) == (1, 1)


def test_an_outage_shows_as_celery_retries_that_keep_their_masks_and_then_defers(bench):
    event = make.episode()
    (bench.faults / "fail-find").touch()
    with bench.watching() as events:
        bench.publish(make.item(make.line(event)), task_id=event["eventId"])
        (got,) = bench.receipts(1)
        wait_for(lambda: any(e["type"] == "task-succeeded" for e in events), bench.setup)
    assert (got.state, got.reason) == (State.DEFERRED, "store_unavailable:503")
    assert got.delay_s > 0
    received = [e for e in events if e["type"] == "task-received"]
    retried = [e for e in events if e["type"] == "task-retried"]
    assert [e["retries"] for e in received] == [0, 1, 2, 3]
    assert len(retried) == 3
    assert {e["uuid"] for e in received} == {event["eventId"]}
    assert {(e["args"], e["kwargs"]) for e in received} == {("()", "<1 line>")}
    assert all("Retryable('store_unavailable:503')" in e["exception"] for e in retried)
    assert make.SECRET_WORDS not in json.dumps(events)
    assert make.SECRET_WORDS not in bench.container.logs()
    assert bench.counts()["retried"] == 3
    (bench.faults / "fail-find").unlink()
    bench.publish(make.item(make.line(event)), task_id=event["eventId"])
    assert bench.receipts(2)[-1].state is State.STORED
    assert bench.records(event) == 1


def test_a_worker_killed_between_upsert_and_receipt_leaves_one_record_and_its_receipt_comes_later(bench):
    event = make.episode()
    (bench.faults / "hang-upsert").touch()
    bench.publish(make.item(make.line(event)), task_id=event["eventId"])
    wait_for((bench.faults / "hung").exists, bench.setup)
    (active,) = bench.setup.app.control.inspect(timeout=5, limit=1).active().values()
    assert [(one["id"], one["kwargs"]) for one in active] == [(event["eventId"], "<1 line>")]
    assert bench.records(event) == 1
    bench.setup.worker.kill("SIGKILL")
    (bench.faults / "hang-upsert").unlink()
    assert not bench.redis.exists(receipt.list_name(make.JOURNAL))
    bench.container.start()
    with bench.watching() as events:
        wait_for(lambda: any(e["type"] == "task-retried" for e in events), bench.setup)
        waiting = [json.loads(entry)[0]["headers"] for entry in bench.redis.hvals("memory:unacked")]
        (got,) = bench.receipts(1)
        wait_for(lambda: any(e["type"] == "task-succeeded" for e in events), bench.setup)
    assert [(headers["argsrepr"], headers["kwargsrepr"]) for headers in waiting] == [("()", "<1 line>")]
    assert got.state is State.STORED
    assert bench.records(event) == 1
    # Redelivered, so unsure: it was made once more before the receipt.
    (retried,) = (e for e in events if e["type"] == "task-retried")
    assert "Retryable('later_look')" in retried["exception"]
    assert bench.counts()["looks"] == 1


@pytest.mark.skipif(not FAKETIME and "CI" not in os.environ, reason="libfaketime is not installed")
def test_a_later_look_of_a_worker_whose_clock_is_behind_is_not_made_too_early_by_one_that_is_ahead(bench):
    late_s = 2.0
    bench.restart(
        MEMORY_STORE_LATE_S=f"{late_s:g}",
        LD_PRELOAD=str(FAKETIME[0]),
        FAKETIME="+1h",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
        PYTHONPATH=f"{ROOT / 'tests' / 'faults' / 'faketime'}:{bench.container.environment['PYTHONPATH']}",
    )
    event = make.episode()
    arguments = message.arguments([make.item(make.line(event))], unsure_until=time.time() + late_s)
    sent_s = time.monotonic()
    bench.setup.app.send_task(
        message.TASK_NAME,
        kwargs=arguments,
        headers=message.sign(arguments, bench.key),
        queue=message.QUEUE,
        countdown=late_s,
        **message.masks(1),
    )
    assert bench.receipts(1)[0].state is State.STORED
    assert time.monotonic() - sent_s >= late_s


def test_a_message_nobody_signed_is_refused_and_counted_and_leaves_no_trace(bench):
    good, forged = make.episode(1), make.episode(2)
    stranger = message.Key(id="stranger", secret=b"s" * 40)
    liar = message.Key(id=bench.key.id, secret=b"l" * 40)
    for key in (stranger, liar):
        item = make.item(make.line(forged))
        bench.publisher.publish([make.publication([item], key, task_id=forged["eventId"])])
    bench.setup.app.send_task(message.TASK_NAME, kwargs=message.arguments([make.item(make.line(forged))]))
    bench.setup.app.send_task(message.TASK_NAME, args=(make.SECRET_WORDS,))
    bench.publish(make.item(make.line(good)), task_id=good["eventId"])
    bench.receipts(1)
    wait_for(bench.idle, bench.setup)
    assert [r.id for r in bench.receipts(1)] == [good["eventId"]]
    assert counts.read_refused(bench.redis) == {"unknown_key": 1, "wrong_signature": 1, "unsigned": 2}
    assert bench.records(forged) == 0
    assert dead_letters.total(bench.redis, "local") == 0
    assert make.SECRET_WORDS not in bench.container.logs()


def test_messages_celery_itself_cannot_use_are_dropped_without_their_content_in_the_log(bench):
    queue = {"exchange": "", "routing_key": message.QUEUE}
    bench.setup.app.send_task("memory.unknown", kwargs={"text": make.SECRET_WORDS})
    with bench.setup.app.connection() as connection, connection.Producer() as producer:
        producer.publish({"text": make.SECRET_WORDS}, serializer="json", **queue)
        producer.publish(make.SECRET_WORDS, content_type="application/json", content_encoding="utf-8", **queue)
    good = make.episode()
    bench.publish(make.item(make.line(good)), task_id=good["eventId"])
    bench.receipts(1)
    wait_for(bench.idle, bench.setup)
    assert bench.container.logs().count("its content is not shown") == 3
    assert make.SECRET_WORDS not in bench.container.logs()


def test_a_chunk_answers_each_line_for_itself_and_dead_letters_are_listed_without_text(bench):
    good = [make.episode(number) for number in range(40)]
    wrong_field = {**make.episode(90), "visibility": make.SECRET_WORDS}
    forged_id = {**make.episode(91), "userText": "another text"}
    unknown_field = {**make.episode(92), make.SECRET_WORDS.replace(" ", ""): 1}
    bad = [make.line(event) for event in (wrong_field, forged_id, unknown_field)]
    damaged = make.line(make.episode(93)).text.replace("heron", "egret")
    items = [make.item(make.line(event)) for event in good] + [make.item(line) for line in bad]
    bench.publish(*items, make.item(damaged), task_id="chunk-1", queue=message.BACKLOG_QUEUE)
    got = {r.line_hash: r for r in bench.receipts(44)}
    assert len(got) == 44
    assert all(got[make.line(event).hash].state is State.STORED for event in good)
    reasons = sorted(r.reason for r in got.values() if r.state is State.DEAD)
    assert reasons == [
        "contract:event:is_not_a_field_of_this_event",
        "contract:eventId:is_not_the_id_of_this_content",
        "contract:visibility:is_not_one_of_the_allowed_values",
        "damaged_line",
    ]
    listed = dead_letters.read(bench.redis, "local")
    assert sorted(letter.reason for letter in listed) == reasons
    raw = b"".join(bench.redis.hgetall(dead_letters.key_name("local")).values())
    assert b"heron" not in raw
    assert b"egret" not in raw
    assert bench.counts()["dead"] == 4
    lasting = {
        name.decode()
        for name in bench.redis.scan_iter("memory:*")
        if bench.redis.ttl(name) == -1 and not name.decode().startswith(receipts.KEYS_WITHOUT_TTL)
    }
    assert lasting <= {"memory:unacked", "memory:unacked:index", "memory", "memory.backlog"}


def test_a_broker_that_evicts_is_refused_at_start(tmp_path, worker_environment, celery_broker_cluster):
    with redis_server(tmp_path / "evicting", extra=["--maxmemory-policy", "allkeys-lru"]) as evicting:
        environment = {**worker_environment, "MEMORY_BROKER_URL": evicting.broker_url}
        container = WorkerContainer(
            "refused", app="memory_tasks.worker_app", directory=tmp_path, environment=environment
        )
        container.start(wait=False)
        assert container.wait_exit() != 0
        assert "set maxmemory-policy noeviction" in container.logs()


def test_a_worker_whose_visibility_timeout_differs_from_that_of_one_that_is_there_is_refused_at_start(
    tmp_path, bench, worker_environment
):
    environment = {**worker_environment, "MEMORY_VISIBILITY_TIMEOUT_S": "9"}
    container = WorkerContainer("stranger", app="memory_tasks.worker_app", directory=tmp_path, environment=environment)
    container.start(wait=False)
    assert container.wait_exit() != 0
    assert "a worker with 6 s uses the same broker, this one has 9 s" in container.logs()
    assert bench.redis.hkeys(lease.KEY) == [b"worker@local"]
    bench.container.kill("SIGTERM")
    assert bench.redis.hlen(lease.KEY) == 0


@pytest.mark.slow
def test_a_long_outage_burns_no_attempts_and_all_is_stored_once_the_store_is_back(bench):
    """F42, compressed: the journal's part is played by the test, which publishes again what was deferred."""
    (bench.faults / "fail-find").touch()
    lines = {line.hash: line for line in (make.line(make.episode(number)) for number in range(20))}
    bench.publisher.publish(
        [make.publication([make.item(line)], bench.key, task_id=line.id) for line in lines.values()]
    )
    probes = iter(make.line(make.episode(number)) for number in range(100, 1000))

    def is_away() -> bool:
        line = next(probes)
        lines[line.hash] = line
        bench.publish(make.item(line), task_id=line.id)
        time.sleep(0.2)
        return "held" in bench.counts()

    wait_for(is_away, bench.setup)
    wait_for(bench.idle, bench.setup)
    before, began_s = bench.counts(), time.monotonic()
    again = (list(lines.values()) * 10)[:200]
    bench.publisher.publish([make.publication([make.item(line)], bench.key, task_id=line.id) for line in again])
    wait_for(bench.idle, bench.setup)
    counted, probes_at_most = bench.counts(), (time.monotonic() - began_s) / 2 + 1
    failed = counted["failed:store_unavailable:503"] - before["failed:store_unavailable:503"]
    assert failed <= probes_at_most
    assert counted["held"] - before["held"] == 200 - failed
    assert counted["retried"] == before["retried"]
    assert counted["store_outages"] == 1
    (bench.faults / "fail-find").unlink()

    def is_back() -> bool:
        for line in lines.values():
            bench.publish(make.item(line), task_id=line.id)
        wait_for(bench.idle, bench.setup)
        return bench.store.find("EPISODE", {}).total == len(lines)

    wait_for(is_back, bench.setup)
    assert dead_letters.total(bench.redis, "local") == 0
    assert "action=store_back" in bench.container.logs()


def test_events_that_wait_while_redis_is_killed_and_comes_back_are_all_stored_once(bench):
    """What kombu has taken off the queue and not yet written down when Redis dies is gone from it: the journal, played
    by the test, publishes again what got no receipt."""
    events = {event["eventId"]: event for event in map(make.episode, range(60))}
    bench.container.kill("SIGTERM")  # so that they wait in the queue

    def publish_missing() -> None:
        missing = set(events) - {r.id for r in bench.taken if r.state is State.STORED}
        items = [(id_, make.item(make.line(events[id_]))) for id_ in sorted(missing)]
        bench.publisher.publish([make.publication([item], bench.key, task_id=id_) for id_, item in items])

    publish_missing()
    bench.container.start()
    bench.setup.broker.kill()
    bench.setup.broker.container.server.start()
    wait_for(lambda: len(bench.receipts(0)) >= len(events) - 16 and bench.idle(), bench.setup)
    publish_missing()
    wait_for(lambda: {r.id for r in bench.receipts(0) if r.state is State.STORED} == set(events), bench.setup)
    assert bench.store.find("EPISODE", {}).total == len(events)
    assert bench.container.status == "running"


def test_an_event_that_kills_every_process_is_dead_at_the_fourth_delivery_and_blames_nobody_else(
    bench, worker_environment
):
    """F5: concurrency 1, a hundred good events behind it, and the count of deaths survives a wiped Redis."""
    bench.restart(MEMORY_CONCURRENCY="1", MEMORY_VISIBILITY_TIMEOUT_S="60")
    poison = make.episode(0)
    good = [make.episode(number) for number in range(1, 101)]
    (bench.faults / f"exit-{poison['eventId']}").touch()
    bench.publish(make.item(make.line(poison)), task_id=poison["eventId"])
    assert bench.container.wait_exit() == 137  # nothing was known against it
    bench.let_time_out()
    bench.publisher.publish(
        [make.publication([make.item(make.line(e))], bench.key, task_id=e["eventId"]) for e in good]
    )
    bench.container.start()
    pid = bench.container.pid
    got = {r.id: r for r in bench.receipts(101)}
    assert {r.state for id_, r in got.items() if id_ != poison["eventId"]} == {State.STORED}
    assert all(r.deaths == 0 for id_, r in got.items() if id_ != poison["eventId"])
    first = got[poison["eventId"]]
    assert (first.state, first.reason, first.deaths) == (State.DEFERRED, "unsure", 1)
    for deaths in (1, 2):
        bench.redis.flushall()  # the journal has the count, and says it
        bench.publish(make.item(make.line(poison), deaths=deaths), task_id=poison["eventId"])
        last = bench.receipts(101 + deaths)[-1]
        assert last.deaths == deaths + 1
    assert (last.state, last.reason) == (State.DEAD, "poison")
    assert [(d.id, d.reason, d.deaths) for d in dead_letters.read(bench.redis, "local")] == [
        (poison["eventId"], "poison", 3)
    ]
    assert bench.records(poison) == 0
    assert (bench.container.status, bench.container.pid) == ("running", pid)
    assert make.SECRET_WORDS not in bench.container.logs()


@pytest.mark.slow
def test_a_chunk_with_an_event_that_kills_is_stored_but_for_that_one_by_the_worker_that_goes_on(bench):
    events = [make.episode(number) for number in range(30)]
    (bench.faults / f"segv-{events[7]['eventId']}").touch()
    items = [make.item(make.line(event), unsure=True) for event in events]
    bench.restart(MEMORY_VISIBILITY_TIMEOUT_S="60")
    pid = bench.container.pid
    bench.publish(*items, task_id="chunk-1", queue=message.BACKLOG_QUEUE)
    got = {r.id: (r.state, r.deaths) for r in bench.receipts(30)}
    assert got.pop(events[7]["eventId"]) == (State.DEFERRED, 1)
    assert set(got.values()) == {(State.STORED, 0)}
    assert bench.store.find("EPISODE", {}).total == 29
    assert bench.counts()["deaths"] == 1
    assert (bench.container.status, bench.container.pid) == ("running", pid)


def test_an_event_that_fails_three_times_and_is_stored_shows_four_attempts_and_its_last_error(bench):
    """F17."""
    event = make.episode()
    (bench.faults / "fail-find").touch()
    bench.publish(make.item(make.line(event)), task_id=event["eventId"])
    wait_for(lambda: sum(t.attempts for t in troubles.read(bench.redis, "local")) == 3, bench.setup)
    (bench.faults / "fail-find").unlink()
    assert bench.receipts(1)[0].state is State.STORED
    wait_for(lambda: bench.counts().get("attempts:4") == 1, bench.setup)
    (seen,) = troubles.read(bench.redis, "local")
    assert (seen.id, seen.attempts, seen.error, seen.state) == (
        event["eventId"],
        4,
        "store_unavailable:503",
        "stored",
    )
    report = status.gather(settings.Settings.load(bench.container.environment))
    (told,) = report["redis"]["troubles"]
    assert (told["id"], told["attempts"], told["error"], told["state"]) == (
        event["eventId"],
        4,
        "store_unavailable:503",
        "stored",
    )
    shown = io.StringIO()
    status.show(report, Console(file=shown, width=200))
    assert f"{event['eventId'][:12]} 4 attempts, last store_unavailable:503, stored" in shown.getvalue()
    scraped = metrics.text_of(report).splitlines()
    assert 'memory_ended_after_attempts_total{attempts="4"} 1.0' in scraped
    assert any(line.startswith('memory_failed_attempts_total{reason="store_unavailable:503"} ') for line in scraped)
    assert any(line.startswith('memory_last_error_timestamp_seconds{reason="store_un') for line in scraped)


def test_dead_lines_that_are_asked_about_are_forgotten_or_listed_again_after_a_wipe(bench):
    gone, kept = ({**make.episode(number), "visibility": "x"} for number in (1, 2))
    order = capture.build_forget_order(scope=make.SCOPE, runtime="custom", at=make.AT, target=gone["eventId"])
    bench.publish(make.item(make.order(order)), task_id="order")
    bench.receipts(1)
    bench.redis.flushall()
    items = [make.item(make.line(event), check=True, reason="poison", deaths=3) for event in (gone, kept)]
    bench.publish(*items, task_id="chunk-1", queue=message.BACKLOG_QUEUE)
    got = {r.id: (r.state, r.reason) for r in bench.receipts(3)[1:]}
    assert got == {gone["eventId"]: (State.FORGOTTEN, ""), kept["eventId"]: (State.DEAD, "poison")}
    assert [(d.id, d.reason, d.deaths) for d in dead_letters.read(bench.redis, "local")] == [
        (kept["eventId"], "poison", 3)
    ]


def test_the_same_worker_serves_a_rushdb(tmp_path, bench, worker_environment):
    """Against the test server: the adapter, the pooled transport and the coalescing, in one process."""
    bench.container.kill("SIGTERM")
    with rushdb_server(tmp_path / "rushdb.sqlite3", process=True) as server:
        environment = {
            **worker_environment,
            "MEMORY_STORE_URL": f"rushdb+{server.url}",
            "MEMORY_STORE_TOKEN": server.token,
        }
        container = WorkerContainer(
            "rushdb", app="memory_tasks.worker_app", directory=tmp_path, environment=environment
        )
        container.start()
        old, new = make.fact("the heron nests here"), make.fact(source_event_id="write-2")
        new["supersedesFactId"] = old["factId"]
        lines = [make.line(e) for e in (*(make.episode(n) for n in range(20)), old, new)]
        try:
            bench.publisher.publish([make.publication([make.item(line)], bench.key, task_id=line.id) for line in lines])
            got = bench.receipts(len(lines))
            assert {(r.id, r.state) for r in got} == {(line.id, State.STORED) for line in lines}
        finally:
            container.teardown()
    store = SqliteStore(tmp_path / "rushdb.sqlite3")
    facts = {r.get("factId"): r.get("active") for r in store.find("MEMORY_FACT", {}).records}
    assert facts == {old["factId"]: False, new["factId"]: True}
    assert store.find("EPISODE", {}).total == 20
    assert store.find("SESSION", {}).total == 1
    store.close()
