"""The Celery app: how messages travel and how workers treat them. Reads no environment; `worker_app` builds it.

JSON only. Late acknowledgement: a message whose worker died comes back after the visibility timeout. Results are
ignored; receipts are ours. Workers consume both queues, always: fresh events and the backlog take turns. Unfinished
messages stand under keys of our own, so that another Celery app on the same Redis does not hand ours out by its own
timeout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import celery
import redis
from celery import bootsteps

from memory_tasks import events, eviction, ingest, settings, tasks
from memory_tasks import lease as lease_module
from producer import broker, message

__all__ = ["make_app"]

logger = logging.getLogger(__name__)

_REDIS_SCHEMES = ("redis", "rediss", "redis+socket", "sentinel")
_SWEEP_LOCK_S = 30  # a worker killed in the middle of a sweep holds up the others this long; kombu has 300
_LOG_FORMAT = "%(asctime)s %(levelname)s %(processName)s %(name)s %(message)s"
# Celery's words for messages it cannot use end in "The full contents of the message body was".
_LOGS_BODIES = "celery.worker.consumer.consumer"
_BODY_FOLLOWS = ("Received and deleted unknown", "Received unregistered", "Received invalid", "Can't decode message")


def make_app(
    given: settings.Settings,
    ingest_of: Callable[[], ingest.Ingest],
    *,
    lease: lease_module.Lease | None = None,
) -> celery.Celery:
    """The app of these settings. `ingest_of` is called by the first task of a worker, never by Flower or a client.
    `lease`: what its workers say of themselves to others on the same broker."""
    app = celery.Celery("memory_tasks", events=events.CompleteEvents, set_as_current=False)
    app.conf.update(
        broker_url=given.producer.broker_url,
        broker_transport_options=_transport_options(given),
        broker_connection_retry_on_startup=True,
        broker_channel_error_retry=True,  # a full Redis (noeviction) is an outage like any other
        broker_connection_max_retries=None,  # a broker that is away for a day ends no worker
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        event_serializer="json",
        enable_utc=True,
        timezone="UTC",
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_queues=broker.queues(given.producer.broker_url),
        task_default_queue=message.QUEUE,
        task_create_missing_queues=False,
        worker_pool="threads",
        worker_concurrency=given.concurrency,
        worker_prefetch_multiplier=1,  # a delivery ages while it waits for a thread
        worker_send_task_events=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # threads cannot be cancelled
        worker_redirect_stdouts=False,
        worker_log_format=_LOG_FORMAT,
        worker_task_log_format=_LOG_FORMAT,
    )
    app.steps["consumer"].add(_RefusesEviction)
    if lease is not None:
        app.memory_lease = lease
        app.steps["consumer"].add(_RefusesStrangers)
    tasks.register(app, ingest_of)
    _silence_bodies()
    return app


class _RefusesEviction(bootsteps.StartStopStep):
    """Asks the broker, on every connection, whether it evicts. The worker ends with the refusal when it does."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        if consumer.connection.transport.driver_type != "redis":
            return
        try:
            memory = _redis_of(consumer).info("memory")
        except redis.ResponseError as problem:  # an access list without INFO
            logger.warning(
                "action=eviction_unknown problem=%s; see that this Redis does not evict", type(problem).__name__
            )
            return
        eviction.check(memory)


class _RefusesStrangers(bootsteps.StartStopStep):
    """Says on every connection, and on and on, that this worker is there. The worker ends with the refusal when another
    one is there that it would harm."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        self._timer = None
        if consumer.connection.transport.driver_type != "redis":
            return
        try:
            consumer.app.memory_lease.take(_redis_of(consumer), consumer.hostname)
        except redis.ResponseError as problem:  # an access list without our key
            logger.warning(
                "action=lease_unknown problem=%s; see that no other deployment is there", type(problem).__name__
            )
            return
        self._timer = consumer.timer.call_repeatedly(lease_module.EVERY_S, self._renew, (consumer,))

    def stop(self, consumer: Any) -> None:
        timer, self._timer = getattr(self, "_timer", None), None
        if timer is not None:
            timer.cancel()
            self._tell(consumer.app.memory_lease.drop, consumer)

    def _renew(self, consumer: Any) -> None:
        self._tell(consumer.app.memory_lease.renew, consumer)

    @staticmethod
    def _tell(tell: Callable[[Any, str], object], consumer: Any) -> None:
        try:
            tell(_redis_of(consumer), consumer.hostname)
        except (redis.RedisError, OSError, AttributeError) as problem:  # AttributeError: kombu has closed it meanwhile
            logger.info("action=lease_not_told problem=%s; told again on the next connection", type(problem).__name__)


def _redis_of(consumer: Any) -> Any:
    """A client of the broker's Redis beside the one that waits for messages: that one has its connection to itself."""
    with consumer.connection.default_channel.conn_or_acquire() as client:
        return client


class _WithoutBodies(logging.Filter):
    """Keeps the first line of what Celery says of a message it cannot use; the rest quotes the message."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith(_BODY_FOLLOWS):
            record.msg = (
                text.partition("\n")[0].partition("%")[0].rstrip(" :[") + "; discarded, its content is not shown"
            )
            record.args, record.exc_info, record.exc_text = (), None, None
        return True


def _silence_bodies() -> None:
    celerys = logging.getLogger(_LOGS_BODIES)
    if not any(isinstance(present, _WithoutBodies) for present in celerys.filters):
        celerys.addFilter(_WithoutBodies())


def _transport_options(given: settings.Settings) -> dict[str, Any]:
    if given.producer.broker_url.partition("://")[0] not in _REDIS_SCHEMES:
        return {"confirm_publish": True}  # a retry that a dying RabbitMQ never got must not look published
    return {
        "visibility_timeout": given.visibility_timeout_s,
        # The sweep for what killed workers left: every interval, not every tenth of them.
        "unacked_restore_interval": given.restore_interval_s,
        "unacked_restore_throttle": 1,
        "unacked_key": "memory:unacked",
        "unacked_index_key": "memory:unacked:index",
        "unacked_mutex_key": "memory:unacked:mutex",
        "unacked_mutex_expire": _SWEEP_LOCK_S,
        # A frozen Redis must not freeze a worker for good.
        "socket_timeout": max(given.redis_timeout_s, 5.0),  # the consumer itself waits a second for messages
        "socket_connect_timeout": given.redis_timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 25,
    }
