"""What a Redis may answer in place of doing its work: named, no event lost, and gone on from once it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from producer import broker, errors, message, publishing, receipt_source, redis_client
from producer.recall import recent
from tests import redis_users
from tests.acceptance.machine import machine, until
from tests.redis_server import RedisServer, redis_server

KEY = message.Key(id="key", secret=b"s" * 32)
JOURNAL = "a" * 32


class Host:
    """What a host has of a Redis: its publisher and its receipts."""

    def __init__(self, url: str) -> None:
        self.publisher = broker.KombuPublisher(url, connect_timeout_s=1.0, socket_timeout_s=1.0)
        self.source = receipt_source.RedisReceipts(url, connect_timeout_s=1.0, socket_timeout_s=1.0)

    def publish(self) -> None:
        task = "0" * 64
        self.publisher.publish([publication(task)])

    def close(self) -> None:
        self.publisher.close()
        self.source.close()


def publication(task_id: str) -> publishing.Publication:
    kwargs = {"batch": []}
    return publishing.Publication(
        task_id=task_id, queue=message.QUEUE, kwargs=kwargs, headers=message.sign(kwargs, KEY), count=1
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    extra = ["--save", "3600 1", "--enable-debug-command", "yes"]
    with redis_server(tmp_path / "redis", persistent=False, extra=extra) as running:
        yield running


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis_py.Redis]:
    made = redis_py.Redis.from_url(server.url)
    yield made
    made.close()


@pytest.fixture
def host(server: RedisServer) -> Iterator[Host]:
    made = Host(server.broker_url)
    yield made
    made.close()


def _cannot_save(client: redis_py.Redis, server: RedisServer) -> Callable[[], object]:
    in_the_way = server.directory / "dump.rdb"
    in_the_way.mkdir()
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "a save that failed")

    def cure() -> None:
        in_the_way.rmdir()
        client.bgsave()
        until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok", "a save")

    return cure


def _is_a_replica(client: redis_py.Redis, _: RedisServer) -> Callable[[], object]:
    client.replicaof("127.0.0.1", "1")
    return lambda: client.replicaof("NO", "ONE")


def _is_full(client: redis_py.Redis, _: RedisServer) -> Callable[[], object]:
    client.config_set("maxmemory", 1)
    return lambda: client.config_set("maxmemory", 0)


def _wants_another_password(client: redis_py.Redis, _: RedisServer) -> Callable[[], object]:
    client.config_set("requirepass", "another")
    client.client_kill_filter(_type="normal", skipme=True)
    return lambda: client.config_set("requirepass", "")


def _takes_no_more_clients(client: redis_py.Redis, _: RedisServer) -> Callable[[], object]:
    client.ping()
    client.client_kill_filter(_type="normal", skipme=True)
    client.config_set("maxclients", 1)
    return lambda: client.config_set("maxclients", 100)


def _forbids(client: redis_py.Redis, _: RedisServer) -> Callable[[], object]:
    client.execute_command("ACL", "SETUSER", "default", "-lpush")
    return lambda: client.execute_command("ACL", "SETUSER", "default", "+lpush")


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (_cannot_save, "cannot save to its own disk"),
        (_is_a_replica, "is a replica"),
        (_is_full, "is full"),
        (_wants_another_password, "refuses the login"),
        (_takes_no_more_clients, "no room for another client"),
        (_forbids, "forbids this user"),
    ],
)
def test_a_redis_that(trouble, words, server, client, host):
    """... is in this trouble says so to its hosts in our words, and is gone on with by the same connections' owners."""
    host.publish()
    cure = trouble(client, server)
    # A connection that was closed for it may be found out first.
    until(lambda: words in _refusal(host), words)
    cure()
    host.publish()
    assert client.llen(message.QUEUE) == 2
    assert host.source.pop(JOURNAL, 10) == []


def _refusal(host: Host) -> str:
    """Why it cannot publish; "" when it can."""
    try:
        host.publish()
    except errors.BrokerUnavailable as problem:
        return str(problem)
    return ""


def test_a_replica_is_left_so_that_the_name_is_looked_up_anew(server, client):
    with redis_client.connect(server.broker_url, connect_timeout_s=1, socket_timeout_s=1) as ours:
        ours.set("a", 1)
        before = ours.client_id()
        client.replicaof("127.0.0.1", "1")
        with pytest.raises(redis_py.ConnectionError) as caught:
            ours.set("a", 2)
        assert redis_client.trouble(caught.value).startswith("is a replica")
        client.replicaof("NO", "ONE")
        ours.set("a", 3)
        assert ours.client_id() != before


def test_a_redis_that_loads_its_data_says_so_and_is_waited_for(tmp_path):
    with redis_server(tmp_path / "redis") as server:
        with redis_py.Redis.from_url(server.url) as client, client.pipeline(transaction=False) as pipeline:
            for number in range(2000):
                pipeline.set(f"filling:{number}", "x" * 1000)
            pipeline.execute()
        server.stop()
        slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "2048"]
        server.start(extra=slow, wait=False)  # an append-only file that takes two seconds
        host = Host(server.broker_url)
        said = []

        def publishes() -> bool:
            try:
                host.publish()
            except errors.BrokerUnavailable as problem:
                said.append(str(problem))
                return False
            return True

        until(publishes, "the data to be loaded")
        assert any("still loads its data" in words for words in said)
        host.close()


