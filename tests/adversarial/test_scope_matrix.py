"""Every pair of scopes that differ in one or more of the five fields, on every read path: no foreign row.

Thirty-two scopes (two values in each field) hold records about the same words in one store, one cache and one journal.
What a scope recalls is compared with all that it owns: whatever else came would be another's, of which all thirty-one
are there to be found.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from producer import config, identity
from producer.convergence import check
from producer.hosts import hook
from producer.journal import Journal
from producer.memory import AgentMemory
from producer.recall import history, where
from producer.recall import recent as recent_writes
from producer.recall.engine import Recall, Recalled
from producer.recall.recent import RecentWrites
from producer.recall.tail import JournalTail
from producer.scope import HostContext, Scope, scope_of
from producer.store import open_store
from producer.store.port import IndexSpec, Store
from tests.conftest import Tell
from tests.integration.test_agent import running
from tests.integration.test_recall import entry, episode, fact, id_of, label_of, stored
from tests.redis_server import RedisServer, redis_server
from tests.rushdb_server import rushdb_server

LATER = 60_000
QUERY = "which editor?"
NOW = "2026-12-02T00:00:00.000Z"
SCOPES = [
    Scope(
        agent_id=agent,
        profile_id=profile,
        privacy_scope=privacy,
        participant_scope_hash=identity.sha256_hex(participant),
        sandbox_eligible=sandbox,
    )
    for agent, profile, privacy, participant, sandbox in itertools.product(
        ("desk", "desk2"), ("default", "Default"), ("private", "shared"), ("ann", "bob"), (False, True)
    )
]
PAIRS = len(SCOPES) * (len(SCOPES) - 1)
TAGS = {scope: f"owner-{number:02}" for number, scope in enumerate(SCOPES)}
CACHE_KEY = "c" * 32


def events_of(scope: Scope, place: str) -> list[dict[str, Any]]:
    """Two facts and an episode whose words are the same in all scopes but for the owner's tag."""
    tag = TAGS[scope]
    return [
        fact(f"the editor of {tag} in the {place}", scope=scope),
        fact(f"another editor of {tag} in the {place}", scope=scope),
        episode(f"we spoke about the editor of {tag} in the {place}", scope=scope),
    ]


def owners(found: Recalled) -> set[str]:
    return {memory.text.partition("owner-")[2][:2] for memory in found.memories}


def assert_own_and_all(found: Recalled, scope: Scope, count: int) -> None:
    assert not found.partial, dict(found.sources)
    assert owners(found) == {TAGS[scope].removeprefix("owner-")}
    assert all(memory.record["participantScopeHash"] == scope.participant_scope_hash for memory in found.memories)
    assert len(found.memories) == count


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), persistent=False) as made:
        yield made


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(server.url) as made:
        made.flushall()
        yield made


class OneDirection:
    """Everything means the same: ranking keeps nobody apart."""

    def embed(self, texts: Any) -> list[list[float]]:
        return [[1.0, 0.0, 0.0] for _ in texts]


# -- the store, whatever search it has --------------------------------------------------------------------------------

STORES = {
    "sqlite, keyword": ("sqlite", {}, False),
    "sqlite, hybrid": ("sqlite", {}, True),
    "platform, bounded find": ("rushdb", {}, False),
    "platform, own embeddings": ("rushdb", {"embeds": True}, False),
    "platform, our vectors": ("rushdb", {}, True),
    "engine, keyword": ("rushdb+direct", {"profile": "direct"}, False),
    "engine, hybrid": ("rushdb+direct", {"profile": "direct"}, True),
}


@pytest.fixture(params=STORES)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, bool]]:
    """A store that holds the records of all scopes, and whether recall brings vectors of its own."""
    scheme, settings, with_vectors = STORES[request.param]
    if scheme == "sqlite":
        store = open_store(f"sqlite:///{tmp_path}/store.sqlite3")
        fill(store, with_vectors=with_vectors)
        yield store, with_vectors
        store.close()
        return
    with rushdb_server(tmp_path / "data.sqlite", **settings) as running_server:
        store = open_store(f"{scheme}+{running_server.url}", token=running_server.token)
        fill(store, with_vectors=with_vectors)
        yield store, with_vectors
        store.close()


