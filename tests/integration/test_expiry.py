"""Facts that expire: how they get their end, how they leave recall, and how they leave the store for good.

The rules run on every store: SQLite, and the RushDB adapter on the test server in both forms. Redis and workers are
real.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from pytest_celery import CeleryTestSetup

from memory_tasks import clock, counts, expiry, expiry_turns, parts, tenants
from producer import errors, message, redis_client
from producer import expiry as time_to_live
from producer.config import ProducerConfig
from producer.convergence import check, marks
from producer.convergence.content import FACT, MARK
from producer.convergence.delivery import Delivery, Settled
from producer.journal import line as lines
from producer.memory import AgentMemory
from producer.recall.engine import Recall, Session
from producer.recall.history import State as Standing
from producer.recall.history import by_id
from producer.recall.recent import RecentWrites, key_name
from producer.receipt import State
from producer.store import open_store
from producer.store.port import IndexSpec, Store
from tests import worker_messages as make
from tests.acceptance.machine import machine
from tests.integration.local_nodes import WorkerContainer
from tests.integration.test_worker import Bench, wait_for
from tests.redis_server import RedisServer, redis_server
from tests.rushdb_server import RunningServer, rushdb_server

NOW = "2026-12-10T12:00:00.000Z"
NOW_S = 1_796_904_000.0
KEPT_S = 86_400.0
LONG_AGO = "2026-12-02T12:00:00.000Z"
A_MOMENT_AGO = "2026-12-10T11:59:59.000Z"
LATER = "2026-12-20T12:00:00.000Z"
FORMS = ("sqlite", "platform", "engine")
CACHE_KEY = "c" * 32
KEY = message.Key(id="key", secret=b"s" * 32)
OTHER = message.Key(id="other", secret=b"o" * 32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), persistent=False) as running:
        yield running


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis_py.Redis]:
    made = redis_py.Redis.from_url(server.url)
    made.flushall()
    yield made
    made.close()


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rushdb(form: str, tmp_path: Path) -> Iterator[RunningServer | None]:
    if form == "sqlite":
        yield None
        return
    with rushdb_server(tmp_path / "rushdb.sqlite3", **({"profile": "direct"} if form == "engine" else {})) as running:
        yield running


class World:
    """A worker's parts on one store, and hands on what is in it."""

    def __init__(self, url: str, token: str, server: RedisServer, client: redis_py.Redis) -> None:
        plan = parts.Plan.of(
            config_of(Path("/nowhere"), server), {"local": (url, token)}, store_pool=4, forget_margin_s=60.0
        )
        self.settler = parts.make_settler(plan)
        self.store: Store = self.settler.store("local", until=float("inf"))
        self.client = client
        grants = [
            tenants.Grant(key=KEY, tenant="local", store_url=url, store_token=token),
            tenants.Grant(key=OTHER, tenant="neighbour", store_url="sqlite:////nowhere"),
        ]
        self.tenants = tenants.Tenants(grants)
        self.turns = expiry_turns.Turns(keys={"local": KEY, "neighbour": OTHER}, every_s=3600.0)

    def expiry(self, *, client: Any = None, now_s: float = NOW_S, **more: Any) -> expiry.Expiry:
        made: dict[str, Any] = {
            "tenants": self.tenants,
            "settler": self.settler,
            "client": client or self.client,
            "turns": self.turns,
            "kept_s": KEPT_S,
            "visibility_timeout_s": 600.0,
            "wall_s": lambda: now_s,
        }
        return expiry.Expiry(**{**made, **more})

    def run(self, **more: Any) -> expiry.Outcome:
        return self.expiry(**more).run("local", until=float("inf"))

    def deliver(self, *events: Mapping[str, Any], **body: Any) -> list[State]:
        """What a worker answers to these events, each delivered on its own."""
        states = []
        for event in events:
            (result,) = self.settler.settle("local", [delivery_of(make.line(event, **body))], until=float("inf"))
            assert isinstance(result, Settled), result
            states.append(result.state)
        return states

    def facts(self) -> dict[str, bool]:
        return {r.get("factId"): r.get("active") for r in self.store.find(FACT, {}).records}

    def marks(self, **where: Any) -> list[marks.Mark]:
        return marks.read(self.store.find(MARK, {"what": marks.FORGOTTEN, **where}).records)

    def problems(self) -> list[str]:
        return [problem.code for problem in check.check(self.store, contents={}, marks_where={})]


