"""Deleted comes back (F36): a person is forgotten while what they said is everywhere; all of it replays, none returns.

Commands, agents and workers are processes, the broker is a real Redis, the store is the RushDB test server.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from producer.journal import Journal, compaction
from producer.journal.index import Index
from tests.acceptance.machine import Machine, Service, machine, until
from tests.redis_server import RedisServer, redis_server
from tests.rushdb_server import RunningServer, rushdb_server

SHARED = {
    "MEMORY_SCOPE_SALT": "salt of this deployment, of thirty-two signs",
    "MEMORY_PRODUCER_KEY": "p" * 32,
    "MEMORY_CACHE_KEY": "c" * 32,
}
NO_BROKER = {"MEMORY_BROKER_URL": "redis://127.0.0.1:1/0"}
PLACES = {
    *("store", "recent_writes", "queues", "dead_letters", "dead_letters_listed", "journal", "journal_bytes"),
    *("prompts", "quarantine", "other_journals", "backups"),
}
RETRY_AFTER_S = 40  # two commands run meanwhile, on however busy a machine
WORD = "boathouse"  # in everything that is to be forgotten, and in nothing else


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with rushdb_server(tmp_path / "rushdb.sqlite") as running:
        yield running
        assert running.crashes() == 0


def on(redis: RedisServer, server: RunningServer, **more: str) -> dict[str, str]:
    return {
        **SHARED,
        "MEMORY_BROKER_URL": redis.broker_url,
        "MEMORY_STORE_URL": f"rushdb+{server.url}",
        "MEMORY_STORE_TOKEN": server.token,
        **more,
    }


def remember(host: Machine, text: str, *words: str, changes: dict[str, str] | None = None, code: int = 0) -> str:
    participant = () if "--participant" in words else ("--participant", "ann")
    return str(host.json("remember", text, *participant, *words, exit_code=code, changes=changes)["id"])


def recalled(host: Machine, participant: str = "ann") -> set[str]:
    found = host.json("recall", f"where is the key of the {WORD}", "--limit", "50", "--participant", participant)
    return {one["id"] for one in found["memories"]}


def text_in_redis(client: redis_py.Redis) -> list[str]:
    """Names of the keys in which the word stands, also within a message's body."""
    readers: dict[str, Any] = {
        "string": lambda name: [client.get(name)],
        "list": lambda name: client.lrange(name, 0, -1),
        "hash": lambda name: [*client.hgetall(name).keys(), *client.hgetall(name).values()],
        "set": client.smembers,
        "zset": lambda name: client.zrange(name, 0, -1),
    }
    found = []
    for name in client.scan_iter():
        values = readers.get(client.type(name).decode(), lambda _: [])(name)
        bodies = [base64.b64decode(body) for value in values for body in re.findall(rb'"body": "([^"]+)"', value)]
        if any(WORD.encode() in text for text in [*values, *bodies]):
            found.append(name.decode())
    return found


def text_on_disk(host: Machine) -> list[str]:
    files = [path for path in (host.state / "journal").rglob("*") if path.is_file()]
    return [path.name for path in files if WORD.encode() in path.read_bytes()]


def compact_later(host: Machine) -> None:
    """What the drainer does once the five minutes after the last publish are over."""
    given = host.settings
    with Journal.open(
        given.journal_dir,
        max_bytes=given.journal_max_bytes,
        reserve_bytes=given.journal_reserve_bytes,
        segment_max_bytes=given.segment_max_bytes,
    ) as journal:
        index = Index(journal).read_all()
        compaction.seal_finished(journal, index)
        index.poll()
        compaction.compact(journal, index, now_s=time.monotonic() + 400, everything=True)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Ann's words, and where they are."""

    bobs: str  # a fact of Bob's
    stored: bytes  # the message of what is stored and cached
    queued: bytes  # a message that no worker has had
    services: list[Service]