def fill(store: Store, *, with_vectors: bool) -> None:
    dimensions = 3 if with_vectors else None
    indexed = {"EPISODE": "summary", "MEMORY_FACT": "text"}
    store.ensure_indexes([IndexSpec(label=k, property=v, dimensions=dimensions) for k, v in indexed.items()])
    rows: dict[str, list[dict[str, Any]]] = {"EPISODE": [], "MEMORY_FACT": []}
    for scope in SCOPES:
        for event in events_of(scope, "store"):
            rows[label_of(event)].append(stored(event))
    for label, of_label in rows.items():
        key = "factId" if label == "MEMORY_FACT" else "eventId"
        store.upsert(label, of_label[1:], [key, "contentHash"])
        store.upsert(label, of_label[:1], [key, "contentHash"], wake=True)
        if with_vectors:
            ids = [record.id for record in store.find(label, {}).records]
            store.set_vectors(label, indexed[label], {record_id: [1.0, 0.0, 0.0] for record_id in ids})


def test_a_store_gives_each_scope_its_own_rows_whatever_search_it_has(
    filled: tuple[Store, bool], request: pytest.FixtureRequest, tell: Tell
) -> None:
    store, with_vectors = filled
    recall = Recall(store, embedder=OneDirection() if with_vectors else None, deadline_ms=LATER, max_chars=10**6)
    try:
        for scope in SCOPES:
            assert_own_and_all(recall.recall(scope, QUERY, limit=100), scope, 3)
    finally:
        recall.close()
    tell(f"scope matrix, {request.node.callspec.params['filled']}: {PAIRS} pairs of scopes, 0 foreign rows")


def test_an_id_leads_to_its_memory_and_its_versions_in_its_own_scope_only(filled: tuple[Store, bool]) -> None:
    """By id and history: who knows another's id learns nothing, not even that there is such a memory."""
    store, _ = filled
    for owner in SCOPES[::8] if store.capabilities().name == "sqlite" else SCOPES[5:6]:
        told, _, turn = events_of(owner, "store")
        for reader in SCOPES:
            found = history.by_id(store, reader, told["factId"], now=NOW)
            versions = history.history(store, reader, told["factId"], now=NOW).versions
            if reader == owner:
                assert found is not None and found.record is not None and TAGS[owner] in str(found.record["text"])
                assert [version.id for version in versions] == [told["factId"]]
            else:
                assert found is None and versions == ()
                assert history.by_id(store, reader, turn["eventId"], now=NOW) is None


def test_look_up_history_and_check_tell_each_scope_of_its_own_facts_only(
    tmp_path: Path, server: RedisServer, tell: Tell
) -> None:
    """As a host asks (`AgentMemory`), and as `memory-tasks facts check` does: every owner, every reader."""
    settings = config_of(tmp_path, server)
    store = open_store(settings.store_url)
    fill(store, with_vectors=False)
    wanting = {
        scope: fact(f"it names what is not there, {TAGS[scope]}", scope=scope, supersedesFactId="9" * 64)
        for scope in SCOPES
    }
    store.upsert("MEMORY_FACT", [stored(event) for event in wanting.values()], ["factId", "contentHash"])
    told = {scope: events_of(scope, "store")[0]["factId"] for scope in SCOPES}
    asked = 0
    with AgentMemory(settings, dispatches=False) as memory:
        for reader in SCOPES:
            for owner, fact_id in told.items():
                found = [memory.look_up(fact_id, scope=reader)]
                if sum(owner.fields()[name] != value for name, value in reader.fields().items()) <= 1:
                    found.append(memory.history(fact_id, scope=reader))
                assert not any(one.failure for one in found)
                assert {len(one.versions) for one in found} == {int(owner == reader)}
                asked += owner != reader
            problems = check.check(store, contents=where.within(reader), marks_where=where.marks_of(reader))
            assert wanting[reader]["factId"] in {problem.id for problem in problems}
            assert {problem.scope_key for problem in problems} == {reader.key}
    store.close()
    assert asked == PAIRS
    tell(f"scope matrix, look-up by id: {PAIRS} pairs of scopes, 0 foreign rows")


def test_copies_of_a_fact_are_asked_for_in_the_callers_scope_only(tmp_path: Path) -> None:
    """Another scope's fact of the same id says nothing about ours: it neither ends it nor comes in its place."""
    store = open_store(f"sqlite:///{tmp_path}/store.sqlite3")
    fill(store, with_vectors=False)
    ours, theirs = SCOPES[0], SCOPES[1]
    event = fact(f"a new editor of {TAGS[ours]}", scope=ours)
    ended = {**stored(event), **theirs.fields(), "active": False, "retractedAt": "2026-12-01T11:00:00.000Z"}
    store.upsert("MEMORY_FACT", [ended], ["factId", "scopeKey"])

    class Cache:
        def read(self, _scope_key: str) -> list[dict[str, Any]]:
            return [entry(event), {**entry(event), "record": ended}]

    recall = Recall(store, Cache(), deadline_ms=LATER, max_chars=10**6)  # type: ignore[arg-type]
    try:
        found = recall.recall(ours, QUERY, limit=100)
        assert_own_and_all(found, ours, 4)
        assert owners(recall.recall(theirs, QUERY, limit=100)) == {TAGS[theirs].removeprefix("owner-")}
    finally:
        recall.close()
        store.close()


