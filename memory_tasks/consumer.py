"""Celery's consumer, which asks of a broker what a worker needs before it takes the first message.

On every connection to a RabbitMQ it declares both queues, and the exchanges and queues in which retries wait (Celery's
native delayed delivery: `celery_delayed_0` to `_27`, quorum queues too). Celery does so itself, but tries for ever when
a queue is there as another kind, and goes on without delayed delivery, which would lose retries. Here the worker ends
and says what to do. It ends too on a member of a Redis Cluster, where Celery would try for ever.

A login or virtual host that RabbitMQ refuses may be made any moment: the worker says so and tries again, every two
seconds.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import redis
from celery.worker import consumer
from kombu.transport import native_delayed_delivery

from memory_tasks import eviction
from producer import errors, rabbitmq, redis_client

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)

_REFUSED_PAUSE_S = 2.0  # Celery would try several times a second


class Consumer(consumer.Consumer):
    def connect(self) -> Any:
        try:
            connection = super().connect()
            if connection.transport.driver_type == "amqp":
                _declare(connection)
            elif connection.transport.driver_type == "redis":
                _examine(connection)
        except redis_client.CLUSTER_ERRORS:
            raise errors.Unsupported(eviction.NO_CLUSTER) from None
        except (*self.connection_errors, *self.channel_errors) as problem:
            code = getattr(problem, "code", 0)
            if code == rabbitmq.OTHER_KIND:
                raise errors.SettingsRefused("MEMORY_BROKER_URL", rabbitmq.words(problem)) from None
            if code in rabbitmq.REFUSALS:
                logger.error("action=broker_refused %s; this worker tries again", rabbitmq.words(problem))
                time.sleep(_REFUSED_PAUSE_S)
            raise
        return connection


def _examine(connection: Any) -> None:
    with connection.default_channel.conn_or_acquire() as client:
        try:
            server = client.info("server")
        except redis.exceptions.NoPermissionError:  # an access list without INFO
            return
    eviction.check_mode(server)


def _declare(connection: Any) -> None:
    with connection.channel() as channel:
        for queue in rabbitmq.queues():
            queue(channel).declare()
    native_delayed_delivery.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
