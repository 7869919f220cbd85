"""Keys on real workers: tenants stay apart, a key does what it may and no more, and rotating it loses nothing."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from memory_tasks import counts, dead_letters
from producer import broker, config, errors, message
from producer.memory import AgentMemory
from producer.recall import recent
from producer.scope import Scope
from producer.store import open_store
from tests import worker_messages as make
from tests.acceptance.machine import Machine, machine, until
from tests.redis_server import RedisServer, redis_server
from tests.rushdb_server import RunningServer, rushdb_server

READ_ONLY = "-read-only"
SCOPE = Scope(
    agent_id="support",
    profile_id="default",
    privacy_scope="private",
    participant_scope_hash="a" * 64,
    sandbox_eligible=False,
)
SECRETS = {name: f"{name}-secret-".ljust(40, name[0]) for name in ("acme", "beta", "acme-new")}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def client(redis: RedisServer) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(redis.url) as made:
        made.flushall()
        yield made


@pytest.fixture
def projects(tmp_path: Path) -> Iterator[dict[str, RunningServer]]:
    with (
        rushdb_server(tmp_path / "acme.sqlite", token="acme-token") as acme,
        rushdb_server(tmp_path / "beta.sqlite", token="beta-token") as beta,
    ):
        yield {"acme": acme, "beta": beta}


@pytest.fixture
def made(tmp_path: Path, redis: RedisServer, client: redis_py.Redis) -> Iterator[Machine]:
    with machine(tmp_path / "machine", MEMORY_BROKER_URL=redis.broker_url, MEMORY_CACHE_KEY="c" * 40) as one:
        yield one


def tenants_file(made: Machine, *entries: dict[str, Any]) -> dict[str, str]:
    path = made.home / "tenants.json"
    path.write_text(json.dumps(entries))
    path.chmod(0o600)
    return {"MEMORY_TENANTS_FILE": str(path)}


def key_of(tenant: str, projects: dict[str, RunningServer], **more: Any) -> dict[str, Any]:
    project = projects[tenant]
    return {
        "keyId": tenant,
        "secret": SECRETS[tenant],
        "tenant": tenant,
        "storeUrl": f"rushdb+{project.url}",
        "storeToken": project.token,
        **more,
    }


def host_of(tenant: str, made: Machine, projects: dict[str, RunningServer], **changed: Any) -> config.ProducerConfig:
    """A host of this tenant: its own journal and key, and a store key that may only read."""
    return dataclasses.replace(
        made.settings,
        **{
            "state_dir": made.home / tenant,
            "journal_dir": made.home / tenant / "journal",
            "tenant": tenant,
            "key_id": tenant,
            "producer_key": SECRETS[tenant],
            "store_url": f"rushdb+{projects[tenant].url}",
            "store_token": projects[tenant].token + READ_ONLY,
            "recall_deadline_ms": 20_000,
            "republish_after_s": 1.0,
            **changed,
        },
    )


def remember(memory: AgentMemory, text: str, scope: Scope = SCOPE) -> str:
    kept = memory.remember(text=text, kind="note", subject_key="heron", scope=scope)
    assert kept, kept
    return str(kept.id)


def texts(memory: AgentMemory) -> set[str]:
    found = memory.recall_memories("where is the heron?", scope=SCOPE, limit=100)
    assert not found.partial, dict(found.sources)
    return {one.text for one in found.memories}


def queued(client: redis_py.Redis) -> Counter[str]:
    """Lines in the queues, by the id of the key that signed them; those found at start wait in chunks."""
    found: Counter[str] = Counter()
    for text in (*client.lrange(message.QUEUE, 0, -1), *client.lrange(message.BACKLOG_QUEUE, 0, -1)):
        raw = json.loads(text)
        kwargs = json.loads(base64.b64decode(raw["body"]))[1]
        found[raw["headers"][message.HEADER_KEY_ID]] += len(kwargs["batch"])
    return found


def stored(project: RunningServer) -> set[str]:
    return {str(record.get("text")) for record in project.records("MEMORY_FACT")}


def test_two_tenants_with_the_same_scope_share_a_worker_and_see_nothing_of_each_other(
    made: Machine, client: redis_py.Redis, projects: dict[str, RunningServer]
) -> None:
    limits = {"agents": ["support"], "profiles": ["default"]}
    environ = tenants_file(made, key_of("acme", projects, **limits), key_of("beta", projects))
    worker = made.start("worker", changes=environ)
    until(lambda: " ready." in worker.logged() or not worker.runs(), "a worker", said=made.logged)
    other = dataclasses.replace(SCOPE, agent_id="sales")
    hosts = {tenant: AgentMemory(host_of(tenant, made, projects), scope=SCOPE) for tenant in projects}
    with hosts["acme"] as acme, hosts["beta"] as beta:
        remember(acme, "the heron of acme is in the boathouse")
        remember(beta, "the heron of beta is in the reeds")
        refused = remember(acme, "the heron of sales is nowhere", other)  # more than its key may write
        remember(beta, "the heron of beta's sales is in the reeds", other)
        assert acme.flush(60) and beta.flush(60), made.logged()

        assert stored(projects["acme"]) == {"the heron of acme is in the boathouse"}
        assert stored(projects["beta"]) == {
            "the heron of beta is in the reeds",
            "the heron of beta's sales is in the reeds",
        }
        for _ in ("with recent writes", "from the store alone"):
            assert texts(acme) == {"the heron of acme is in the boathouse"}
            assert texts(beta) == {"the heron of beta is in the reeds"}
            for name in client.scan_iter("memory:recent:*"):
                client.delete(name)

        # Cache keys, counts and dead letters stand under the tenant's name.
        assert [(one.id, one.reason) for one in dead_letters.read(client, "acme")] == [(refused, "scope_not_allowed")]
        assert dead_letters.read(client, "beta") == []
        assert counts.read(client, "acme")["stored"] == 1 and counts.read(client, "beta")["stored"] == 2

    # What a host holds may read and no more.
    with_host_key = open_store(f"rushdb+{projects['acme'].url}", token="acme-token" + READ_ONLY)
    try:
        assert with_host_key.find("MEMORY_FACT", {}).total == 1
        for write in (
            lambda: with_host_key.upsert(
                "MEMORY_FACT", [{"factId": "f", "contentHash": "c"}], ["factId", "contentHash"]
            ),
            lambda: with_host_key.delete("MEMORY_FACT", projects["acme"].records("MEMORY_FACT")[0].id),
        ):
            with pytest.raises(errors.StoreDenied):
                write()
    finally:
        with_host_key.close()
    assert stored(projects["acme"]) == {"the heron of acme is in the boathouse"}


def test_a_message_under_another_tenants_key_id_is_refused_and_leaves_nothing_but_a_count(
    made: Machine, client: redis_py.Redis, projects: dict[str, RunningServer]
) -> None:
    """Who has one tenant's key cannot write as another, whatever the headers say; nor can who has none."""
    worker = made.start("worker", changes=tenants_file(made, key_of("acme", projects), key_of("beta", projects)))
    until(lambda: " ready." in worker.logged() or not worker.runs(), "a worker", said=made.logged)
    publisher = broker.KombuPublisher(made.settings.broker_url)
    forged = {
        "wrong_signature": message.Key(id="beta", secret=SECRETS["acme"].encode()),
        "unknown_key": message.Key(id="nobody", secret=SECRETS["acme"].encode()),
    }
    try:
        for key in forged.values():
            event = make.fact("the heron of a forger")
            publisher.publish([make.publication([make.item(make.line(event))], key, task_id=event["factId"])])
        until(lambda: sum(counts.read_refused(client).values()) == 2, "the refusals", said=made.logged)
    finally:
        publisher.close()
    assert {name for name, number in counts.read_refused(client).items() if number} == set(forged)
    assert stored(projects["acme"]) == stored(projects["beta"]) == set()
    assert dead_letters.read(client, "acme") == dead_letters.read(client, "beta") == []
    assert not list(client.scan_iter("memory:receipts:*")) and not list(client.scan_iter(recent.key_name("*", "*")))
    assert "heron" not in made.logged()


