"""What `producer.broker` and `producer.rabbitmq` do with a real RabbitMQ, one node for all of these tests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from producer import errors, message, rabbitmq
from producer.broker import KombuPublisher
from producer.receipt_source import RedisReceipts
from tests.contract.test_broker import publication, wait_until
from tests.rabbitmq_server import RabbitServer, rabbitmq_server

NO_REDIS = "redis://127.0.0.1:1/0"
SOCKET_TIMEOUT_S = 0.5


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    with rabbitmq_server(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def rabbit(node: RabbitServer) -> RabbitServer:
    """The node without our queues."""
    with node.connection() as connection:
        for queue in rabbitmq.queues():
            connection.default_channel.queue_delete(queue.name)
    return node


@pytest.fixture
def publisher(rabbit: RabbitServer) -> Iterator[KombuPublisher]:
    made = KombuPublisher(rabbit.broker_url, connect_timeout_s=2.0, socket_timeout_s=SOCKET_TIMEOUT_S)
    yield made
    made.close()


@pytest.fixture
def source(rabbit: RabbitServer) -> Iterator[RedisReceipts]:
    made = RedisReceipts(NO_REDIS, broker_url=rabbit.broker_url, connect_timeout_s=0.5, socket_timeout_s=0.5)
    yield made
    made.close()


def make_classic(rabbit: RabbitServer, name: str) -> None:
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(name, durable=True, auto_delete=False)


def publishes(publisher: KombuPublisher, task_id: str) -> bool:
    try:
        publisher.publish([publication(task_id)])
    except errors.BrokerUnavailable:
        return False
    return True


def examined(rabbit: RabbitServer) -> dict[str, rabbitmq.QueueState]:
    with rabbitmq.opened(rabbit.broker_url, connect_timeout_s=2.0, socket_timeout_s=2.0) as connection:
        return {queue.name: queue for queue in rabbitmq.examine(connection)}


def test_what_is_published_waits_on_disk_in_quorum_queues(rabbit, publisher, source):
    publisher.publish([publication("1"), publication("2"), publication("3", queue=message.BACKLOG_QUEUE)])
    assert source.queue_length() == 3
    told = rabbit.control("list_queues", "name", "type", "durable").splitlines()[1:]
    assert sorted(told) == ["memory\tquorum\ttrue", "memory.backlog\tquorum\ttrue"]
    with rabbit.connection() as connection:
        got = connection.default_channel.basic_get(message.QUEUE, no_ack=True)
    assert got.properties["delivery_mode"] == 2
    assert not got.delivery_info["redelivered"]


def test_messages_that_a_consumer_has_do_not_wait(rabbit, publisher, source):
    publisher.publish([publication("1"), publication("2")])
    with rabbit.connection() as connection:
        assert connection.default_channel.basic_get(message.QUEUE) is not None
        wait_until(lambda: source.queue_length() == 1)


def test_a_message_to_a_queue_that_was_deleted_is_an_error_and_is_declared_again_soon(rabbit, publisher, source):
    publisher.publish([publication("1")])
    with rabbit.connection() as connection:
        connection.default_channel.queue_delete(message.QUEUE)
    assert source.queue_length() == 0  # nothing waits in a queue that is not there, and it is not made by asking
    assert not examined(rabbit)[message.QUEUE].exists
    for _ in range(2):  # not at once: workers must hear first that it is gone, or they would hear nothing ever again
        with pytest.raises(errors.BrokerUnavailable, match="has lost our queues"):
            publisher.publish([publication("2")])
    assert not examined(rabbit)[message.QUEUE].exists
    wait_until(lambda: publishes(publisher, "2"))
    assert source.queue_length() == 1


def test_a_frozen_rabbitmq_costs_a_bounded_time(rabbit, publisher, source):
    publisher.publish([publication("1")])
    rabbit.freeze()
    try:
        started = time.monotonic()
        with pytest.raises(errors.BrokerUnavailable):
            publisher.publish([publication("2")])
        assert time.monotonic() - started < 2 * SOCKET_TIMEOUT_S
        with pytest.raises(errors.BrokerUnavailable):
            source.queue_length()
        assert time.monotonic() - started < 4 * SOCKET_TIMEOUT_S
    finally:
        rabbit.thaw()
    publisher.publish([publication("3")])
    assert source.queue_length() >= 2  # the unconfirmed one may be there too


@pytest.mark.slow
def test_while_an_alarm_blocks_publishers_one_connection_waits_and_publishing_fails_at_once(rabbit, publisher, source):
    publisher.publish([publication("1")])
    rabbit.control("set_vm_memory_high_watermark", "0.0001")
    try:
        with pytest.raises(errors.BrokerUnavailable, match="alarm"):
            publisher.publish([publication("2")])
        started = time.monotonic()
        for _ in range(3):
            with pytest.raises(errors.BrokerUnavailable, match="alarm"):
                publisher.publish([publication("2")])
        assert time.monotonic() - started < SOCKET_TIMEOUT_S
        assert rabbit.control("list_connections", "state").split() == ["state", "blocked"]
    finally:
        rabbit.control("set_vm_memory_high_watermark", "0.4")
    publisher.publish([publication("3")])
    wait_until(lambda: source.queue_length() == 3)  # the blocked one came through, once


def test_wrong_logins_and_virtual_hosts_are_said_in_words_of_ours(rabbit):
    for url, expected in (
        (rabbit.broker_url.replace(rabbit.password, "wrong"), "refuses this user"),
        (rabbit.broker_url.removesuffix("/") + "nowhere", "no such virtual host"),
    ):
        publisher = KombuPublisher(url, connect_timeout_s=2.0)
        with pytest.raises(errors.BrokerUnavailable, match=expected) as caught:
            publisher.publish([publication("1")])
        assert "wrong" not in str(caught.value) and "nowhere" not in str(caught.value)
        publisher.close()


@pytest.mark.parametrize("name", [message.QUEUE, message.BACKLOG_QUEUE])
def test_a_classic_queue_of_our_name_is_refused_with_what_to_do(rabbit, publisher, name):
    make_classic(rabbit, name)
    with pytest.raises(errors.BrokerUnavailable, match=f"has the queue {name}, but of another kind.*drain and delete"):
        publisher.publish([publication("1")])
    state = examined(rabbit)[name]
    assert (state.exists, state.is_quorum) == (True, False)


def test_errors_quote_nothing_of_a_message(rabbit, publisher):
    make_classic(rabbit, message.QUEUE)
    with pytest.raises(errors.BrokerUnavailable) as caught:
        publisher.publish([publication("secret-id")])
    assert "secret-id" not in str(caught.value)
    assert caught.value.__cause__ is None
