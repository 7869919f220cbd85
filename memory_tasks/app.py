"""The Celery app: how messages travel and how workers treat them. Reads no environment; `worker_app` builds it.

JSON only. Late acknowledgement: a message whose worker died comes back after the visibility timeout. Results are
ignored; receipts are ours. Workers consume both queues, always: fresh events and the backlog take turns. Unfinished
messages stand under keys of our own, so that another Celery app on the same Redis does not hand ours out by its own
timeout.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import celery
import redis
from celery import bootsteps
from kombu.exceptions import OperationalError

from memory_tasks import consumer, events, eviction, expiry, expiry_turns, ingest, settings, tasks
from memory_tasks import lease as lease_module
from producer import broker, errors, message, rabbitmq, redis_client

__all__ = ["make_app"]

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 20  # a RabbitMQ that is silent for twice as long is left; also one that died without a word
_SWEEP_LOCK_S = 30  # a worker killed in the middle of a sweep holds up the others this long; kombu has 300
_LOG_FORMAT = "%(asctime)s %(levelname)s %(processName)s %(name)s %(message)s"
# Celery's words for messages it cannot use end in "The full contents of the message body was".
# So do kombu's for one that it cannot put back into its queue.
_LOGS_BODIES = ("celery.worker.consumer.consumer", "kombu.transport.redis")
_BODY_FOLLOWS = (
    *("Received and deleted unknown", "Received unregistered", "Received invalid", "Can't decode message"),
    "Could not restore message",
)


def make_app(
    given: settings.Settings,
    ingest_of: Callable[[], ingest.Ingest],
    *,
    lease: lease_module.Lease | None = None,
    expiry_of: Callable[[], expiry.Expiry] | None = None,
    turns: expiry_turns.Turns | None = None,
) -> celery.Celery:
    """The app of these settings. `ingest_of` is called by the tasks of a worker, never by Flower or a client, and
    `expiry_of` by `memory.expire`. `lease`: what its workers say of themselves to others on the same broker.
    `turns`: when they order that expired facts are removed."""
    app = celery.Celery("memory_tasks", events=events.CompleteEvents, set_as_current=False)
    app.conf.update(
        **_broker(given),
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
        worker_consumer=f"{consumer.__name__}:{consumer.Consumer.__name__}",
        worker_pool="threads",
        worker_concurrency=given.concurrency,
        worker_prefetch_multiplier=1,  # a delivery ages while it waits for a thread
        worker_send_task_events=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # threads cannot be cancelled
        worker_redirect_stdouts=False,
        worker_log_format=_LOG_FORMAT,
        worker_task_log_format=_LOG_FORMAT,
    )
    app.steps["consumer"].add(_RefusesHalfTheQueues)
    app.steps["consumer"].add(_RefusesEviction)
    app.steps["consumer"].add(_HidesLogins)
    if lease is not None:
        app.memory_lease = lease
        app.memory_receipts = functools.partial(_receipts_of, given)
        app.steps["consumer"].add(_RefusesStrangers)
    if turns is not None and turns.look_s > 0:
        app.memory_turns = turns
        app.memory_receipts = functools.partial(_receipts_of, given)
        app.steps["consumer"].add(_TakesTurns)
    tasks.register(
        app,
        ingest_of,
        whole_countdowns=rabbitmq.is_rabbitmq(given.producer.broker_url),
        look_wait_s=given.producer.store_late_s,
    )
    if expiry_of is not None:
        tasks.register_expiry(app, expiry_of)
    _mend_words()
    return app


class _RefusesHalfTheQueues(bootsteps.StartStopStep):
    """A worker started with `--queues` of its own would leave the other queue to nobody."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        missing = {message.QUEUE, message.BACKLOG_QUEUE} - set(consumer.app.amqp.queues.consume_from)
        if missing and consumer.restart_count == 0:  # later it may be Flower that cancelled one, for a while
            raise errors.SettingsRefused("--queues", f"leaves out {', '.join(sorted(missing))}: workers consume both")


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