# -- recent writes ----------------------------------------------------------------------------------------------------


def cache_of(server: RedisServer, tenant: str = "local", cache_key: str = CACHE_KEY) -> RecentWrites:
    return RecentWrites(server.url, tenant=tenant, cache_key=cache_key, timeout_s=5)


def test_recent_writes_give_each_scope_and_each_tenant_its_own(
    server: RedisServer, client: redis_py.Redis, tell: Tell
) -> None:
    caches = {tenant: cache_of(server, tenant) for tenant in ("local", "acme", "local:x")}
    for scope in SCOPES:
        for event in events_of(scope, "cache"):
            caches["local"].put(scope.key, entry(event))
    for scope in SCOPES:
        found = caches["local"].read(scope.key)
        assert len(found) == 3 and all(TAGS[scope] in json.dumps(one) for one in found)
        assert caches["acme"].read(scope.key) == caches["local:x"].read(scope.key) == []
    for cache in caches.values():
        cache.close()
    tell(f"scope matrix, recent writes: {PAIRS} pairs of scopes, 0 foreign rows")


def test_an_entry_that_somebody_moved_to_another_scope_or_tenant_is_refused(
    server: RedisServer, client: redis_py.Redis
) -> None:
    """By whoever can write to Redis but has no cache key."""
    ours, theirs = SCOPES[0], SCOPES[1]
    cache, others = cache_of(server), cache_of(server, "acme")
    (event,) = events_of(theirs, "cache")[:1]
    cache.put(theirs.key, entry(event))
    ((field, value),) = client.hgetall(recent_writes.key_name("local", theirs.key)).items()
    for tenant, scope in (("local", ours), ("acme", theirs), ("acme", ours)):
        client.hset(recent_writes.key_name(tenant, scope.key), field, value)
    assert cache.read(ours.key) == [] and cache.refused_entries == 1
    assert others.read(theirs.key) == others.read(ours.key) == [] and others.refused_entries == 2
    forged = cache_of(server, cache_key="another key of thirty-two signs..")
    forged.put(ours.key, entry(fact(f"an editor for {TAGS[ours]}", scope=ours)))
    assert cache.read(ours.key) == []
    for one in (cache, others, forged):
        one.close()


def test_an_entry_under_the_wrong_key_is_dropped_by_its_five_fields(
    tmp_path: Path, server: RedisServer, client: redis_py.Redis
) -> None:
    """Even where a worker of ours would sign it there: recall looks at the record, not at where it lay."""
    store = open_store(f"sqlite:///{tmp_path}/store.sqlite3")
    cache = cache_of(server)
    recall = Recall(store, cache, deadline_ms=LATER, max_chars=10**6)
    try:
        for reader in SCOPES[:8]:
            for writer in SCOPES:
                cache.put(reader.key, entry(events_of(writer, "cache")[0]))
            assert_own_and_all(recall.recall(reader, QUERY, limit=100), reader, 1)
    finally:
        recall.close()
        cache.close()
        store.close()


# -- the journal, the facade and the agent's socket -------------------------------------------------------------------


def config_of(directory: Path, server: RedisServer, **changed: Any) -> config.ProducerConfig:
    return config.ProducerConfig(
        **{
            "state_dir": directory,
            "journal_dir": directory / "journal",
            "store_url": f"sqlite:///{directory}/store.sqlite3",
            "broker_url": server.broker_url,
            "redis_url": server.url,
            "agent_socket": directory / "agent.sock",
            "producer_key": "p" * 32,
            "cache_key": CACHE_KEY,
            "scope_salt": "s" * 32,
            "recall_deadline_ms": 20_000,
            "recall_max_chars": 100_000,
            **changed,
        }
    )