def spread(here: Machine, offline: Machine, server: RunningServer, client: redis_py.Redis) -> Spread:
    """Have Ann's words stored and cached, dead on two hosts, in an offline host's journal, in a queue, and waiting for
    a retry."""
    services = [here.start_agent()]
    remember(here, f"The {WORD} key is with Ingrid.")
    until(lambda: client.llen("memory") == 1, "the first message")
    queued_id = remember(here, f"The {WORD} key is queued.")
    until(lambda: client.llen("memory") == 2, "the second message")
    queued, stored = client.lpop("memory"), client.lindex("memory", 0)  # workers take them from the other end
    services.append(here.start_worker())
    until(lambda: here.pending() == [queued_id], "the first receipt", said=here.logged)
    bobs = remember(here, "The key of the shed is with Bob.", "--participant", "bob")
    until(lambda: here.pending() == [queued_id], "Bob's receipt", said=here.logged)
    for host in (here, offline):
        server.fail("quote", on="write", label="MEMORY_FACT", count=1)
        if host is here:
            remember(host, f"The {WORD} key was refused.")
        else:  # nothing delivers there but the command itself, which says that it is dead
            remember(host, f"The {WORD} key was refused.", "--wait", code=1)
        until(lambda host=host: "dead" in host.receipts().values(), "a dead letter", said=here.logged)
    remember(offline, f"The {WORD} key is offline.", changes=NO_BROKER)
    server.fail("busy", on="write", label="MEMORY_FACT", count=1, retry_after_s=RETRY_AFTER_S)
    remember(here, f"The {WORD} key waits.")
    until(lambda: server.faults_taken().get("busy"), "the retry", said=here.logged)
    until(lambda: client.hlen("memory:unacked") == 1, "its wait", said=here.logged)
    return Spread(bobs=bobs, stored=stored, queued=queued, services=services)


@pytest.mark.slow
def test_a_person_who_is_forgotten_while_their_words_are_everywhere_never_comes_back(tmp_path, redis, server):
    given = on(redis, server, MEMORY_VISIBILITY_TIMEOUT_S="120", MEMORY_RETRY_MAX_COUNTDOWN_S="45")
    with (
        machine(tmp_path / "here", **given) as here,
        machine(tmp_path / "offline", **given) as offline,
        redis_py.Redis.from_url(redis.url) as client,
    ):
        there = spread(here, offline, server, client)
        assert text_in_redis(client) and text_on_disk(here) and text_on_disk(offline)

        shown = here.json("forget", "--all", "--participant", "ann", "--dry-run")
        assert shown["counts"] == {
            "store": 1,
            "recent_writes": 1,
            "dead_letters": 1,
            "journal": 2,
            "journal_bytes": 1,
            "sessions": 0,
        }
        receipt = here.json("forget", "--all", "--participant", "ann", "--yes")
        assert client.hlen("memory:unacked") == 1, "the retry was not waiting any more"
        places = {row["place"]: row for row in receipt["places"]}
        assert set(places) == PLACES and receipt["outcome"] == "forgotten"
        for place in ("store", "recent_writes", "dead_letters"):
            assert (places[place]["state"], places[place]["count"]) == ("done", 0), (place, here.logged())
        for place, count in {"journal": 2, "dead_letters_listed": 1, "other_journals": 1}.items():
            assert (places[place]["state"], places[place]["count"]) == ("pending_until_drained", count), place
        assert (places["queues"]["state"], places["queues"]["count"]) == ("pending_until", 1)
        assert (places["journal_bytes"]["state"], places["backups"]["state"]) == ("pending_until", "unknown")
        assert recalled(here) == set()
        assert recalled(offline) == set()  # its own line is open, and the marks in the store tell

        client.rpush("memory", there.queued, there.stored, there.queued)  # with copies, as a broker may bring them
        assert offline.json("replay", "--all")["replayed"]
        there.services.append(offline.start_agent())
        for host in (here, offline):
            until(lambda host=host: not host.pending(), "all receipts", said=host.logged)
        until(lambda: not client.llen("memory") and not client.hlen("memory:unacked"), "an empty queue")

        assert here.run("replay", "--all").returncode == 1  # nothing is dead any more
        assert here.json("dead-letters", "list")["deadLetters"] == []
        for host in (here, offline):
            assert recalled(host) == set() and recalled(host, "bob") == {there.bobs}
        assert [record.get("factId") for record in server.records("MEMORY_FACT")] == [there.bobs]
        assert text_in_redis(client) == []
        for service in there.services:
            service.stop()
        for host in (here, offline):
            compact_later(host)
            assert text_on_disk(host) == []


