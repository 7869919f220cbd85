"""Receipts seen from a host: taken off their Redis list, and how long the broker's queues are. Loads redis lazily."""

from __future__ import annotations

import os
import urllib.parse
from typing import Any

from producer import broker, errors, message, receipt
from producer.redis_client import redis_url_of

__all__ = ["RedisReceipts"]


class RedisReceipts:
    """Take receipts off `memory:receipts:<journalId>`, and ask how long the queues are. For one thread at a time.

    Workers push at the right end, this pops at the left (LPOP with a count: Redis 6.2 or later, any Valkey). A receipt
    that was popped and not journaled is lost, which costs an idempotent redelivery.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        broker_url: str | None = None,
        connect_timeout_s: float = 1.0,
        socket_timeout_s: float = 1.5,
    ) -> None:
        """`broker_url`: where the queues are, when not in this Redis; a RabbitMQ is asked through kombu."""
        self._url = redis_url_of(redis_url)
        self._broker_url = broker_url or redis_url
        self._connect_timeout_s = connect_timeout_s
        self._socket_timeout_s = socket_timeout_s
        self._clients: dict[str, Any] = {}
        self._pid = os.getpid()

    def pop(self, journal_id: str, max_entries: int) -> list[bytes]:
        """The oldest signed receipts, taken off the list. Raises `errors.RedisUnavailable`."""
        return self._ask(self._url, lambda client: client.lpop(receipt.list_name(journal_id), max_entries)) or []

    def queue_length(self) -> int:
        """Messages waiting in both queues; those a worker has taken are not among them.

        Raises `errors.RedisUnavailable` or `errors.BrokerUnavailable`.
        """
        if self._broker_url.startswith("amqp"):
            return self._amqp_queue_length()
        url = redis_url_of(self._broker_url)
        return sum(self._ask(url, lambda client: [client.llen(n) for n in (message.QUEUE, message.BACKLOG_QUEUE)]))

    def _ask(self, url: str, what: Any) -> Any:
        import redis  # nothing of it may be loaded on the hook path

        try:
            return what(self._client(url))
        except (redis.RedisError, OSError) as problem:
            raise errors.RedisUnavailable(f"Redis did not answer ({type(problem).__name__})") from None

    def _client(self, url: str) -> Any:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._clients = {}  # the sockets are the parent's
        if url not in self._clients:
            options: dict[str, Any] = {"socket_timeout": self._socket_timeout_s, "retry": Retry(NoBackoff(), 0)}
            if urllib.parse.urlsplit(url).scheme != "unix":
                options["socket_connect_timeout"] = self._connect_timeout_s
            self._clients[url] = redis.Redis.from_url(url, **options)
        return self._clients[url]

    def _amqp_queue_length(self) -> int:
        import kombu

        try:
            with kombu.Connection(self._broker_url, connect_timeout=self._connect_timeout_s) as connection:
                channel = connection.channel()
                return sum(
                    queue(channel).queue_declare(passive=True).message_count
                    for queue in broker.queues(self._broker_url)
                )
        except Exception as problem:  # noqa: BLE001
            raise errors.BrokerUnavailable(f"the broker did not answer ({type(problem).__name__})") from None

    def close(self) -> None:
        """Close the connections."""
        clients, self._clients = self._clients, {}
        if self._pid == os.getpid():
            for client in clients.values():
                client.close()
