"""What a worker does when its turn to order an expiry comes, and when Redis or the broker does not answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from memory_tasks import app, expiry, expiry_turns
from producer import errors, message

KEYS = {"a": message.Key(id="key-a", secret=b"a" * 32), "b": message.Key(id="key-b", secret=b"b" * 32)}


class Turns:
    """Both tenants' turns are free, or Redis is away."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.given_back: list[str] = []

    def take(self, client: Any, name: str) -> Iterator[tuple[str, message.Key]]:
        if self.away:
            raise errors.RedisUnavailable("away")
        yield from KEYS.items()

    def give_back(self, client: Any, tenant: str) -> None:
        self.given_back.append(tenant)


class App:
    """A Celery app that sends nothing anywhere, and fails for one tenant."""

    def __init__(self, turns: Turns, *, fails_for: str = "") -> None:
        self.memory_turns = turns
        self.memory_receipts = lambda: None
        self.fails_for = fails_for
        self.sent: list[dict[str, Any]] = []

    def send_task(self, name: str, **options: Any) -> None:
        if options["kwargs"]["tenant"] == self.fails_for:
            raise OperationalError("a broker that is away")
        self.sent.append({"name": name, **options})


def look(given: App) -> None:
    consumer = SimpleNamespace(app=given, hostname="one", connection_errors=(OSError,), channel_errors=())
    app._TakesTurns(consumer)._look(consumer)


def test_each_turn_is_ordered_by_a_signed_and_masked_message_that_holds_up_no_fresh_event():
    given = App(Turns())
    look(given)
    assert [one["kwargs"]["tenant"] for one in given.sent] == ["a", "b"]
    for one in given.sent:
        key = KEYS[one["kwargs"]["tenant"]]
        assert message.verify(one["kwargs"], one["headers"], {key.id: key.secret}.get) == key.id
        assert (one["name"], one["queue"]) == (expiry.TASK_NAME, message.BACKLOG_QUEUE)
        assert (one["args"], one["argsrepr"], one["kwargsrepr"]) == ((), "()", "<0 lines>")


def test_a_turn_whose_message_cannot_be_sent_is_given_back_and_the_others_are_ordered():
    given = App(turns := Turns(), fails_for="a")
    look(given)
    assert turns.given_back == ["a"]
    assert [one["kwargs"]["tenant"] for one in given.sent] == ["b"]


def test_a_redis_that_is_away_costs_a_warning_and_no_worker(caplog):
    given = App(Turns(away=True))
    with caplog.at_level(logging.WARNING):
        look(given)
    assert given.sent == []
    assert "action=turns_unknown" in caplog.text


@pytest.mark.parametrize(("every_s", "look_s"), [(3600.0, 60.0), (60.0, 60.0), (5.0, 5.0), (0.0, 0.0)])
def test_workers_look_every_minute_or_as_often_as_turns_come(every_s, look_s):
    assert expiry_turns.Turns(keys=KEYS, every_s=every_s).look_s == look_s
