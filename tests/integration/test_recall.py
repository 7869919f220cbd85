"""Recall over the real SQLite store and a real Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from producer import errors, identity, keys
from producer.recall.engine import Recall, Recalled, Session
from producer.recall.recent import RecentWrites
from producer.scope import Scope
from producer.store.port import Capabilities, IndexSpec, Page, Record
from producer.store.sqlite import SqliteStore
from tests.redis_server import RedisServer, redis_server

LATER = 60_000  # a deadline in ms that no test reaches


def scope_of(name: str, **changed: Any) -> Scope:
    fields: dict[str, Any] = {
        "agent_id": "agent",
        "profile_id": "default",
        "privacy_scope": "private",
        "participant_scope_hash": identity.sha256_hex(name),
        "sandbox_eligible": False,
    }
    return Scope(**{**fields, **changed})


ANN = scope_of("ann")


def episode(text: str, *, scope: Scope = ANN, session: str = "old", at: str = "2026-12-01T10:00:00.000Z", **more: Any):
    event = {
        "schemaVersion": 1,
        "eventType": "episode",
        "runtime": "custom",
        **scope.fields(),
        "externalSessionId": session,
        "sourceEventId": text,
        "turnIndex": 0,
        "userText": text,
        "assistantText": "noted",
        "summary": text,
        "conversationKind": "local",
        "visibility": "participant",
        "trustClass": "mixed",
        "originClass": "conversation",
        "observedAt": at,
        "provenance": "test",
    }
    event["eventId"] = identity.episode_event_id(event)
    return {**event, **more}


def fact(text: str, *, scope: Scope = ANN, at: str = "2026-12-01T10:00:00.000Z", **more: Any) -> dict[str, Any]:
    event = {
        "schemaVersion": 1,
        "eventType": "fact",
        "runtime": "custom",
        **scope.fields(),
        "text": text,
        "kind": "preference",
        "subjectKey": "user",
        "confidence": 1.0,
        "active": True,
        "sourceEventId": text,
        "validFrom": at,
        "visibility": "participant",
        "trustClass": "trusted",
        "provenance": "test",
    }
    event["factId"] = identity.fact_id(event)
    return {**event, **more}


def stored(event: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an event as workers write it."""
    return {"contentHash": keys.content_hash(event), "scopeKey": keys.scope_key(event), **event}


def label_of(event: Mapping[str, Any]) -> str:
    return "MEMORY_FACT" if event["eventType"] == "fact" else "EPISODE"


def id_of(event: Mapping[str, Any]) -> str:
    return str(event["factId" if event["eventType"] == "fact" else "eventId"])


def put(store: SqliteStore, *events: Mapping[str, Any]) -> None:
    for event in events:
        key = "factId" if event["eventType"] == "fact" else "eventId"
        store.upsert(label_of(event), [stored(event)], [key, "contentHash"])


def entry(event: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": id_of(event), "label": label_of(event), "record": stored(event)}


def texts(recalled: Recalled) -> list[str]:
    return [memory.text for memory in recalled.memories]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "store.sqlite3")
    made.ensure_indexes(
        [IndexSpec(label="EPISODE", property="summary"), IndexSpec(label="MEMORY_FACT", property="text")]
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), persistent=False) as running:
        yield running


@pytest.fixture
def recent(server: RedisServer, tmp_path: Path) -> Iterator[RecentWrites]:
    cache = RecentWrites(server.url, tenant=tmp_path.name, cache_key="k" * 32)
    yield cache
    cache.close()


@pytest.fixture
def recall(store: SqliteStore, recent: RecentWrites) -> Iterator[Recall]:
    made = Recall(store, recent, deadline_ms=LATER)
    yield made
    made.close()


def test_episodes_and_facts_of_the_scope_are_recalled_best_first(store, recall):
    put(store, episode("we talked about the Helix editor"), fact("prefers the Helix editor"), fact("lives in Lisbon"))
    found = recall.recall(ANN, "which editor, Helix?")
    assert set(texts(found)) == {"we talked about the Helix editor", "prefers the Helix editor"}
    assert not found.partial and found.sources == {"episodes": "ok", "facts": "ok", "recent": "ok", "journal": "off"}
    scores = [m.score for m in found.memories]
    assert scores == sorted(scores, reverse=True) and all(0 < s <= 1 for s in scores)