class _HidesLogins(bootsteps.StartStopStep):
    """What `inspect stats`, and Flower with it, say of the broker. Celery's own answer takes out one password, and has
    those of the other sentinels, of sentinels themselves and of a unix socket in it."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def info(self, consumer: Any) -> dict[str, Any]:
        if not consumer.connection:
            return {"broker": "N/A"}
        return {"broker": {"transport": consumer.connection.transport_cls, "uri": consumer.connection.as_uri()}}


class _RefusesStrangers(bootsteps.StartStopStep):
    """Says on every connection, and on and on, that this worker is there. The worker ends with the refusal when another
    one is there that it would harm. Workers of a RabbitMQ say so in the Redis of their receipts."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._receipts: Any = None
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        self._timer = None
        try:
            consumer.app.memory_lease.take(self._redis(consumer), consumer.hostname)
        except self._unknown(consumer) as problem:
            logger.warning(
                "action=lease_unknown problem=%s; see that no other deployment is there", type(problem).__name__
            )
            if isinstance(problem, redis.ResponseError):
                return
        self._timer = consumer.timer.call_repeatedly(lease_module.EVERY_S, self._renew, (consumer,))

    def stop(self, consumer: Any) -> None:
        timer, self._timer = getattr(self, "_timer", None), None
        if timer is not None:
            timer.cancel()
            self._tell(consumer.app.memory_lease.drop, consumer)

    def _renew(self, consumer: Any) -> None:
        self._tell(consumer.app.memory_lease.renew, consumer)

    def _redis(self, consumer: Any) -> Any:
        if consumer.connection.transport.driver_type == "redis":
            return _redis_of(consumer)
        if self._receipts is None:
            self._receipts = consumer.app.memory_receipts()
        return self._receipts

    @staticmethod
    def _unknown(consumer: Any) -> tuple[type[Exception], ...]:
        """What hinders no start: an access list without our key, and trouble of a Redis that is not the broker."""
        if consumer.connection.transport.driver_type == "redis":
            return (redis.ResponseError,)
        return (redis.RedisError, OSError)

    def _tell(self, tell: Callable[[Any, str], object], consumer: Any) -> None:
        try:
            tell(self._redis(consumer), consumer.hostname)
        except (redis.RedisError, OSError, AttributeError) as problem:  # AttributeError: kombu has closed it meanwhile
            logger.info("action=lease_not_told problem=%s; told again on the next connection", type(problem).__name__)


class _TakesTurns(bootsteps.StartStopStep):
    """Looks now and then whether it is this worker's turn to remove expired facts, and orders that when it is: as a
    task, which any worker may take."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._receipts: Any = None
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        self._timer = consumer.timer.call_repeatedly(consumer.app.memory_turns.look_s, self._look, (consumer,))

    def stop(self, consumer: Any) -> None:
        timer, self._timer = getattr(self, "_timer", None), None
        if timer is not None:
            timer.cancel()

    def _look(self, consumer: Any) -> None:
        turns = consumer.app.memory_turns
        if self._receipts is None:
            self._receipts = consumer.app.memory_receipts()
        try:
            for tenant, key in turns.take(self._receipts, consumer.hostname):
                try:
                    tasks.order_expiry(consumer.app, tenant, key)
                except (*consumer.connection_errors, *consumer.channel_errors, OperationalError) as problem:
                    logger.warning("action=turn_given_back problem=%s; another look takes it", type(problem).__name__)
                    turns.give_back(self._receipts, tenant)
        except errors.RedisUnavailable:
            logger.warning("action=turns_unknown; expired facts stay in the store until Redis answers")


def _receipts_of(given: settings.Settings) -> redis.Redis:
    timeout_s = given.redis_timeout_s
    return redis_client.connect(given.producer.redis_url, connect_timeout_s=timeout_s, socket_timeout_s=timeout_s)


def _redis_of(consumer: Any) -> Any:
    """A client of the broker's Redis beside the one that waits for messages: that one has its connection to itself."""
    with consumer.connection.default_channel.conn_or_acquire() as client:
        return client


class _WithoutBodies(logging.Filter):
    """Keeps the first line of what Celery or kombu says of a message it cannot use; the rest quotes the message."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith(_BODY_FOLLOWS):
            record.msg = (
                text.partition("\n")[0].partition("%")[0].rstrip(" :[") + "; discarded, its content is not shown"
            )
            record.args, record.exc_info, record.exc_text = (), None, None
        return True


class _SaysWhatToDo(logging.Filter):
    """In Celery's words about a Redis that it cannot reach, says what is wrong in ours: the exception's own may go on
    for a page, and name no remedy."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                redis_client.trouble(one) if isinstance(one, redis.RedisError) else one for one in record.args
            )
        return True


def _mend_words() -> None:
    for name in _LOGS_BODIES:
        theirs = logging.getLogger(name)
        for wanted in (_WithoutBodies, _SaysWhatToDo):
            if not any(isinstance(present, wanted) for present in theirs.filters):
                theirs.addFilter(wanted())


def _broker(given: settings.Settings) -> dict[str, Any]:
    url = given.producer.broker_url
    if rabbitmq.is_rabbitmq(url):
        return {
            "broker_url": rabbitmq.plain_url(url),
            "broker_use_ssl": rabbitmq.tls_options(url) or False,
            "broker_heartbeat": _HEARTBEAT_S,
            # Another try only for a connection that had gone stale: what a blocked RabbitMQ has not confirmed it may
            # still take, and each try is one more copy.
            "task_publish_retry_policy": {"max_retries": 1, "interval_start": 0, "interval_step": 0},
            "broker_transport_options": {
                "confirm_publish": True,  # a retry that a dying RabbitMQ never got must not look published
                # A frozen one must not freeze a worker for good.
                "read_timeout": given.redis_timeout_s,
                "write_timeout": given.redis_timeout_s,
            },
        }
    form = redis_client.kombu_form(url, connect_timeout_s=given.redis_timeout_s)
    return {
        "broker_url": form.url,
        "broker_use_ssl": form.ssl,
        "broker_transport_options": {**_redis_options(given), **form.transport_options},
    }


def _redis_options(given: settings.Settings) -> dict[str, Any]:
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
        # A server that froze or lost its power, and is not missed until its connection is asked: left after twice this.
        "health_check_interval": 10,
    }
