"""The broker seen from a host: messages published with kombu, which is loaded lazily.

Form on the wire: Celery's message protocol 2, made here so that a host needs no Celery (contract-tested against it).

    headers     lang, task, id, root_id, parent_id, group, eta, expires, retries, timelimit, argsrepr, kwargsrepr,
                origin, ignore_result, …, and our own two: memoryKeyId, memorySignature
    properties  correlation_id = id, delivery_mode = 2, content type application/json
    body        [[], kwargs, {callbacks, errbacks, chain, chord: null}]

How a worker sees our own headers: `self.request.headers` holds those beside Celery's own, `{"memoryKeyId": …,
"memorySignature": …}`, and each also is an attribute of the request (`self.request.memorySignature`, and
`self.request.get("memorySignature")`). `self.request.argsrepr` and `kwargsrepr` hold the masks. After `retry` Celery
sends `self.request.headers` again as they are, and forgets the masks: a worker that changes the arguments signs anew,
passes `headers=` for that, and the masks again. `self.request.delivery_info["redelivered"]` is true for a redelivery.

Two queues; messages go to the default exchange with the queue's name. They hold memory text until workers drain them;
workers always consume both. No key of a queue expires: an event that leaves it unread would only be published again.

On RabbitMQ each message is confirmed, and mandatory: to a queue that is gone it is an error, and the queues are
declared again. While a memory or disk alarm blocks publishers, one connection waits with one message, and `publish`
fails at once.

Times are short and nothing is retried in here: the dispatcher's thread waits, with its own back-off. A frozen broker
costs that thread `socket_timeout_s`, and a host nothing. After a fork the child opens connections of its own.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from producer import errors, message, rabbitmq

if TYPE_CHECKING:
    from producer.dispatcher import Publication

__all__ = ["KombuPublisher", "queues"]

_BATCH = 100
# RabbitMQ (3.10, seen 2026-12-02) tells consumers that their queue was deleted, unless it is there again within a few
# hundredths of a second: then they get nothing more, and nobody can see it. Workers hear of it and declare it first.
_DECLARE_AFTER_S = 2.0
_BLOCKED = "RabbitMQ takes no messages until its memory or disk alarm ends"


def queues(broker_url: str) -> list[Any]:
    """Both queues as kombu objects, the same for whoever declares them. On RabbitMQ they are quorum queues."""
    import kombu  # a host imports it only when it publishes

    if rabbitmq.is_rabbitmq(broker_url):
        return rabbitmq.queues()
    return [
        kombu.Queue(name, kombu.Exchange(name, type="direct"), routing_key=name)
        for name in (message.QUEUE, message.BACKLOG_QUEUE)
    ]


class KombuPublisher:
    """Publish `memory.ingest` messages over one kept connection. For one thread at a time."""

    def __init__(self, broker_url: str, *, connect_timeout_s: float = 1.0, socket_timeout_s: float = 1.5) -> None:
        self._url = broker_url
        self._rabbitmq = rabbitmq.is_rabbitmq(broker_url)
        self._blocked = False  # this connection, by an alarm of RabbitMQ
        self._declares_at_s = 0.0
        self._socket_timeout_s = socket_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._origin = f"{os.getpid()}@{socket.gethostname()}"
        self._producer: Any = None
        self._connection: Any = None
        self._pid = os.getpid()

    def publish(self, publications: Sequence[Publication]) -> None:
        """Return once the broker has all of them. Raises `errors.BrokerUnavailable` when any may be missing.

        The connection is closed after a failure, so that the next call starts afresh.
        """
        self._leave_parents_connection()
        try:
            producer = self._open()
            if len(publications) > 1 and hasattr(producer, "batch"):  # kombu 5.7
                with producer.batch(max_size=_BATCH):
                    for publication in publications:
                        self._send(producer, publication)
            else:
                for publication in publications:
                    self._send(producer, publication)
        except Exception as problem:
            # The edge to kombu, whose transports raise what they like. What they say may quote the message.
            if isinstance(problem, errors.BrokerUnavailable):
                raise
            if self._blocked and isinstance(problem, TimeoutError):
                raise errors.BrokerUnavailable(_BLOCKED) from None
            self._drop()
            if self._rabbitmq and getattr(problem, "reply_code", 0) == rabbitmq.NO_ROUTE:
                self._declares_at_s = time.monotonic() + _DECLARE_AFTER_S
            raise errors.BrokerUnavailable(self._words(problem)) from None

    def _words(self, problem: Exception) -> str:
        if self._rabbitmq:
            return f"publishing failed: {rabbitmq.words(problem)}"
        from producer import redis_client

        return f"publishing failed: Redis {redis_client.trouble(problem)}"

    def _open(self) -> Any:
        import kombu  # takes longer than a turn may wait: on the dispatcher's thread, not where this object is made

        if self._blocked:
            self._wait_out_alarm()
        if self._producer is None:
            self._connect_rabbitmq() if self._rabbitmq else self._connect_redis()
            self._producer = kombu.Producer(self._connection.default_channel, auto_declare=False)
        return self._producer

    def _connect_redis(self) -> None:
        import kombu

        from producer import redis_client

        form = redis_client.kombu_form(self._url, connect_timeout_s=self._connect_timeout_s)
        options: dict[str, Any] = {"max_retries": 0, "interval_start": 0, "interval_step": 0, "interval_max": 0}
        options |= {
            "socket_connect_timeout": self._connect_timeout_s,
            "socket_timeout": self._socket_timeout_s,
            "retry_on_timeout": False,
        }
        self._connection = kombu.Connection(
            form.url,
            ssl=form.ssl,
            connect_timeout=self._connect_timeout_s,
            transport_options=options | form.transport_options,
        )
        # `channel()` would try twice and sleep two seconds in between, whatever the options say.
        _ = self._connection.default_channel

    def _connect_rabbitmq(self) -> None:
        if time.monotonic() < self._declares_at_s:
            raise errors.BrokerUnavailable("RabbitMQ has lost our queues; they are declared again soon")
        self._connection = rabbitmq.connect(
            self._url,
            connect_timeout_s=self._connect_timeout_s,
            socket_timeout_s=self._socket_timeout_s,
            on_blocked=lambda _: self._note_blocked(True),
            on_unblocked=lambda: self._note_blocked(False),
        )
        for queue in rabbitmq.queues():
            queue(self._connection.default_channel).declare()

    def _note_blocked(self, is_blocked: bool) -> None:
        self._blocked = is_blocked

    def _wait_out_alarm(self) -> None:
        """RabbitMQ no longer reads from a blocked connection, nor sees that it was closed: another one for each try
        would stay there until the alarm ends."""
        while self._blocked:
            self._connection.drain_events(timeout=0)  # raises TimeoutError when nothing more is there
        self._drop()  # what was confirmed late must not confirm what is sent next

    def _send(self, producer: Any, publication: Publication) -> None:
        masks = message.masks(publication.count)
        producer.publish(
            [[], publication.kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}],
            exchange="",
            routing_key=publication.queue,
            serializer="json",
            delivery_mode=2,
            correlation_id=publication.task_id,
            reply_to="",
            retry=False,
            **({"mandatory": True} if self._rabbitmq else {}),
            headers={
                "lang": "py",
                "task": message.TASK_NAME,
                "id": publication.task_id,
                "shadow": None,
                "eta": None,
                "expires": None,
                "group": None,
                "group_index": None,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": publication.task_id,
                "parent_id": None,
                "argsrepr": masks["argsrepr"],
                "kwargsrepr": masks["kwargsrepr"],
                "origin": self._origin,
                "ignore_result": True,
                "replaced_task_nesting": 0,
                "stamped_headers": None,
                "stamps": {},
                **publication.headers,
            },
        )

    def _leave_parents_connection(self) -> None:
        """In a forked child: the socket is the parent's, and closing it politely would speak on it."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._producer, self._connection, self._blocked = None, None, False

    def _drop(self) -> None:
        connection, self._connection, self._producer, self._blocked = self._connection, None, None, False
        if connection is not None:
            rabbitmq.drop(connection)

    def close(self) -> None:
        """Close the connection."""
        self._leave_parents_connection()
        self._drop()
