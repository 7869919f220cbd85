"""Receipts seen from a host: taken off their Redis list, and how long the broker's queues are. Loads redis lazily."""

from __future__ import annotations

import os
from typing import Any

from producer import errors, message, rabbitmq, receipt

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
        self._url = redis_url
        self._broker_url = broker_url or redis_url
        self._connect_timeout_s = connect_timeout_s
        self._socket_timeout_s = socket_timeout_s
        self._clients: dict[str, Any] = {}
        self._pid = os.getpid()

    def pop(self, journal_id: str, max_entries: int) -> list[bytes]:
        """The oldest signed receipts, taken off the list. Raises `errors.RedisUnavailable`."""
        return self._ask(self._url, lambda client: client.lpop(receipt.list_name(journal_id), max_entries)) or []

    def queue_length(self) -> int:
        """Messages waiting in both queues; those a worker has taken, or that wait for a retry, are not among them.

        Raises `errors.RedisUnavailable` or `errors.BrokerUnavailable`.
        """
        if rabbitmq.is_rabbitmq(self._broker_url):
            return self._amqp_queue_length()
        names = (message.QUEUE, message.BACKLOG_QUEUE)
        return sum(self._ask(self._broker_url, lambda client: [client.llen(name) for name in names]))

    def _ask(self, url: str, what: Any) -> Any:
        import redis  # nothing of it may be loaded on the hook path

        from producer import redis_client

        try:
            return what(self._client(url))
        except (redis.RedisError, OSError) as problem:
            raise errors.RedisUnavailable(f"Redis {redis_client.trouble(problem)}") from None

    def _client(self, url: str) -> Any:
        from producer import redis_client

        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._clients = {}  # the sockets are the parent's
        if url not in self._clients:
            self._clients[url] = redis_client.connect(
                url, connect_timeout_s=self._connect_timeout_s, socket_timeout_s=self._socket_timeout_s
            )
        return self._clients[url]

    def _amqp_queue_length(self) -> int:
        """A connection for each time: this is asked rarely, and only while something is overdue."""
        timeouts = {"connect_timeout_s": self._connect_timeout_s, "socket_timeout_s": self._socket_timeout_s}
        with rabbitmq.opened(self._broker_url, **timeouts) as connection:
            return sum(queue.waiting for queue in rabbitmq.examine(connection))

    def close(self) -> None:
        """Close the connections."""
        clients, self._clients = self._clients, {}
        if self._pid == os.getpid():
            for client in clients.values():
                client.close()