@pytest.mark.slow
def test_a_write_that_is_applied_after_the_order_was_settled_is_looked_at_again_and_deleted(tmp_path, redis, server):
    waits = {"MEMORY_VISIBILITY_TIMEOUT_S": "60", "MEMORY_STORE_LATE_S": "14", "MEMORY_STORE_TIMEOUT_S": "1"}
    with (
        machine(tmp_path / "here", **on(redis, server, **waits)) as here,
        redis_py.Redis.from_url(redis.url) as client,
    ):
        here.start_agent()
        here.start_worker()
        server.fail("late_double", on="write", label="MEMORY_FACT", count=1, late_s=12)
        remember(here, f"The {WORD} key is with Ingrid.")
        until(lambda: server.faults_taken().get("late_double"), "the late write", said=here.logged)
        receipt = here.json("forget", "--all", "--participant", "ann", "--yes")
        (queues,) = [row for row in receipt["places"] if row["place"] == "queues"]
        assert receipt["outcome"] == "forgotten" and server.records("MEMORY_FACT") == []
        assert queues["until"] > receipt["settledAt"]

        until(lambda: server.records("MEMORY_FACT"), "the write that was under way", deadline_s=20)
        assert recalled(here) == set()
        until(lambda: not server.records("MEMORY_FACT"), "the look that takes it away", said=here.logged)
        until(lambda: not here.pending() and not client.hlen("memory:unacked"), "the end", said=here.logged)
        assert server.records("MEMORY_FACT") == [] and recalled(here) == set()


def test_a_host_may_forget_its_own_and_an_operators_key_everybodys(tmp_path, redis):
    keys = [
        {"keyId": name, "secret": letter * 32, "tenant": "local", "operator": name == "operator"}
        for name, letter in (("host", "h"), ("operator", "o"))
    ]
    tenants = tmp_path / "tenants.json"
    tenants.write_text(json.dumps(keys))
    tenants.chmod(0o600)
    as_host = {"MEMORY_KEY_ID": "host", "MEMORY_PRODUCER_KEY": "h" * 32}
    as_operator = {"MEMORY_KEY_ID": "operator", "MEMORY_PRODUCER_KEY": "o" * 32}
    with machine(tmp_path, MEMORY_BROKER_URL=redis.broker_url, MEMORY_TENANTS_FILE=str(tenants), **as_host) as made:
        made.start_worker()
        remember(made, f"The {WORD} key is with Ingrid.", "--wait")
        profile = ("forget", "--everywhere", "--agent", "cli", "--profile", "default", "--yes")
        refused = made.run(*profile)
        assert refused.returncode == 1 and "operator's key" in refused.stderr
        assert len(recalled(made)) == 1
        elsewhere = {**as_operator, "MEMORY_STATE_DIR": str(made.home / "operator"), **at_store_of(made)}
        assert made.json(*profile, changes=elsewhere)["outcome"] == "forgotten"
        assert recalled(made) == set() and made.records("MEMORY_FACT", {}) == []


def at_store_of(made: Machine) -> dict[str, str]:
    """What another state directory on this machine needs to be of the same deployment."""
    given = made.settings
    return {
        "MEMORY_STORE_URL": given.store_url,
        "MEMORY_SCOPE_SALT": given.scope_salt,
        "MEMORY_CACHE_KEY": given.cache_key,
    }