def test_one_journal_gives_each_scope_its_own_lines_in_process_and_over_the_agents_socket(
    tmp_path: Path, server: RedisServer, client: redis_py.Redis, tell: Tell
) -> None:
    with tempfile.TemporaryDirectory(prefix="agent-") as short:
        settings = config_of(tmp_path, server, agent_socket=Path(short) / "agent.sock")
        with AgentMemory(settings, dispatches=False) as memory:
            for scope in SCOPES:
                assert memory.capture_turn(
                    session_id="s-1", user_text=f"the editor of {TAGS[scope]}", assistant_text="noted", scope=scope
                )
            for scope in SCOPES:
                assert_own_and_all(memory.recall_memories(QUERY, scope=scope, limit=100), scope, 1)
        with Journal.open(
            settings.journal_dir, max_bytes=1 << 30, reserve_bytes=1 << 22, segment_max_bytes=1 << 23
        ) as journal:
            tail = JournalTail(journal)
            for scope in SCOPES:
                (body,) = tail(scope.key)
                assert Scope.of_fields(body["event"]) == scope
        with running(settings) as asked:
            for scope in SCOPES:
                request = {"op": "recall", "scope": scope.fields(), "query": QUERY, "deadlineMs": 20_000}
                context = asked.ask(request)["context"]
                assert context.count("owner-") == context.count(TAGS[scope]) == 1
            for name in SCOPES[0].fields():  # a field that is missing is never a wildcard
                fields = {key: value for key, value in SCOPES[0].fields().items() if key != name}
                answer = hook.ask_agent(
                    str(settings.agent_socket), {"op": "recall", "scope": fields, "query": QUERY}, deadline_s=5
                )
                assert answer == {"error": "scope_invalid"}
    tell(f"scope matrix, journal and agent: {PAIRS} pairs of scopes, 0 foreign rows")


# -- F20: interleaved on threads of one process -----------------------------------------------------------------------

FACTS = 200


def person(user: str, profile: str, account: str | None = None) -> HostContext:
    return HostContext(
        runtime="hermes",
        platform="telegram",
        agent_id="hermes",
        profile_id=profile,
        session_id="s-1",
        user=user,
        account=account,
        chat_type="dm",
        sandboxed=False,
    )


PEOPLE = {
    "ann-work": person("ann", "work"),
    "ann-home": person("ann", "home"),
    "joined-left": person("c", "work", account="a:b"),
    "joined-right": person("b:c", "work", account="a"),
}


def test_two_users_and_two_profiles_on_threads_of_one_process_never_see_each_others_facts(
    tmp_path: Path, server: RedisServer, client: redis_py.Redis
) -> None:
    settings = config_of(tmp_path, server)
    store = open_store(settings.store_url)
    ready = threading.Barrier(len(PEOPLE))
    seen: dict[str, int] = dict.fromkeys(PEOPLE, 0)

    def own(memory: AgentMemory, name: str) -> None:
        found = memory.recall_memories("which bicycle?", scope=PEOPLE[name], limit=100)
        tags = {memory.text.partition(" of ")[2] for memory in found.memories}
        assert tags <= {name}, f"{name} saw {tags}"
        seen[name] += len(found.memories)

    def live(memory: AgentMemory, name: str) -> None:
        ready.wait(30)
        for number in range(FACTS):
            kept = memory.remember(
                text=f"bicycle {number} of {name}", kind="thing", subject_key="bicycle", scope=PEOPLE[name]
            )
            assert kept
            if number % 40 == 39:
                own(memory, name)

    with AgentMemory(settings, dispatches=False) as memory:
        with ThreadPoolExecutor(len(PEOPLE)) as threads:
            for done in [threads.submit(live, memory, name) for name in PEOPLE]:
                done.result()
        assert all(seen.values()), seen  # from the journal, before anything was stored
        rows: dict[str, Mapping[str, Any]] = {}
        for segment in sorted((tmp_path / "journal").glob("segment-*.jsonl")):
            for line in segment.read_text().splitlines():
                if event := json.loads(line).get("event"):
                    rows[id_of(event)] = stored(event)
        assert len(rows) == FACTS * len(PEOPLE)
        for start in range(0, len(rows), 100):
            batch = [dict(row) for row in itertools.islice(rows.values(), start, start + 100)]
            store.upsert("MEMORY_FACT", batch, ["factId", "contentHash"])
        before = dict(seen)
        with ThreadPoolExecutor(len(PEOPLE)) as threads:
            for done in [threads.submit(own, memory, name) for name in PEOPLE for _ in range(3)]:
                done.result()
        assert all(seen[name] > before[name] for name in PEOPLE)
        # Who names nobody gets nothing, and is counted.
        nobody = dataclasses.replace(PEOPLE["ann-work"], user="")
        assert not memory.remember(text="bicycle", kind="thing", subject_key="bicycle", scope=nobody)
        assert memory.recall_memories("which bicycle?", scope=nobody).memories == ()
        assert memory.recall("which bicycle?") == ""
        counted = memory.status()["counts"]
        assert counted["refused.participant_missing"] == counted["recallRefused.participant_missing"] == 1
    store.close()


def test_parts_that_join_to_the_same_text_are_different_people() -> None:
    scopes = {scope_of(context, salt="s", salt_required=True).key for context in PEOPLE.values()}
    assert len(scopes) == len(PEOPLE)