def test_connections_that_were_killed_or_closed_for_idleness_are_made_anew_without_an_error(server, client, host):
    cache = recent.RecentWrites(server.broker_url, tenant="t", cache_key="k" * 32)
    assert host.source.pop(JOURNAL, 10) == []
    assert cache.read("scope") == []
    client.client_kill_filter(_type="normal", skipme=True)
    assert host.source.pop(JOURNAL, 10) == []
    assert cache.read("scope") == []
    client.config_set("timeout", 1)
    until(lambda: len(client.client_list()) == 1, "idle connections to be closed")
    assert host.source.pop(JOURNAL, 10) == []
    assert cache.read("scope") == []
    cache.close()


def test_no_script_is_expected_to_be_there(server, client):
    cache = recent.RecentWrites(server.broker_url, tenant="t", cache_key="k" * 32)
    entry = {"id": "1", "label": "MEMORY_FACT", "record": {"text": "tabs"}}
    cache.put("scope", entry)
    client.script_flush()
    cache.put("scope", {**entry, "id": "2"})
    assert len(cache.read("scope")) == 2
    cache.close()


def test_a_password_is_rotated_without_a_moment_in_which_nobody_gets_in(tmp_path):
    def users(*passwords: str) -> list[str]:
        return [f"host on {' '.join('>' + word for word in passwords)} ~* &* +@all"]

    with redis_server(tmp_path, users=users("old"), password="admin") as server:
        admin = redis_py.Redis.from_url(server.url)
        before, after = Host(server.url_of("host", "old")), Host(server.url_of("host", "new"))
        before.publish()
        for passwords in (("old", "new"), ("new",)):
            server.write_users(users(*passwords))
            admin.acl_load()
            if "old" in passwords:
                until(lambda: not _refusal(before), "the old password to be taken")
            until(lambda: not _refusal(after), "the new password to be taken")  # loading ends connections
        admin.client_kill_filter(_type="normal", skipme=True)
        until(lambda: "refuses the login" in _refusal(before), "the old password to be refused")
        for made in (before, after, admin):
            made.close()


def test_hosts_and_workers_need_no_more_than_the_runbooks_access_lists(tmp_path):
    """A host can send, take receipts and read recent writes; it cannot read the queue, list keys or run scripts."""
    users = redis_users.of_runbook(host="a-host", worker="a-worker")
    with (
        redis_server(tmp_path / "redis", unixsocket=False, users=users, password="admin") as server,
        machine(tmp_path / "m", MEMORY_BROKER_URL=server.url_of("host", "a-host")) as made,
        redis_py.Redis.from_url(server.url) as admin,
    ):
        as_worker = {"MEMORY_BROKER_URL": server.url_of("worker", "a-worker")}
        worker = made.start("worker", changes=as_worker)
        until(lambda: " ready." in worker.logged(), "the worker", said=made.logged)
        made.start_agent()
        made.json("remember", "Prefers tabs.", "--wait")
        assert made.json("recall", "tabs")["sources"]["recent"] == "ok"
        assert made.json("status", changes=as_worker)["redis"]["counts"]["stored"] == 1
        refused = {(str(one["username"]), str(one["object"])) for one in admin.acl_log()}
        assert refused <= {("host", "client|setinfo"), ("worker", "config|get")}, made.logged()
        with redis_py.Redis.from_url(server.url_of("host", "a-host")) as host:
            for forbidden in (
                lambda: host.lpop(message.QUEUE),
                lambda: host.lrange(message.QUEUE, 0, -1),
                lambda: host.keys("*"),
                lambda: host.info(),
                lambda: host.eval("return 1", 0),
                lambda: host.hset("memory:recent:local:x", "a", "b"),
                lambda: host.rpush(f"memory:receipts:{JOURNAL}", b"x"),
                lambda: host.hgetall("memory:workers"),
                lambda: host.flushall(),
            ):
                with pytest.raises(redis_py.exceptions.NoPermissionError):
                    forbidden()
        with redis_py.Redis.from_url(as_worker["MEMORY_BROKER_URL"]) as other:
            for forbidden in (lambda: other.flushall(), lambda: other.keys("*"), lambda: other.get("of-somebody-else")):
                with pytest.raises(redis_py.exceptions.NoPermissionError):
                    forbidden()


def test_a_call_to_a_frozen_redis_or_sentinel_ends_in_the_time_that_is_stated(tmp_path):
    with redis_server(tmp_path / "redis", unixsocket=False) as server:
        ours = redis_client.connect(server.url, connect_timeout_s=0.3, socket_timeout_s=0.3)
        ours.ping()
        server.freeze()
        began = time.monotonic()
        with pytest.raises(redis_py.TimeoutError):
            ours.ping()
        assert time.monotonic() - began < 3.0
        as_sentinel = f"sentinel://127.0.0.1:{server.port}/0?master_name=m"
        with redis_client.connect(as_sentinel, connect_timeout_s=0.3, socket_timeout_s=0.3) as sentinels:
            with pytest.raises(redis_py.RedisError) as caught:
                sentinels.ping()
            assert "no sentinel names" in redis_client.trouble(caught.value)
        assert time.monotonic() - began < 6.0
        server.thaw()
        ours.close()
