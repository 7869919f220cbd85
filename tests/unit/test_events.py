"""CompleteDispatcher: events that pool threads send while a buffer is being published are published next, not lost."""

from __future__ import annotations

from typing import Any

import celery
import pytest

from memory_tasks import events


class Producer:
    """Notes what is published; `during` is called in the middle of publishing."""

    def __init__(self) -> None:
        self.published: list[list[str]] = []
        self.during = lambda: None

    def publish(self, body: list[dict[str, Any]], **_: Any) -> None:
        self.published.append([event["uuid"] for event in body])
        self.during()


@pytest.fixture
def dispatcher():
    app = celery.Celery(broker="memory://", events=events.CompleteEvents, set_as_current=False)
    with app.connection() as connection:
        made = app.events.Dispatcher(connection, buffer_group=["task"])
        made.producer = Producer()
        yield made


def test_an_event_sent_while_others_are_published_goes_with_the_next(dispatcher):
    assert isinstance(dispatcher, events.CompleteDispatcher)
    dispatcher.send("task-received", uuid="1")
    dispatcher.producer.during = lambda: dispatcher.send("task-retried", uuid="2")
    dispatcher.flush()
    dispatcher.producer.during = lambda: None
    dispatcher.flush()
    dispatcher.flush()
    assert dispatcher.producer.published == [["1"], ["2"]]


def test_events_stay_when_publishing_fails(dispatcher):
    def fail() -> None:
        raise OSError

    dispatcher.send("task-received", uuid="1")
    dispatcher.producer.during = fail
    dispatcher.buffer_while_offline = False
    with pytest.raises(OSError):
        dispatcher.flush()
    dispatcher.producer.during = lambda: None
    dispatcher.flush()
    assert dispatcher.producer.published == [["1"], ["1"]]