def config_of(directory: Path, server: RedisServer, **changed: Any) -> ProducerConfig:
    return ProducerConfig(
        **{
            "state_dir": directory,
            "journal_dir": directory / "journal",
            "store_url": f"sqlite:///{directory}/store.sqlite3",
            "broker_url": server.broker_url,
            "redis_url": server.url,
            "agent_socket": directory / "agent.sock",
            "producer_key": "p" * 32,
            "cache_key": CACHE_KEY,
            "recall_deadline_ms": 20_000,
            "store_timeout_s": 1.0,
            **changed,
        }
    )


def delivery_of(line: lines.Line) -> Delivery:
    return Delivery(
        line_hash=line.hash,
        id=line.id,
        kind=line.kind,
        event=line.body["event"],
        appended_at=line.appended_at,
        line_key=line.body.get("lineKey"),
        session_key=line.body.get("sessionKey"),
    )


def url_of(form: str, rushdb: RunningServer | None, tmp_path: Path) -> tuple[str, str]:
    if rushdb is None:
        return f"sqlite:///{tmp_path}/store.sqlite3", ""
    return f"rushdb+{'direct+' if form == 'engine' else ''}{rushdb.url}", rushdb.token


@pytest.fixture
def world(
    form: str, rushdb: RunningServer | None, tmp_path: Path, server: RedisServer, client: redis_py.Redis
) -> Iterator[World]:
    made = World(*url_of(form, rushdb, tmp_path), server, client)
    yield made
    made.settler.close()


@pytest.fixture
def local(tmp_path: Path, server: RedisServer, client: redis_py.Redis) -> Iterator[World]:
    """A world on SQLite, for what does not depend on the store."""
    made = World(f"sqlite:///{tmp_path}/store.sqlite3", "", server, client)
    yield made
    made.settler.close()


def fact(name: str, until: str | None = LONG_AGO, **changes: Any) -> dict[str, Any]:
    return make.fact(f"the heron called {name}", source_event_id=name, valid_until=until, **changes)


def at(time_of_day: str) -> str:
    return f"2026-12-01T{time_of_day}:00.000Z"


# -- how a fact gets its end ------------------------------------------------------------------------------------------


def remembered(memory: AgentMemory, **asked: Any) -> dict[str, Any]:
    """The event that stands in the journal for a fact remembered so."""
    outcome = memory.remember(**{"text": "a word", "kind": "note", "subject_key": "user", **asked})
    assert outcome, outcome
    journal = memory._opened_journal()
    text = "".join(Path(journal.directory, name).read_text() for name in journal.segment_names())
    events = [lines.parse(one).body.get("event", {}) for one in text.splitlines() if outcome.id in one]
    return dict(next(event for event in events if event.get("factId") == outcome.id))


def test_a_fact_without_an_end_gets_that_of_its_kind_and_scope_in_the_event_and_one_that_says_it_keeps_it(
    tmp_path, server
):
    rules = time_to_live.parse("note=30d, agent/default:note=2h, quiet=never")
    config = config_of(tmp_path, server, time_to_live=rules)
    other = dataclasses.replace(make.SCOPE, profile_id="other")
    at = "2026-12-01T13:00:00+01:00"
    with AgentMemory(config, scope=make.SCOPE, dispatches=False) as memory:
        assert remembered(memory, valid_from=at)["validUntil"] == "2026-12-01T14:00:00.000Z"
        assert remembered(memory, valid_from=at, scope=other)["validUntil"] == "2026-12-31T12:00:00.000Z"
        assert remembered(memory, valid_from=at, valid_until=LATER)["validUntil"] == LATER
        assert "validUntil" not in remembered(memory, valid_from=at, kind="quiet")
        assert "validUntil" not in remembered(memory, valid_from=at, kind="plan")
        now = remembered(memory)
        assert now["validFrom"] < now["validUntil"] < "2100"
        memory._opened_journal().close()