@pytest.mark.slow
def test_a_key_is_rotated_under_load_and_nothing_is_lost(
    made: Machine, client: redis_py.Redis, projects: dict[str, RunningServer]
) -> None:
    """The new key beside the old one on workers, then on the host, then the old one away, with messages of both queued;
    and what a host still sent under a key that is gone is delivered once it has the new one."""

    def start_worker(*entries: dict[str, Any]) -> Any:
        worker = made.start("worker", changes=tenants_file(made, *entries))
        until(lambda: " ready." in worker.logged() or not worker.runs(), "a worker", said=made.logged)
        return worker

    old = key_of("acme", projects)
    new = {**old, "keyId": "acme-new", "secret": SECRETS["acme-new"]}
    before = host_of("acme", made, projects)
    after = dataclasses.replace(before, key_id="acme-new", producer_key=SECRETS["acme-new"])
    with AgentMemory(before, scope=SCOPE) as memory:
        for number in range(5):
            remember(memory, f"heron {number} under the old key")
        until(lambda: queued(client)["acme"] >= 5, "the messages of the old key")
    with AgentMemory(after, scope=SCOPE) as memory:
        for number in range(5):
            remember(memory, f"heron {number} under the new key")
        until(lambda: queued(client)["acme-new"] >= 5, "the messages of the new key")
        worker = start_worker(old, new)
        assert memory.flush(90), made.logged()
    assert len(stored(projects["acme"])) == len(projects["acme"].records("MEMORY_FACT")) == 10
    assert counts.read_refused(client).get("unknown_key", 0) == 0

    assert worker.stop() == 0
    start_worker(new)
    with AgentMemory(before, scope=SCOPE) as memory:  # a host that was forgotten in the rotation
        remember(memory, "heron under the key that is gone")
        until(lambda: counts.read_refused(client).get("unknown_key"), "the refusal", said=made.logged)
        assert not memory.flush(0.5)
    assert dead_letters.read(client, "acme") == [] and len(stored(projects["acme"])) == 10
    with AgentMemory(after, scope=SCOPE) as memory:
        assert memory.flush(90), made.logged()
    assert "heron under the key that is gone" in stored(projects["acme"])
    assert len(projects["acme"].records("MEMORY_FACT")) == 11