@pytest.mark.parametrize(
    "other",
    [
        scope_of("bob"),
        scope_of("ann", agent_id="other"),
        scope_of("ann", profile_id="other"),
        scope_of("ann", privacy_scope="shared"),
        scope_of("ann", sandbox_eligible=True),
    ],
    ids=["participant", "agent", "profile", "privacy", "sandbox"],
)
def test_nothing_of_a_scope_that_differs_in_one_field_is_recalled_from_any_source(store, recent, other):
    theirs = [fact("their editor is Vim", scope=other), episode("their editor talk", scope=other)]
    put(store, *theirs)
    for event in theirs:  # as if somebody had put them under our key
        recent.put(ANN.key, entry(event))
    engine = Recall(store, recent, deadline_ms=LATER, tail=lambda key: [{"event": event} for event in theirs])
    assert engine.recall(ANN, "editor", limit=50).memories == ()
    assert len(engine.recall(other, "editor", limit=50).memories) == 2
    engine.close()


def test_threads_that_ask_for_different_people_never_get_each_others_memories(store, recent):
    people = [scope_of(name, profile_id=profile) for name in ("ann", "bob") for profile in ("work", "home")]
    for person in people:
        owner = f"{person.participant_scope_hash[:4]} {person.profile_id}"
        rows = [stored(fact(f"editor note {n} of {owner}", scope=person)) for n in range(200)]
        for first in range(0, 200, 100):
            store.upsert("MEMORY_FACT", rows[first : first + 100], ["factId", "contentHash"])
        recent.put(person.key, entry(fact(f"recent editor note of {owner}", scope=person)))
    engine = Recall(store, recent, deadline_ms=LATER, max_chars=10**6)
    foreign: list[str] = []
    counts: list[int] = []

    def ask(person: Scope) -> None:
        owner = f"{person.participant_scope_hash[:4]} {person.profile_id}"
        for _ in range(5):
            found = texts(engine.recall(person, "editor note", limit=100))
            counts.append(len(found))
            foreign.extend(text for text in found if not text.endswith(owner))

    threads = [threading.Thread(target=ask, args=(person,)) for person in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert foreign == [] and counts == [100] * 20
    engine.close()


def test_memories_of_the_conversation_that_asks_are_left_out_from_every_source(store, recent):
    here = Session(runtime="custom", external_session_id="here")
    key = keys.session_key(runtime="custom", external_session_id="here", scope=ANN)
    elsewhere = keys.session_key(runtime="custom", external_session_id="there", scope=ANN)
    put(
        store,
        episode("editor talk here", session="here"),
        episode("editor talk there", session="there"),
        fact("editor fact here", sessionKey=key),
        fact("editor fact there", sessionKey=elsewhere),
        fact("editor fact of no session"),
    )
    recent.put(ANN.key, entry(episode("recent editor talk here", session="here")))
    recent.put(ANN.key, entry(fact("recent editor fact here", sessionKey=key)))
    tail = [
        {"event": episode("unsettled editor talk here", session="here"), "sessionKey": key},
        {"event": fact("unsettled editor fact here"), "sessionKey": key},
        {"event": episode("unsettled editor talk there", session="there"), "sessionKey": elsewhere},
    ]
    engine = Recall(store, recent, deadline_ms=LATER, tail=lambda scope_key: tail)
    found = set(texts(engine.recall(ANN, "editor", session=here, limit=20)))
    assert found == {
        "editor talk there",
        "editor fact there",
        "editor fact of no session",
        "unsettled editor talk there",
    }
    engine.close()


def test_inactive_superseded_retracted_and_expired_memories_are_not_recalled(store, recall):
    put(
        store,
        fact("editor one", active=False),
        fact("editor two", supersededByFactId="f" * 64),  # caught between two writes of it
        fact("editor three", retractedAt="2026-12-01T11:00:00.000Z"),
        fact("editor four", validUntil="2020-01-01T00:00:00.000Z"),
        fact("editor five", validUntil="2100-01-01T00:00:00.000Z"),
        episode("editor six", supersededByEventId="e" * 64),
    )
    assert texts(recall.recall(ANN, "editor")) == ["editor five"]


def test_facts_that_are_over_do_not_take_the_room_of_those_that_hold(store, recall):
    for number in range(60):
        put(store, fact(f"editor editor editor {number}", active=False))
    put(store, fact("a long remark, with many other words in it, in which an editor is mentioned"))
    assert len(recall.recall(ANN, "editor", limit=1).memories) == 1


def test_one_memory_per_id_comes_back_however_many_copies_there_are(store, recall, recent):
    told = fact("prefers the Helix editor")
    store.create(
        "MEMORY_FACT", [stored(told), stored(told), {**stored(told), "contentHash": "0" * 64, "text": "an editor"}]
    )
    recent.put(ANN.key, entry(told))
    found = recall.recall(ANN, "editor")
    assert texts(found) == ["an editor"]  # the smallest contentHash stands
    assert found.memories[0].source == "store"


def test_an_id_is_dropped_when_any_copy_of_it_names_a_superseder(store, recall):
    told = fact("prefers the Helix editor")
    store.create("MEMORY_FACT", [stored(told), {**stored(told), "supersededByFactId": "f" * 64}])
    assert recall.recall(ANN, "editor").memories == ()


def test_a_record_of_another_adapter_is_recalled_unless_a_mark_or_ours_says_otherwise(store, recall):
    free, marked, ours = fact("free editor"), fact("marked editor"), fact("our editor")
    store.create("MEMORY_FACT", [free, marked, ours])  # no contentHash
    mark = {"markKey": "m", "what": "superseded", "target": marked["factId"], "by": "b", "scopeKey": ANN.key, "at": "t"}
    store.create("MEMORY_MARK", [mark, {**mark, "markKey": "n", "target": free["factId"], "scopeKey": "other"}])
    store.create("MEMORY_FACT", [{**stored(ours), "active": False}])
    assert texts(recall.recall(ANN, "editor")) == ["free editor"]


def test_recent_writes_of_any_host_are_recalled_before_the_store_shows_them(recall, recent):
    recent.put(ANN.key, entry(fact("prefers the Helix editor")))
    recent.put(ANN.key, entry(fact("lives in Lisbon")))
    found = recall.recall(ANN, "which editor?")
    assert texts(found) == ["prefers the Helix editor"]
    assert found.memories[0].source == "recent"


def test_a_cached_fact_that_the_store_shows_inactive_is_dropped(store, recall, recent):
    old = fact("prefers the Vim editor")
    recent.put(ANN.key, entry(old))
    assert texts(recall.recall(ANN, "editor")) == ["prefers the Vim editor"]
    put(store, {**old, "active": False})
    assert recall.recall(ANN, "editor").memories == ()


@pytest.mark.parametrize("make", [episode, fact])
@pytest.mark.parametrize("what", ["forgotten", "retracted"])
def test_what_the_cache_still_has_although_it_is_forgotten_is_not_recalled(store, recall, recent, make, what):
    gone, kept = make("the key is in the boathouse"), make("the key is on the hook")
    recent.put_all([(ANN.key, entry(gone)), (ANN.key, entry(kept))])
    mark = {"what": what, "target": id_of(gone), "by": "b" * 64, "scopeKey": ANN.key, "at": "2026-12-01T10:00:00.000Z"}
    store.upsert("MEMORY_MARK", [{"markKey": keys.mark_key(**said_of(mark)), **mark}], ["markKey"])
    assert texts(recall.recall(ANN, "where is the key")) == ["the key is on the hook"]


@pytest.mark.parametrize("where", ["store", "recent", "journal"])
def test_a_cached_fact_that_another_result_supersedes_is_dropped_with_the_store_down_too(tmp_path, recent, where):
    old = fact("prefers the Vim editor", at="2026-12-01T10:10:00.000Z")  # this host's clock is ahead
    new = fact("prefers the Helix editor", supersedesFactId=old["factId"])
    recent.put(ANN.key, entry(old))
    store = SqliteStore(tmp_path / "s.sqlite3")
    if where == "store":
        put(store, new)
    else:
        store.close()  # every call fails from now on
    if where == "recent":
        recent.put(ANN.key, entry(new))
    tail = [{"event": new}] if where == "journal" else []
    engine = Recall(store, recent, deadline_ms=LATER, tail=lambda key: tail)
    assert texts(engine.recall(ANN, "editor")) == ["prefers the Helix editor"]
    engine.close()
    store.close()


def test_a_superseder_said_in_this_conversation_ends_the_old_fact_although_it_is_not_recalled_here(store, recent):
    here = Session(runtime="custom", external_session_id="here")
    old = fact("prefers the Vim editor")
    new = fact("prefers the Helix editor", supersedesFactId=old["factId"])
    put(store, old)
    tail = [{"event": new, "sessionKey": keys.session_key(runtime="custom", external_session_id="here", scope=ANN)}]
    engine = Recall(store, recent, deadline_ms=LATER, tail=lambda key: tail)
    assert engine.recall(ANN, "editor", session=here).memories == ()
    assert texts(engine.recall(ANN, "editor")) == ["prefers the Helix editor"]
    engine.close()


def test_of_one_line_only_the_latest_is_recalled_whatever_source_tells_it(store, recent):
    line = "a" * 64
    put(store, fact("editor of Monday", at="2026-11-30T10:00:00.000Z", lineKey=line))
    recent.put(ANN.key, entry(fact("editor of Tuesday", at="2026-12-01T10:00:00.000Z", lineKey=line)))
    tail = [{"event": fact("editor of Sunday", at="2026-11-29T10:00:00+00:00"), "lineKey": line}]
    engine = Recall(store, recent, deadline_ms=LATER, tail=lambda key: tail)
    assert texts(engine.recall(ANN, "editor")) == ["editor of Tuesday"]
    engine.close()


def test_what_the_host_ordered_away_is_gone_before_the_order_is_settled(store):
    one, two, three = fact("editor one"), fact("editor two"), fact("editor three")
    put(store, one, two, three)
    orders = [
        {"order": {"what": "retract", "scope": ANN.fields(), "target": one["factId"]}},
        {"order": {"what": "forget", "scope": scope_of("bob").fields(), "target": two["factId"]}},
        {"order": {"what": "forget", "scope": ANN.fields(), "target": three["factId"]}},
    ]
    engine = Recall(store, deadline_ms=LATER, tail=lambda key: orders)
    assert texts(engine.recall(ANN, "editor")) == ["editor two"]
    engine.close()


@pytest.mark.parametrize(
    "group",
    [
        {"session": keys.session_key(runtime="custom", external_session_id="old", scope=ANN)},
        {"participant": ANN.participant_scope_hash},
        {"agentId": "agent", "profileId": "default"},
    ],
    ids=["session", "participant", "profile"],
)
def test_a_group_that_is_ordered_away_is_gone_from_store_and_recent_writes_before_the_order_is_settled(
    store, recent, group
):
    at = "2026-12-01T10:00:00.000Z"
    gone, kept = episode("editor of ann"), episode("editor of bob", scope=scope_of("bob"))
    put(store, gone, kept)
    recent.put(ANN.key, entry(episode("editor said just now")))
    order = {"what": "forget", "scope": ANN.fields(), "group": group, "at": at}
    engine = Recall(store, recent, deadline_ms=LATER, tail=lambda key: [{"order": order}])
    assert texts(engine.recall(ANN, "editor")) == []
    assert texts(engine.recall(scope_of("bob"), "editor")) == ["editor of bob"]
    engine.close()


def test_nothing_is_recalled_while_the_journal_does_not_say_what_was_ordered_away(store, recent):
    known = threading.Event()

    def tail(scope_key: str) -> Sequence[Mapping[str, Any]]:
        known.wait()
        return [{"order": {"what": "forget", "scope": ANN.fields(), "target": id_of(gone)}}]

    gone, kept = fact("edits with Vim"), fact("edits at night")
    put(store, gone, kept)
    recent.put(ANN.key, entry(gone))
    engine = Recall(store, recent, deadline_ms=150, tail=tail)
    found = engine.recall(ANN, "edits")
    assert found.memories == () and found.partial and found.sources["journal"] == "late"
    known.set()
    assert texts(engine.recall(ANN, "edits", deadline_ms=LATER)) == ["edits at night"]
    engine.close()


def test_a_line_that_another_host_had_forgotten_is_not_recalled_from_the_journal(store):
    ours, retracted, later = episode("editor one"), fact("editor two"), episode("editor three")
    group = keys.group_participant(ANN.participant_scope_hash)
    for what, target in (("forgotten", group), ("retracted", retracted["factId"])):
        mark = {"what": what, "target": target, "by": "b" * 64, "scopeKey": ANN.key, "at": "2026-12-01T10:00:00.000Z"}
        store.upsert("MEMORY_MARK", [{"markKey": keys.mark_key(**said_of(mark)), **mark}], ["markKey"])
    tail = [
        {"event": ours, "appendedAt": "2026-12-01T10:01:00.000Z"},
        {"event": retracted, "appendedAt": "2026-12-01T11:00:00.000Z"},
        {"event": later, "appendedAt": "2026-12-01T11:00:00.000Z"},
    ]
    engine = Recall(store, deadline_ms=LATER, tail=lambda key: tail)
    assert texts(engine.recall(ANN, "editor")) == ["editor three"]
    engine.close()


def said_of(mark: dict[str, str]) -> dict[str, str]:
    return {{"scopeKey": "scope_key"}.get(name, name): value for name, value in mark.items()}


def test_count_characters_and_query_are_bounded_and_ids_can_be_skipped(store, recall):
    events = [fact(f"editor note {number} " + "x" * 3000) for number in range(9)] + [fact("editor " + "y" * 20_000)]
    put(store, *events)
    assert len(recall.recall(ANN, "editor", limit=10).memories) == 4  # of which 2,000 characters each are shown
    assert len(recall.recall(ANN, "editor", limit=1).memories) == 1
    skipped = {event["factId"] for event in events[:9]}
    found = recall.recall(ANN, "editor", skip_ids=skipped)
    assert [m.id for m in found.memories] == [events[9]["factId"]]
    assert len(found.memories[0].text) == 6001
    assert len(recall.recall(ANN, "editor " + "word " * 1_000_000, limit=1).memories) == 1


@pytest.mark.parametrize("query", ["", "   ", "\x00", '"', "AND OR NOT (", "\ud83d", "?!"])
def test_odd_queries_are_no_error(store, recall, query):
    put(store, fact("prefers the Helix editor"))
    recalled = recall.recall(ANN, query)
    assert recalled.memories == () and recalled.sources.get("episodes", "ok") == "ok"


def test_of_near_ties_the_newer_memory_comes_first(store, recall):
    put(
        store,
        fact("uses editor a1", at="2026-11-01T10:00:00.000Z"),
        fact("uses editor b2", at="2026-12-01T10:00:00.000Z"),
    )
    assert texts(recall.recall(ANN, "editor")) == ["uses editor b2", "uses editor a1"]


def test_a_store_without_an_index_is_scanned(tmp_path):
    store = SqliteStore(tmp_path / "bare.sqlite3")
    put(store, fact("prefers the Helix editor"), fact("lives in Lisbon"), episode("an editor, again"))
    engine = Recall(store, deadline_ms=LATER)
    assert set(texts(engine.recall(ANN, "editor"))) == {"prefers the Helix editor", "an editor, again"}
    engine.close()
    store.close()


class SlowStore:
    """A SQLite store whose reads take `delay_s`, at most `timeout_s`, like a server that hangs."""

    def __init__(self, store: SqliteStore, *, delay_s: float, timeout_s: float) -> None:
        self._store = store
        self.delay_s = delay_s
        self._timeout_s = timeout_s
        self.calls = 0

    def capabilities(self) -> Capabilities:
        return self._store.capabilities()

    def _wait(self) -> None:
        self.calls += 1
        threading.Event().wait(min(self.delay_s, self._timeout_s))
        if self.delay_s > self._timeout_s:
            raise errors.StoreUnavailable("timed out")

    def search(self, *args: Any, **kwargs: Any) -> Sequence[Record]:
        self._wait()
        return self._store.search(*args, **kwargs)

    def find(self, *args: Any, **kwargs: Any) -> Page:
        self._wait()
        return self._store.find(*args, **kwargs)


def test_a_slow_store_costs_no_more_than_the_budget_and_is_back_at_the_first_fast_turn(store, recent):
    put(store, fact("prefers the Helix editor"))
    recent.put(ANN.key, entry(episode("we spoke of an editor")))
    slow = SlowStore(store, delay_s=15, timeout_s=0.6)
    engine = Recall(slow, recent, deadline_ms=300)
    before = threading.active_count()
    for _ in range(20):
        started = time.monotonic()
        found = engine.recall(ANN, "editor")
        assert time.monotonic() - started < 0.35
        assert texts(found) == ["we spoke of an editor"] and found.partial
    assert engine.status()["breakerOpen"]
    assert threading.active_count() - before <= 24
    slow.delay_s = 0.02
    found = engine.recall(ANN, "editor")
    assert set(texts(found)) == {"we spoke of an editor", "prefers the Helix editor"}
    assert not engine.status()["breakerOpen"]
    engine.close()


def test_one_slow_search_does_not_cost_the_results_of_the_other(store, recent):
    class Half(SlowStore):
        def search(self, label: str, *args: Any, **kwargs: Any) -> Sequence[Record]:
            if label == "MEMORY_FACT":
                self._wait()
            return self._store.search(label, *args, **kwargs)

    put(store, fact("prefers the Helix editor"), episode("we spoke of an editor"))
    engine = Recall(Half(store, delay_s=5, timeout_s=0.5), recent, deadline_ms=150)
    found = engine.recall(ANN, "editor")
    assert texts(found) == ["we spoke of an editor"]
    assert found.partial and found.sources["facts"] == "late" and found.sources["episodes"] == "ok"
    engine.close()


def test_a_store_that_refuses_at_once_and_a_dead_redis_cost_next_to_nothing(tmp_path):
    store = SqliteStore(tmp_path / "gone.sqlite3")
    store.close()
    cache = RecentWrites(f"unix://{tmp_path}/none.sock", tenant="t", cache_key="k" * 32)
    engine = Recall(store, cache, deadline_ms=300)
    engine.recall(ANN, "editor")
    started = time.monotonic()
    for _ in range(20):
        found = engine.recall(ANN, "editor")
        assert found.memories == () and found.partial
    assert time.monotonic() - started < 1.0
    assert engine.status()["recalls"] == engine.status()["empty"] == 21
    engine.close()
    cache.close()


def test_recall_never_raises_whatever_breaks(store, caplog):
    def broken(key: str) -> Sequence[Mapping[str, Any]]:
        raise RuntimeError("secret text")

    engine = Recall(store, deadline_ms=LATER, tail=broken)
    put(store, fact("prefers the Helix editor"))
    broken_one = engine.recall(ANN, "editor")
    assert broken_one.memories == () and broken_one.partial and broken_one.failures == ("journal: failed",)
    assert engine.recall(ANN, None).memories == ()  # type: ignore[arg-type]
    assert engine.recall(ANN, "editor", deadline_ms=0).memories == ()
    assert engine.status()["failed"] == 1
    assert "secret text" not in caplog.text
    engine.close()


def test_meaning_is_searched_where_an_embedder_is_given_and_words_alone_when_it_fails(store):
    class Embedder:
        working = True

        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            if not self.working:
                raise errors.StoreUnavailable("down")
            return [[1.0, 0.0] if "editor" in text or "Helix" in text else [0.0, 1.0] for text in texts]

    store.ensure_indexes(
        [
            IndexSpec(label="EPISODE", property="summary", dimensions=2),
            IndexSpec(label="MEMORY_FACT", property="text", dimensions=2),
        ]
    )
    put(store, fact("writes in Helix"), fact("lives in Lisbon"))
    for record in store.find("MEMORY_FACT", {}).records:
        store.set_vectors("MEMORY_FACT", "text", {record.id: Embedder().embed([record.get("text")])[0]})
    embedder = Embedder()
    engine = Recall(store, deadline_ms=LATER, embedder=embedder)
    assert texts(engine.recall(ANN, "which editor?", limit=1)) == ["writes in Helix"]
    embedder.working = False
    assert texts(engine.recall(ANN, "Lisbon", limit=1)) == ["lives in Lisbon"]
    engine.close()