# -- recall -----------------------------------------------------------------------------------------------------------


def test_an_expired_fact_leaves_recall_at_once_from_store_cache_and_journal(form, rushdb, tmp_path, server, client):
    url, token = url_of(form, rushdb, tmp_path)
    event = make.fact("the heron", source_event_id="x", valid_until=NOW)
    record = {"id": event["factId"], "label": FACT, "record": event}
    cache = RecentWrites(server.url, tenant="local", cache_key=CACHE_KEY)
    store = open_store(url, token=token)
    now = [NOW_S - 1]
    sources: dict[str, dict[str, Any]] = {
        "store": {},
        "recent": {"recent": cache},
        "journal": {"tail": lambda _scope_key: [{"event": event}]},
    }
    try:
        store.ensure_indexes([IndexSpec(label=FACT, property="text")])
        cache.put(make.SCOPE.key, record)
        for name, given in sources.items():
            if name == "store":
                store.upsert(FACT, [stored(event)], ["factId", "contentHash"], wake=True)
            used = store if name == "store" else _Empty(store)
            recall = Recall(used, **given, clock=lambda: now[0], deadline_ms=20_000)  # type: ignore[arg-type]
            now[0] = NOW_S - 1
            assert [m.source for m in recall.recall(make.SCOPE, "heron").memories] == [name]
            now[0] = NOW_S
            assert recall.recall(make.SCOPE, "heron").memories == ()
            recall.close()
    finally:
        store.close()
        cache.close()


