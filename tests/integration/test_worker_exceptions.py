"""Exceptions that nobody foresaw and that quote an event: a real worker says no word of them, wherever they arise."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator

import pytest

from memory_tasks import counts, dead_letters
from producer import message
from producer.receipt import State
from tests import worker_messages as make
from tests.integration.test_worker import Bench, wait_for
from tests.integration.test_worker import bench as bench  # a fixture

PLANTED = (make.SECRET_WORDS, "Where does it nest")
HOLD_TEXT = {b"memory", b"memory.backlog", b"memory:unacked"}  # and recent writes: text is what they are for


def said(bench: Bench, events: list[dict[str, object]]) -> Iterator[tuple[str, str]]:
    """Everything that an operator, a log store, Flower or a neighbour on Redis sees, by place."""
    yield "the worker's log", bench.container.logs()
    yield "Celery's events", json.dumps(events, default=repr)
    yield "dead letters", repr(dead_letters.read(bench.redis, "local"))
    for key in bench.redis.scan_iter("*"):
        yield "the names of keys", repr(key)
        if key not in HOLD_TEXT and not key.startswith(b"memory:recent:"):
            kind = bench.redis.type(key)
            if kind == b"hash":
                yield repr(key), repr(bench.redis.hgetall(key))
            elif kind == b"list":
                yield repr(key), repr(bench.redis.lrange(key, 0, -1))
            elif kind == b"zset":
                yield repr(key), repr(bench.redis.zrange(key, 0, -1, withscores=True))
            elif kind == b"set":
                yield repr(key), repr(bench.redis.smembers(key))
            else:
                yield repr(key), repr(bench.redis.get(key))


def assert_nothing_is_told(bench: Bench, events: list[dict[str, object]]) -> None:
    for where, text in said(bench, events):
        decoded = [base64.b64decode(run + "=" * (-len(run) % 4)) for run in re.findall("[A-Za-z0-9+/]{40,}", text)]
        for form in (text.encode(), *decoded):
            assert not any(words.encode() in form for words in PLANTED), where


@pytest.mark.parametrize("unsure", [False, True], ids=["in the worker", "in its child"])
def test_a_store_that_raises_with_the_text_is_told_by_class_and_the_event_comes_back(
    bench: Bench, unsure: bool
) -> None:
    (bench.faults / "quote").touch()
    event = make.episode()
    with bench.watching() as events:
        bench.publish(make.item(make.line(event), unsure=unsure), task_id=event["eventId"])
        (got,) = bench.receipts(1)
        assert got.state is State.DEFERRED
        wait_for(lambda: "ValueError" in bench.container.logs(), bench.setup)
        wait_for(lambda: any(one["type"] == "task-succeeded" for one in events), bench.setup)
        assert_nothing_is_told(bench, events)
    (bench.faults / "quote").unlink()
    bench.publish(make.item(make.line(event), unsure=False), task_id=event["eventId"])
    assert bench.receipts(2)[1].state is State.STORED and bench.records(event) == 1
    bench.container.kill("SIGTERM")
    assert_nothing_is_told(bench, [])


def test_a_task_that_raises_with_the_text_even_over_its_receipts_is_told_by_class(bench: Bench) -> None:
    (bench.faults / "quote-receipts").touch()
    event = make.episode()
    with bench.watching() as events:
        bench.publish(make.item(make.line(event)), task_id=event["eventId"])
        wait_for(lambda: "action=receipts_lost problem=ValueError" in bench.container.logs(), bench.setup)
        wait_for(lambda: any(one["type"] == "task-succeeded" for one in events), bench.setup)
        assert_nothing_is_told(bench, events)
    wait_for(bench.idle, bench.setup)
    (bench.faults / "quote-receipts").unlink()
    bench.publish(make.item(make.line(event)), task_id=event["eventId"])  # as its journal does, without a receipt
    assert bench.receipts(1)[0].state is State.STORED


def test_messages_nested_too_deep_to_be_read_are_dropped_and_the_worker_goes_on(bench: Bench) -> None:
    """By whoever can write to the broker and has no key: deep enough for our canonical form, and for any parser."""
    deep: list[object] = []
    for _ in range(800):
        deep = [deep]
    headers = {message.HEADER_KEY_ID: bench.key.id, message.HEADER_SIGNATURE: "0" * 64}
    bench.setup.app.send_task(message.TASK_NAME, kwargs={"batch": deep}, headers=headers, queue=message.QUEUE)
    wait_for(bench.idle, bench.setup)
    template = {
        "body": base64.b64encode(b"[[], " + b"[" * 100_000 + b", {}]").decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": message.TASK_NAME, "id": "deep", **headers},
        "properties": {
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": message.QUEUE},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": "deep",
        },
    }
    bench.redis.lpush(message.QUEUE, json.dumps(template))
    event = make.episode()
    bench.publish(make.item(make.line(event)), task_id=event["eventId"])
    assert bench.receipts(1)[0].state is State.STORED
    assert counts.read_refused(bench.redis)["wrong_signature"] == 1
    assert "action=fault" not in bench.container.logs()
