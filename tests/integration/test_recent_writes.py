"""Recent writes on a real Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from producer import errors
from producer.recall import recent
from tests.redis_server import RedisServer, redis_server

SCOPE = "a" * 64
OTHER = "b" * 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), persistent=False) as running:
        yield running


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def writes(server: RedisServer, raw: redis.Redis) -> Iterator[recent.RecentWrites]:
    cache = recent.RecentWrites(server.url, tenant="t", cache_key="k" * 32)
    yield cache
    cache.close()


def entry(id_: str, **record: Any) -> dict[str, Any]:
    return {"id": id_, "label": "MEMORY_FACT", "record": {"factId": id_, "text": f"text of {id_}", **record}}


def test_what_was_put_is_read_newest_first_by_every_host_of_the_scope(writes, server):
    writes.put(SCOPE, entry("one"))
    writes.put(SCOPE, entry("two", active=True, confidence=0.5))
    other_host = recent.RecentWrites(server.url, tenant="t", cache_key=b"k" * 32)
    assert {e["id"] for e in other_host.read(SCOPE)} == {"one", "two"}
    assert entry("two", active=True, confidence=0.5) in other_host.read(SCOPE)
    assert other_host.read(OTHER) == []
    other_host.close()


def test_an_entry_that_was_dropped_is_gone(writes):
    writes.put(SCOPE, entry("one"))
    writes.put(SCOPE, entry("two"))
    writes.drop_all([(SCOPE, "one"), (SCOPE, "unknown"), (OTHER, "two")])
    writes.drop_all([])
    assert [e["id"] for e in writes.read(SCOPE)] == ["two"]


def test_entries_of_many_scopes_go_as_one_and_the_last_ones_are_the_newest(server, raw):
    few = recent.RecentWrites(server.url, tenant="t", cache_key="k" * 32, max_entries=10)
    ids = [f"{number * 37 % 40:02}" for number in range(40)]
    raw.config_resetstat()
    few.put_all([(SCOPE, entry(id_)) for id_ in ids] + [(OTHER, entry("other"))])
    calls = {name: stats["calls"] for name, stats in raw.info("commandstats").items()}
    assert (calls["cmdstat_time"], calls["cmdstat_eval"]) == (1, 2)
    assert [e["id"] for e in few.read(SCOPE)] == ids[:-11:-1]
    assert [e["id"] for e in few.read(OTHER)] == ["other"]
    few.drop_all([(OTHER, "other"), *((SCOPE, id_) for id_ in ids[1:])])
    assert few.read(SCOPE) == few.read(OTHER) == []
    few.close()


def test_a_scope_that_redis_refuses_holds_up_no_other_and_its_error_quotes_nothing(writes, raw):
    raw.set(recent.key_name("t", SCOPE), "not a hash")
    for call in (
        lambda: writes.put_all([(SCOPE, entry("one")), (OTHER, entry("two"))]),
        lambda: writes.drop_all([(SCOPE, "one"), (OTHER, "three")]),
    ):
        with pytest.raises(errors.RedisUnavailable) as caught:
            call()
        said = f"{caught.value} {caught.value.__cause__}"
        assert not any(word in said for word in ("text of", SCOPE, "pipeline"))
    assert [e["id"] for e in writes.read(OTHER)] == ["two"]


def test_the_sides_of_a_turn_are_not_kept_beside_its_summary(writes, raw):
    record = {"eventId": "e", "summary": "short", "userText": "long user text", "assistantText": "long answer"}
    writes.put(SCOPE, {"id": "e", "label": "EPISODE", "record": record})
    assert writes.read(SCOPE) == [{"id": "e", "label": "EPISODE", "record": {"eventId": "e", "summary": "short"}}]


@pytest.mark.parametrize("bad", ["\ud83d", "a\x00b", "\u2028", 'quote " and \\', "emoji 🙂"])
def test_bad_text_survives_the_way_through_redis(writes, bad):
    writes.put(SCOPE, entry("one", text=bad))
    assert writes.read(SCOPE)[0]["record"]["text"] == bad


def test_entries_bytes_and_age_are_bounded_and_the_key_always_expires(server, raw):
    few = recent.RecentWrites(server.url, tenant="t", cache_key="k" * 32, max_entries=3, ttl_s=30)
    for number in range(8):
        few.put(SCOPE, entry(f"id{number}"))
    assert {e["id"] for e in few.read(SCOPE)} == {"id5", "id6", "id7"}
    assert raw.hlen(recent.key_name("t", SCOPE)) == 3
    assert 0 < raw.pttl(recent.key_name("t", SCOPE)) <= 30_000
    few.close()

    small = recent.RecentWrites(server.url, tenant="t", cache_key="k" * 32, max_bytes=5000)
    for number in range(20):
        small.put(OTHER, entry(f"id{number}", text="x" * 1000))
    assert sum(len(v) for v in raw.hvals(recent.key_name("t", OTHER))) <= 5000
    assert "id19" in {e["id"] for e in small.read(OTHER)}
    small.put(OTHER, entry("giant", text="x" * 6000))
    assert "giant" not in {e["id"] for e in small.read(OTHER)}
    small.close()


def test_an_entry_ends_with_its_life_even_when_others_keep_the_key_alive(server, raw):
    brief = recent.RecentWrites(server.url, tenant="t", cache_key="k" * 32, ttl_s=0.2)
    brief.put(SCOPE, entry("old"))
    raw.persist(recent.key_name("t", SCOPE))
    deadline = time.monotonic() + 5
    while brief.read(SCOPE) and time.monotonic() < deadline:
        pass
    assert brief.read(SCOPE) == []
    brief.put(SCOPE, entry("new"))
    assert raw.hkeys(recent.key_name("t", SCOPE)) == [b"new"]
    brief.close()


def test_only_entries_signed_by_this_deployment_for_this_scope_and_tenant_are_read(writes, server, raw):
    writes.put(SCOPE, entry("one"))
    name = recent.key_name("t", SCOPE)
    value = raw.hget(name, "one")
    raw.hset(recent.key_name("t", OTHER), "one", value)  # moved to another scope
    raw.hset(name, "other-id", value)  # under another id
    raw.hset(name, "forged", b"0" * 64 + value[64:])
    raw.hset(name, "changed", value.replace(b"text of one", b"text of two"))
    raw.hset(name, "noise", b"\xff\xfe")
    raw.hset(name, "short", b"")
    assert [e["id"] for e in writes.read(SCOPE)] == ["one"]
    assert writes.read(OTHER) == []
    assert writes.refused_entries == 6
    stranger = recent.RecentWrites(server.url, tenant="t", cache_key="x" * 32)
    assert stranger.read(SCOPE) == []
    stranger.close()


def test_a_dead_or_frozen_redis_is_one_retryable_error_within_the_timeout(tmp_path: Path):
    with redis_server(tmp_path, persistent=False) as server:
        cache = recent.RecentWrites(server.url, tenant="t", cache_key="k" * 32, timeout_s=0.2)
        cache.put(SCOPE, entry("one"))
        server.freeze()
        started = time.monotonic()
        with pytest.raises(errors.RedisUnavailable):
            cache.read(SCOPE)
        assert time.monotonic() - started < 2
        server.thaw()
        assert [e["id"] for e in cache.read(SCOPE)] == ["one"]
        server.kill()
        for call in (
            lambda: cache.read(SCOPE),
            lambda: cache.put(SCOPE, entry("x")),
            lambda: cache.drop_all([(SCOPE, "x")]),
        ):
            with pytest.raises(errors.RedisUnavailable):
                call()
        server.start()
        assert cache.read(SCOPE) == []  # the connection comes back by itself
        cache.close()


def test_nothing_is_added_while_redis_is_nearly_full(tmp_path: Path):
    with redis_server(tmp_path, persistent=False, extra=["--maxmemory", "20mb"]) as server:
        now = [0.0]
        cache = recent.RecentWrites(server.url, tenant="t", cache_key="k" * 32, clock=lambda: now[0])
        cache.put(SCOPE, entry("one"))
        with redis.Redis.from_url(server.url) as client:
            client.rpush("queue", *[b"x" * 500_000] * 30)
            now[0] += 60
            with pytest.raises(errors.RedisUnavailable):
                cache.put(SCOPE, entry("two"))
            assert [e["id"] for e in cache.read(SCOPE)] == ["one"]
            client.delete("queue")
            now[0] += 60
            cache.put(SCOPE, entry("two"))
        cache.close()
