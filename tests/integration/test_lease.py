"""Which workers may use one broker together, on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis as redis_py

from memory_tasks import lease
from producer import errors, message
from tests.redis_server import redis_server

A, B, C = (message.Key(id=name, secret=name.encode() * 32) for name in "abc")


@pytest.fixture
def client(tmp_path) -> Iterator[redis_py.Redis]:
    with redis_server(tmp_path / "redis") as server:
        made = redis_py.Redis.from_url(server.url)
        yield made
        made.close()


def of(*keys: message.Key, visibility_timeout_s: float = 600.0) -> lease.Lease:
    return lease.Lease.of(keys, visibility_timeout_s=visibility_timeout_s)


def test_workers_that_share_a_key_and_the_timeout_live_together(client):
    of(A, B).take(client, "one")
    of(B, C).take(client, "two")  # a key is being replaced, one worker after the other
    of(C, B).take(client, "one")
    assert set(client.hkeys(lease.KEY)) == {b"one", b"two"}
    assert 0 < client.ttl(lease.KEY) <= 60


@pytest.mark.parametrize(
    ("other", "setting"),
    [(of(A, visibility_timeout_s=5.0), "MEMORY_VISIBILITY_TIMEOUT_S"), (of(C), "MEMORY_BROKER_URL")],
)
def test_a_stranger_is_refused_and_leaves_no_trace(client, other, setting):
    of(A, B).take(client, "one")
    with pytest.raises(errors.SettingsRefused) as caught:
        other.take(client, "two")
    assert caught.value.setting == setting
    assert client.hkeys(lease.KEY) == [b"one"]


def test_the_same_key_id_with_another_secret_is_another_key(client):
    of(A).take(client, "one")
    with pytest.raises(errors.SettingsRefused):
        of(message.Key(id="a", secret=b"x" * 32)).take(client, "two")


def test_a_worker_that_comes_back_under_its_name_may_say_something_else(client):
    of(A).take(client, "one")
    of(C, visibility_timeout_s=5.0).take(client, "one")


def test_one_that_ended_or_has_been_silent_for_long_hinders_nobody(client):
    of(A).take(client, "one")
    of(A).drop(client, "one")
    of(C).take(client, "two")
    said = json.loads(client.hget(lease.KEY, "two"))
    client.hset(lease.KEY, "two", json.dumps({**said, "at": said["at"] - 62}))
    of(A).take(client, "three")


def test_no_secret_can_be_read_from_it(client):
    of(A).take(client, "one")
    assert A.secret not in client.hget(lease.KEY, "one")


def test_of_many_keys_a_part_is_shown_and_two_that_share_most_of_them_are_no_strangers(client):
    many = [message.Key(id=str(number), secret=b"s" * 32) for number in range(1000)]
    of(*many).take(client, "one")
    of(*many[50:], A).take(client, "two")
    assert len(client.hget(lease.KEY, "one")) < 2000