class _Empty:
    """A store in which searches find nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def capabilities(self) -> Any:
        return self._store.capabilities()

    def search(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def find(self, label: str, where: Any, **more: Any) -> Any:
        return self._store.find(label, {**where, "factId": "nobody's"}, **more)


def stored(event: Mapping[str, Any]) -> dict[str, Any]:
    from producer.convergence import content

    row = content.row_of(event, scope_key=make.SCOPE.key, session_key="", line_key="")
    return {**row, "active": True}


def test_expired_facts_take_no_room_from_those_that_hold_and_another_adapters_form_of_a_time_is_read(
    form, rushdb, tmp_path
):
    url, token = url_of(form, rushdb, tmp_path)
    store = open_store(url, token=token)
    here = Session(runtime="custom", external_session_id="here")
    try:
        store.ensure_indexes([IndexSpec(label=FACT, property="text")])
        foreign = {**stored(fact("foreign")), "validUntil": "2026-12-20T12:00:00+01:00"}
        gone = {**stored(fact("foreign and gone")), "validUntil": "2026-12-02T12:00:00+01:00"}
        for one in (foreign, gone):
            del one["contentHash"], one["scopeKey"]
            store.upsert(FACT, [one], ["factId"])
        for until in (None, LATER):
            store.upsert(FACT, [stored(fact(f"until {until}", until))], ["factId", "contentHash"])
        for start in (0, 100, 200):  # more than a scan looks at, and newer
            rows = [stored(fact(f"number {start + number}", A_MOMENT_AGO)) for number in range(100)]
            store.upsert(FACT, rows, ["factId", "contentHash"])
        for session in (None, here):
            recall = Recall(store, clock=lambda: NOW_S, deadline_ms=20_000)
            found = recall.recall(make.SCOPE, "the heron", session=session, limit=3)
            recall.close()
            names = {memory.text.removeprefix("the heron called ") for memory in found.memories}
            assert names == {"foreign", "until None", f"until {LATER}"}
    finally:
        store.close()


# -- the store --------------------------------------------------------------------------------------------------------


def test_a_run_removes_what_expired_long_enough_ago_and_leaves_a_mark_that_says_when(world):
    gone, kept, lasting, later = fact("gone"), fact("kept", A_MOMENT_AGO), fact("lasting", None), fact("later", LATER)
    assert world.deliver(gone, kept, lasting, later) == [State.STORED] * 4
    assert world.client.hexists(key_name("local", make.SCOPE.key), gone["factId"])
    assert world.run() == expiry.Outcome(removed=1)
    assert set(world.facts()) == {one["factId"] for one in (kept, lasting, later)}
    assert world.marks() == [
        marks.Mark(what=marks.FORGOTTEN, target=gone["factId"], by=marks.EXPIRY, scope_key=make.SCOPE.key, at=LONG_AGO)
    ]
    assert not world.client.hexists(key_name("local", make.SCOPE.key), gone["factId"])
    for one, until, is_there in ((gone, LONG_AGO, False), (kept, A_MOMENT_AGO, True)):
        found = by_id(world.store, make.SCOPE, one["factId"], now=NOW)
        assert found is not None
        assert (found.state, found.ended_at, found.record is not None) == (Standing.EXPIRED, until, is_there)
    assert world.problems() == []
    assert world.run() == expiry.Outcome()
    assert counts.read(world.client, "local")["expired"] == 1


def test_a_late_replay_never_brings_an_expired_fact_back(world):
    event = fact("gone")
    world.deliver(event)
    world.run()
    assert world.deliver(event, event) == [State.FORGOTTEN] * 2
    assert world.facts() == {}
    late = fact("first told when it was over")
    assert world.deliver(late) == [State.STORED]
    assert world.run().removed == 1
    assert world.deliver(late) == [State.FORGOTTEN]


def test_what_an_expired_fact_had_superseded_stays_superseded_whatever_is_delivered_again(world):
    old, rival = (
        fact("old", None),
        fact("rival", None, supersedes_fact_id=fact("old")["factId"], valid_from=at("12:01")),
    )
    winner = fact("winner", supersedes_fact_id=old["factId"], valid_from=at("12:02"))
    heir = fact("heir", supersedes_fact_id=winner["factId"], valid_from=at("12:03"))
    world.deliver(old, rival, winner, heir)
    assert world.facts() == {
        old["factId"]: False,
        rival["factId"]: False,
        winner["factId"]: False,
        heir["factId"]: True,
    }
    assert world.run().removed == 2  # the chain's middle, which is superseded itself, and its end
    assert world.facts() == {old["factId"]: False, rival["factId"]: False}
    world.deliver(winner, old, heir, rival)
    assert world.facts() == {old["factId"]: False, rival["factId"]: False}
    assert world.problems() == []


def test_a_fact_of_a_single_valued_kind_that_expires_gives_its_line_to_nobody_older(world):
    first, second = fact("first", None), fact("second", valid_from=at("13:00"))
    world.deliver(first, second, lineKey="1" * 64)
    assert world.facts() == {first["factId"]: False, second["factId"]: True}
    world.run()
    world.deliver(first, second, lineKey="1" * 64)
    assert world.facts() == {first["factId"]: False}
    third = fact("third", None, valid_from=at("14:00"))
    world.deliver(third, lineKey="1" * 64)
    assert world.facts() == {first["factId"]: False, third["factId"]: True}
    assert world.problems() == []


def test_an_id_with_other_content_that_is_to_stay_is_left_alone_and_holds_up_nobody(world):
    one = make.fact("the heron", source_event_id="twice", valid_until=LONG_AGO)
    other = {**one, "validUntil": LATER}
    world.deliver(one, other)
    behind = fact("behind")
    world.deliver(behind)
    assert len(world.store.find(FACT, {"factId": one["factId"]}).records) == 2
    assert world.run() == expiry.Outcome(removed=1, kept=1)
    assert len(world.store.find(FACT, {"factId": one["factId"]}).records) == 2
    assert behind["factId"] not in world.facts()
    assert world.run(now_s=NOW_S + 30 * 86_400) == expiry.Outcome(removed=1)
    assert world.facts() == {}


def test_records_of_other_adapters_and_those_whose_scope_is_not_their_own_stay(world):
    foreign = stored(fact("foreign"))
    del foreign["contentHash"], foreign["scopeKey"]
    world.store.upsert(FACT, [foreign], ["factId"])
    lying = {**stored(fact("lying")), "scopeKey": make.OTHER_SCOPE.key}
    nameless = {**stored(fact("nameless")), "factId": "constructor"}
    world.store.upsert(FACT, [lying, nameless], ["factId", "contentHash"])
    behind = fact("behind")
    world.deliver(behind)
    assert world.run() == expiry.Outcome(removed=1, kept=2)
    assert len(world.store.find(FACT, {}).records) == 3
    assert [mark.target for mark in world.marks()] == [behind["factId"]]


def test_what_a_late_request_brings_back_is_removed_by_the_next_run(world):
    event = fact("gone")
    world.deliver(event)
    world.run()
    world.store.upsert(FACT, [stored(event)], ["factId", "contentHash"])
    assert world.problems() == ["forgotten_remains"]
    assert world.run().removed == 1
    assert world.facts() == {}
    assert len(world.marks()) == 1


def test_facts_of_one_id_expire_in_the_scope_that_says_so(world):
    event = fact("mine")
    theirs = {**stored(event), **make.OTHER_SCOPE.fields(), "scopeKey": make.OTHER_SCOPE.key, "validUntil": LATER}
    world.store.upsert(FACT, [stored(event), theirs], ["factId", "contentHash", "scopeKey"])
    assert world.run() == expiry.Outcome(removed=1)
    (left,) = world.store.find(FACT, {"factId": event["factId"]}).records
    assert left.get("scopeKey") == make.OTHER_SCOPE.key
    assert world.run(now_s=NOW_S + 30 * 86_400) == expiry.Outcome(removed=1)
    assert world.facts() == {}


# -- bounds and trouble -----------------------------------------------------------------------------------------------


def fill(world: World, count: int) -> None:
    for start in range(0, count, 100):
        rows = [stored(fact(f"number {start + number}")) for number in range(min(100, count - start))]
        world.store.upsert(FACT, rows, ["factId", "contentHash"])


def test_a_run_ends_with_its_time_between_two_batches_and_the_next_one_goes_on(local):
    fill(local, 250)
    late = local.expiry().run("local", until=clock.now_s())  # its time is over before the first request
    assert late == expiry.Outcome(more=True)
    assert len(local.facts()) == 250

    class OneBatch:
        """A settler whose time is over after one batch."""

        def __init__(self) -> None:
            self.asked: list[int] = []

        def store(self, tenant: str, *, until: float) -> Any:
            return local.settler.store(tenant, until=until)

        def settle(self, tenant: str, deliveries: Any, *, until: float) -> Any:
            self.asked.append(len(deliveries))
            return local.settler.settle(tenant, deliveries, until=until if len(self.asked) == 1 else 0.0)

    settler = OneBatch()
    assert local.run(settler=settler, now_s=NOW_S) == expiry.Outcome(removed=100, more=True)
    assert settler.asked == [100, 100]
    assert local.run() == expiry.Outcome(removed=150)
    assert local.facts() == {}
    assert counts.read(local.client, "local")["expired"] == 250


@pytest.mark.parametrize("form", FORMS[1:], indirect=True)
def test_a_store_that_fails_ends_the_run_with_its_code_and_nothing_is_half_done(form, rushdb, world, caplog):
    events = [fact(f"number {number}") for number in range(3)]
    world.deliver(*events)
    rushdb.fail("error", on="delete")
    found = world.run()
    assert (found.removed, found.more) == (0, True)
    assert found.problem.startswith("store_unavailable")
    assert len(world.marks()) == 3  # forgotten already, whoever comes next
    rushdb.clear_faults()
    assert world.deliver(events[0]) == [State.FORGOTTEN]
    world.run()
    assert world.facts() == {}
    assert make.SECRET_WORDS not in caplog.text and "heron" not in caplog.text


@pytest.mark.parametrize("form", ["platform"], indirect=True)
@pytest.mark.parametrize("kind", ["lie", "double", "late"])
def test_answers_that_lie_and_writes_that_double_or_come_late_leave_no_expired_fact(form, rushdb, world, kind):
    world.deliver(*(fact(f"number {number}") for number in range(5)))
    rushdb.fail(kind, on="write", count=2, late_s=0.2)
    deadline = time.monotonic() + 30
    while world.facts() and time.monotonic() < deadline:
        world.run()
    rushdb.clear_faults()
    assert world.facts() == {}
    assert {mark.target for mark in world.marks()} == {fact(f"number {number}")["factId"] for number in range(5)}


def test_two_workers_that_run_at_once_leave_nothing_and_break_nothing(world):
    events = [fact(f"number {number}") for number in range(120)]
    fill(world, 120)
    both, barrier = [world.expiry(), world.expiry()], threading.Barrier(2)
    found: list[expiry.Outcome] = []

    def run(one: expiry.Expiry) -> None:
        barrier.wait()
        found.append(one.run("local", until=float("inf")))

    threads = [threading.Thread(target=run, args=(one,)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.run() == expiry.Outcome()
    assert world.facts() == {}
    assert not any(one.problem for one in found)
    assert sum(one.removed for one in found) >= 120
    assert {mark.target for mark in world.marks()} == {event["factId"] for event in events}


def test_a_run_without_redis_removes_all_the_same_and_says_that_it_is_not_counted(local, caplog):
    local.deliver(fact("gone"))
    dead = redis_client.connect("unix:///nowhere/redis.sock", connect_timeout_s=1, socket_timeout_s=1)
    assert local.run(client=dead) == expiry.Outcome(removed=1)
    assert "action=count_lost count=expired number=1" in caplog.text
    dead.close()


def test_a_look_tells_what_would_go_and_changes_nothing(local):
    fill(local, 30)
    local.deliver(fact("kept", A_MOMENT_AGO))
    found = local.expiry().look("local", limit=100)
    assert set(found.ids) == {fact(f"number {number}")["factId"] for number in range(30)}
    assert (found.more, found.removed) == (False, 0)
    few = local.expiry().look("local", limit=7)
    assert (len(few.ids), few.more) == (7, True)
    assert len(local.facts()) == 31 and local.marks() == []


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_is_heard_when_a_key_of_its_tenant_signed_it_and_else_counted_and_gone(local):
    local.deliver(fact("gone"))
    good = expiry.arguments("local", at_ms=1)
    made = local.expiry()

    def heard(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
        return made.receive(arguments, headers, received_s=clock.now_s()) is not None

    stranger = message.Key(id="stranger", secret=b"x" * 32)
    liar = message.Key(id="key", secret=b"x" * 32)
    ingest = message.arguments([make.item(make.line(make.fact()))])
    refused = {
        "unsigned": [(good, {})],
        "unknown_key": [(good, message.sign(good, stranger))],
        "wrong_signature": [
            (good, message.sign(good, liar)),
            ({**good, "orderedAtMs": 2}, message.sign(good, KEY)),
        ],
        "other_tenant": [(good, message.sign(good, OTHER))],
        "malformed": [
            (ingest, message.sign(ingest, KEY)),
            ({**good, "more": 1}, message.sign({**good, "more": 1}, KEY)),
            ({**good, "orderedAtMs": True}, message.sign({**good, "orderedAtMs": True}, KEY)),
            ({"tenant": "local"}, message.sign({"tenant": "local"}, KEY)),
        ],
    }
    for tries in refused.values():
        for arguments, headers in tries:
            assert not heard(arguments, headers)
    assert len(local.facts()) == 1
    assert counts.read_refused(local.client) == {reason: len(tries) for reason, tries in refused.items()}
    assert heard(good, message.sign(good, KEY))
    assert local.facts() == {}
    assert heard(good, message.sign(good, KEY))  # said again, it does nothing more


# -- real workers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def worker_environment(worker_environment: dict[str, str]) -> dict[str, str]:
    return {**worker_environment, "MEMORY_EXPIRY_EVERY_S": "0.5", "MEMORY_EXPIRED_KEPT_S": "0"}


@pytest.fixture
def bench(celery_setup: CeleryTestSetup, worker_environment: dict[str, str]) -> Iterator[Bench]:
    made = Bench(celery_setup, worker_environment)
    yield made
    made.close()


def over(number: int) -> dict[str, Any]:
    """A fact whose time is over, by any clock; its text holds `make.SECRET_WORDS`."""
    return make.fact(
        source_event_id=f"over-{number}", valid_from="2020-01-01T00:00:00Z", valid_until="2020-01-02T00:00:00Z"
    )


def publish(bench: Bench, event: Mapping[str, Any]) -> None:
    bench.publish(make.item(make.line(event)), task_id=event["factId"])


def stored_facts(bench: Bench) -> set[str]:
    return {str(record.get("factId")) for record in bench.store.find(FACT, {}).records}


def test_a_worker_removes_expired_facts_by_a_task_that_flower_shows_and_that_tells_nothing(bench):
    lasting, gone = make.fact(valid_until="2100-01-01T00:00:00Z"), over(1)
    with bench.watching() as events:
        publish(bench, lasting)
        publish(bench, gone)
        assert [one.state for one in bench.receipts(2)] == [State.STORED] * 2
        wait_for(lambda: stored_facts(bench) == {lasting["factId"]}, bench.setup)
        wait_for(lambda: any(e.get("name") == expiry.TASK_NAME for e in events), bench.setup)
    shown = [(e["args"], e["kwargs"]) for e in events if e.get("name") == expiry.TASK_NAME]
    assert set(shown) == {("()", "<0 lines>")}
    assert bench.counts()["expired"] == 1
    assert "action=expired tenant=local removed=1" in bench.container.logs()
    assert make.SECRET_WORDS not in json.dumps(events)
    assert make.SECRET_WORDS not in bench.container.logs()
    publish(bench, gone)
    assert bench.receipts(3)[-1].state is State.FORGOTTEN
    assert stored_facts(bench) == {lasting["factId"]}
    assert all(bench.redis.pttl(key) > 0 for key in bench.redis.scan_iter("memory:expiry:*"))


@pytest.mark.slow
def test_a_worker_refuses_and_counts_an_order_that_nobody_signed(bench):
    bench.restart(MEMORY_EXPIRY_EVERY_S="0")
    publish(bench, over(1))
    bench.receipts(1)
    arguments = expiry.arguments("local", at_ms=1)
    liar = message.Key(id=bench.key.id, secret=b"l" * 40)
    for headers in ({}, message.sign(arguments, liar)):
        bench.setup.app.send_task(
            expiry.TASK_NAME, kwargs=arguments, headers=headers, queue=message.BACKLOG_QUEUE, ignore_result=True
        )
    wait_for(lambda: counts.read_refused(bench.redis) == {"unsigned": 1, "wrong_signature": 1}, bench.setup)
    assert len(stored_facts(bench)) == 1
    assert not list(bench.redis.scan_iter("memory:expiry:*"))
    bench.setup.app.send_task(
        expiry.TASK_NAME,
        kwargs=arguments,
        headers=message.sign(arguments, bench.key),
        queue=message.BACKLOG_QUEUE,
        ignore_result=True,
    )
    wait_for(lambda: not stored_facts(bench), bench.setup)


@pytest.mark.slow
def test_of_two_workers_the_one_that_is_left_goes_on_also_after_redis_was_away(tmp_path, bench, worker_environment):
    second = WorkerContainer(
        "second", app="tests.integration.faulty_worker", directory=tmp_path, environment=worker_environment
    )
    second.start()
    try:
        for number in range(10):
            publish(bench, over(number))
        bench.receipts(10)
        wait_for(lambda: not stored_facts(bench), bench.setup)
        bench.container.kill("SIGKILL")
        publish(bench, over(10))
        bench.receipts(11)
        wait_for(lambda: not stored_facts(bench), bench.setup)
        server = bench.setup.broker.container.server
        server.kill()
        server.start()
        bench.redis.connection_pool.disconnect()
        publish(bench, over(11))
        bench.receipts(12)
        wait_for(lambda: not stored_facts(bench), bench.setup)
        assert {one.state for one in bench.taken} == {State.STORED}
        assert second.status == "running"
    finally:
        second.teardown()


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_the_command_shows_what_would_go_and_removes_it(tmp_path, server, client):
    with machine(tmp_path, MEMORY_BROKER_URL=server.broker_url, MEMORY_TIME_TO_LIVE="note=1s") as here:
        with here.store() as store:
            gone, kept = stored(over(1)), stored(make.fact(source_event_id="kept", valid_until="2100-01-01T00:00:00Z"))
            store.upsert(FACT, [gone, kept], ["factId", "contentHash"])
        row = {"tenant": "local", "kept": 0, "more": False, "problem": ""}
        looked = here.json("expire", "--dry-run")
        assert looked == {"dryRun": True, "tenants": [{**row, "wouldGo": [gone["factId"]]}]}
        assert here.json("expire") == {"dryRun": False, "tenants": [{**row, "removed": 1}]}
        assert here.run("expire").stdout == "local  0 removed\n"
        assert [record.get("factId") for record in here.records(FACT, {})] == [kept["factId"]]
        assert here.json("remember", "Bring bread.", "--kind", "note")["outcome"] == "durable"
        (_, line), *_ = here.lines("event")
        assert line["event"]["validUntil"] > line["event"]["validFrom"]


# -- turns ------------------------------------------------------------------------------------------------------------


def test_of_many_workers_one_has_the_turn_and_the_next_is_free_when_its_time_is_over(client):
    turns = expiry_turns.Turns(keys={"a": KEY, "b": OTHER}, every_s=3600.0)
    assert list(turns.take(client, "one")) == [("a", KEY), ("b", OTHER)]
    assert list(turns.take(client, "two")) == []
    assert client.get("memory:expiry:a") == b"one"
    assert 3500 < client.ttl("memory:expiry:a") <= 3600
    client.pexpire("memory:expiry:a", 1)
    wait(lambda: not client.exists("memory:expiry:a"))
    assert list(turns.take(client, "two")) == [("a", KEY)]
    turns.give_back(client, "b")
    assert [tenant for tenant, _ in turns.take(client, "two")] == ["b"]
    turns.again_soon(client, "b")
    assert 0 < client.ttl("memory:expiry:b") <= expiry_turns.LOOK_S


def test_a_run_that_was_not_done_frees_the_next_turn_soon(local):
    fill(local, 1)
    list(local.turns.take(local.client, "one"))
    good = expiry.arguments("local", at_ms=1)
    long_ago = clock.now_s() - 600
    found = local.expiry().receive(good, message.sign(good, KEY), received_s=long_ago)
    assert found == expiry.Outcome(more=True)
    assert 0 < local.client.ttl("memory:expiry:local") <= expiry_turns.LOOK_S
    assert local.client.ttl("memory:expiry:neighbour") > expiry_turns.LOOK_S


def test_turns_of_a_redis_that_is_away_are_nobodys():
    dead = redis_client.connect("unix:///nowhere/redis.sock", connect_timeout_s=1, socket_timeout_s=1)
    turns = expiry_turns.Turns(keys={"a": KEY}, every_s=3600.0)
    with pytest.raises(errors.RedisUnavailable):
        list(turns.take(dead, "one"))
    dead.close()


def wait(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
