"""Celery's event dispatcher, with none of the events lost that pool threads send.

Celery (5.6.3, seen 2026-12-01) publishes its buffer of task events and then empties it. What a pool thread put in
between is gone: with `-P threads` some retries of almost every run never reached Flower. Here only what was published
is taken out.
"""

from __future__ import annotations

from celery.app.events import Events
from celery.events.dispatcher import EventDispatcher

__all__ = ["CompleteDispatcher", "CompleteEvents"]


class CompleteDispatcher(EventDispatcher):
    def enable(self) -> None:
        """Without confirms, where the connection has them (RabbitMQ): to wait for one per event would hold up the
        worker, for as long as an alarm blocks publishers there. What is lost of events is only seen by nobody."""
        if hasattr(self.connection.connection, "confirm_publish"):
            self.connection.connection.confirm_publish = False
        super().enable()

    def flush(self, errors: bool = True, groups: bool = True) -> None:
        super().flush(errors=errors, groups=False)
        if not groups:
            return
        with self.mutex:
            for group, events in list(self._group_buffer.items()):
                taken = list(events)
                if taken:
                    self._publish(taken, self.producer, f"{group}.multi")
                    del events[: len(taken)]  # others only append, and only here something is taken out


class CompleteEvents(Events):
    dispatcher_cls = CompleteDispatcher
