"""The task's shell: faults of ours end here, and a retry that cannot be published goes back to the broker."""

from __future__ import annotations

import dataclasses
import logging
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.exceptions import Reject, Retry
from kombu import Message
from kombu.transport import redis as kombu_redis

from memory_tasks import app as app_module
from memory_tasks import settings, tasks, verdicts
from producer import errors, message
from tests import worker_messages as make

KEY = message.Key(id="key", secret=b"s" * 32)
AGAIN = verdicts.Again(
    items=(make.item(make.line(make.episode())),),
    tries=1,
    unsure_until=None,
    countdown_s=2.0,
    reason="store_unavailable:503",
    key=KEY,
)


class Handler:
    """Raises what it is told, and notes the faults it was asked to answer."""

    def __init__(self, *, answer_problem: Exception | None = None) -> None:
        self.answer_problem = answer_problem
        self.faults: list[Exception] = []

    def receive(self, *args: Any, **kwargs: Any) -> None:
        raise KeyError(make.SECRET_WORDS)

    def answer_fault(self, arguments: Any, headers: Any, fault: Exception) -> None:
        self.faults.append(fault)
        if self.answer_problem is not None:
            raise self.answer_problem


class Task:
    """Celery's retry: raises Retry once the message is published, or Reject."""

    request = SimpleNamespace(delivery_info={"routing_key": message.BACKLOG_QUEUE})

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem
        self.options: dict[str, Any] = {}

    def retry(self, **options: Any) -> Retry:
        self.options = options
        if self.problem is not None:
            raise Reject(self.problem, requeue=False)
        raise Retry(exc=options["exc"], when=options["countdown"])


@pytest.mark.parametrize("answer_problem", [None, errors.RedisUnavailable("down"), errors.SignatureRefused("unsigned")])
def test_a_fault_nobody_foresaw_is_answered_and_logged_by_class_and_place_only(answer_problem, caplog):
    handler = Handler(answer_problem=answer_problem)
    with caplog.at_level(logging.DEBUG):
        assert tasks._receive(handler, {}, {}, redelivered=False, received_s=0.0) is None
    assert [type(fault) for fault in handler.faults] == [KeyError]
    assert "kind=KeyError at=tests.unit.test_tasks:" in caplog.text
    assert make.SECRET_WORDS not in caplog.text
    assert ("action=receipts_lost" in caplog.text) == (answer_problem is not None)


def test_a_retry_is_signed_anew_masked_and_stays_on_its_queue():
    task = Task()
    with pytest.raises(Retry):
        tasks._come_again(task, AGAIN)
    kwargs = task.options["kwargs"]
    assert message.verify(kwargs, task.options["headers"], {"key": KEY.secret}.get) == "key"
    assert kwargs["tries"] == 1
    assert (task.options["argsrepr"], task.options["kwargsrepr"]) == ("()", "<1 line>")
    assert (task.options["queue"], task.options["countdown"]) == (message.BACKLOG_QUEUE, 2.0)
    assert repr(task.options["exc"]) == "Retryable('store_unavailable:503')"


@pytest.mark.parametrize("queue", [message.QUEUE, message.BACKLOG_QUEUE])
@pytest.mark.parametrize(("countdown_s", "waits_s"), [(0.2, 1), (1.0, 1), (2.1, 3)])
def test_where_the_broker_holds_retries_back_it_waits_whole_seconds_and_the_queue_is_found_behind_the_delay(
    queue, countdown_s, waits_s
):
    task = Task()
    task.request = SimpleNamespace(delivery_info={"routing_key": "0." * 27 + f"1.{queue}"})
    with pytest.raises(Retry):
        tasks._come_again(task, dataclasses.replace(AGAIN, countdown_s=countdown_s), whole_countdowns=True)
    assert (task.options["queue"], task.options["countdown"]) == (queue, waits_s)


def test_a_retry_that_cannot_be_published_leaves_the_message_with_the_broker():
    with pytest.raises(Reject) as caught:
        tasks._come_again(Task(OSError(make.SECRET_WORDS)), AGAIN)
    assert caught.value.requeue is True
    assert make.SECRET_WORDS not in repr(caught.value)


def test_what_kombu_says_of_a_message_it_cannot_put_back_does_not_quote_it(caplog):
    app_module.make_app(settings.Settings.load({}), lambda: pytest.fail("handles no messages"))

    def fail(*_: Any) -> list[str]:
        raise redis.ResponseError("NOPERM")

    channel = SimpleNamespace(_lookup=fail, connection_errors=(OSError,))
    kombu_redis.Channel._do_restore_message(channel, {"body": make.SECRET_WORDS}, "memory", "memory", None)
    (record,) = caplog.records
    assert record.getMessage() == "Could not restore message; discarded, its content is not shown"
    assert make.SECRET_WORDS not in caplog.text


def test_a_message_stays_with_the_broker_when_its_handler_cannot_be_made_and_the_worker_pauses(monkeypatch, caplog):
    """Celery acknowledges what ends in an error: it would be gone, without a receipt."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    def refuse() -> Any:
        raise errors.SettingsRefused("MEMORY_STORE_TOKEN", make.SECRET_WORDS)

    app = app_module.make_app(settings.Settings.load({}), refuse)
    with pytest.raises(Reject) as caught:
        app.tasks[message.TASK_NAME].run()
    assert caught.value.requeue is True
    assert pauses == [2.0]
    assert "action=worker_unfit kind=SettingsRefused" in caplog.text
    assert make.SECRET_WORDS not in caplog.text


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize(
    ("broker_url", "is_look", "is_mended"),
    [
        ("redis://127.0.0.1:1/0", True, True),
        ("redis://127.0.0.1:1/0", False, False),  # a retry too early costs a request
        ("amqp://127.0.0.1:1", True, False),  # RabbitMQ has held it by its own clock, and an ETA in the past is none
    ],
)
def test_a_later_look_waits_from_its_receipt_on_whatever_the_clock_of_its_publisher(
    broker_url, is_look, is_mended, ahead_s
):
    environment = {"MEMORY_BROKER_URL": broker_url, "MEMORY_REDIS_URL": "redis://127.0.0.1:1/0"}
    app = app_module.make_app(settings.Settings.load(environment), lambda: pytest.fail("handles no messages"))
    due = datetime.now(UTC) + timedelta(seconds=60 - ahead_s)
    arguments = message.arguments(AGAIN.items, unsure_until=due.timestamp() if is_look else None)
    headers = {"id": "x", "task": message.TASK_NAME, "eta": due.isoformat()}
    request = tasks.QuietRequest(
        Message(headers=headers, delivery_info={}, properties={}),
        app=app,
        task=app.tasks[message.TASK_NAME],
        body=([], arguments, {}),
        headers=headers,
        decoded=True,
    )
    waits_s = (request.eta - datetime.now(UTC)).total_seconds()
    assert waits_s == pytest.approx(60 if is_mended else 60 - ahead_s, abs=5)
