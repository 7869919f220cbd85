"""`AgentMemory.forget` and `memory-tasks forget`, on a real journal, a real Redis and a real store."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from typer.testing import CliRunner, Result

from memory_tasks import cli, forget_survey, settings, terminal
from producer import capture, config, keys, store
from producer.convergence import forget, ordered
from producer.journal import Journal, prompts, segments
from producer.memory import AgentMemory
from producer.outcomes import Durable, Refused
from producer.receipt import Receipt, State
from producer.scope import Scope
from tests.integration.test_memory import until
from tests.redis_server import RedisServer, redis_server
from tests.tiny_worker import TinyWorker

ANN, BOB = (
    Scope(
        agent_id="agent",
        profile_id="default",
        privacy_scope="private",
        participant_scope_hash=letter * 64,
        sandbox_eligible=False,
    )
    for letter in "ab"
)
WAIT_S = 20.0
PLACES = [
    *("store", "recent_writes", "queues", "dead_letters", "dead_letters_listed", "journal", "journal_bytes"),
    *("prompts", "quarantine", "other_journals", "backups"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), persistent=False) as running:
        yield running


class Bench:
    def __init__(self, tmp_path: Path, server: RedisServer) -> None:
        with redis_py.Redis.from_url(server.url) as client:
            client.flushall()
        self.environment = {
            "MEMORY_STATE_DIR": str(tmp_path / "state"),
            "MEMORY_BROKER_URL": server.broker_url,
            "MEMORY_RECALL_DEADLINE_MS": "5000",
        }
        self.settings = config.load(self.environment)

    def memory(self, **options: Any) -> AgentMemory:
        return AgentMemory(self.settings, scope=ANN, **options)

    def journal(self) -> Journal:
        given = self.settings
        return Journal.open(
            given.journal_dir,
            max_bytes=given.journal_max_bytes,
            reserve_bytes=given.journal_reserve_bytes,
            segment_max_bytes=given.segment_max_bytes,
        )

    def run(self, *words: str, code: int = 0, changes: dict[str, str] | None = None) -> Result:
        result = CliRunner().invoke(cli.app, list(words), env={**self.environment, **(changes or {})})
        assert result.exit_code == code, result.output
        return result

    def json(self, *words: str, code: int = 0, changes: dict[str, str] | None = None) -> Any:
        return json.loads(self.run(*words, "--json", code=code, changes=changes).stdout)


@pytest.fixture
def bench(tmp_path: Path, server: RedisServer) -> Bench:
    return Bench(tmp_path, server)


def turn(memory: AgentMemory, text: str, *, session: str = "s-1", scope: Scope | None = None) -> str:
    outcome = memory.capture_turn(session_id=session, user_text=text, assistant_text="noted", scope=scope)
    assert isinstance(outcome, Durable)
    return outcome.id


def fact(memory: AgentMemory, text: str, *, session: str | None = "s-1", scope: Scope | None = None) -> str:
    outcome = memory.remember(text=text, kind="note", subject_key=text, session_id=session, scope=scope)
    assert isinstance(outcome, Durable)
    return outcome.id


def recalled(memory: AgentMemory, scope: Scope | None = None) -> set[str]:
    found = memory.recall_memories("editor", scope=scope, limit=50)
    assert not found.failures, found.failures
    return {one.id for one in found.memories}


# -- the facade --------------------------------------------------------------------------------------------------------


def test_an_id_a_conversation_or_everything_leaves_recall_at_once_and_the_store_with_the_order(bench):
    with TinyWorker(bench.settings), bench.memory() as memory:
        one, two = turn(memory, "editor one"), fact(memory, "editor two")
        three = turn(memory, "editor three", session="s-2")
        bobs = turn(memory, "editor of bob", scope=BOB)
        assert memory.flush(WAIT_S)
        assert recalled(memory) == {one, two, three}
    with bench.memory(dispatches=False) as away:  # nobody delivers
        assert away.forget(three)
        assert recalled(away) == {one, two}
        assert away.forget(session_id="s-1")
        assert recalled(away) == set() and recalled(away, BOB) == {bobs}
    with TinyWorker(bench.settings), bench.memory() as memory:
        assert memory.flush(WAIT_S)
        assert recalled(memory) == set() and recalled(memory, BOB) == {bobs}
        assert memory.look_up(one).versions[0].state == "forgotten"
        assert memory.forget(everything=True, scope=BOB)
        assert recalled(memory, BOB) == set()


def test_all_versions_of_a_thing_are_forgotten_by_its_key(bench):
    with TinyWorker(bench.settings), bench.memory() as memory:
        for berth in ("12", "14"):
            assert memory.entity(kind="boat", name="Merle", label="ARTIFACT", properties={"berth": berth})
        assert memory.entity(kind="boat", name="Ilse")
        key = memory.entity_key(kind="boat", name="Merle", label="ARTIFACT")
        assert memory.forget(entity_key=key, label="ARTIFACT") and memory.flush(WAIT_S)
    found = bench.json("forget", "--everywhere", "--agent", "agent", "--profile", "default", "--dry-run")["targets"]
    assert [(one["place"], one["label"]) for one in found if one["place"] == "store"] == [("store", "ENTITY")]


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"target": "1" * 64, "everything": True},
        {"session_id": "s-1", "everything": True},
        {"target": "no id"},
        {"entity_key": "k", "label": "NOTE"},
        {"target": 7},
    ],
    ids=["nothing", "id and all", "session and all", "no id", "no label", "a number"],
)
def test_anything_but_exactly_one_target_is_refused_and_nothing_is_written(bench, named):
    with bench.memory(dispatches=False) as memory:
        outcome = memory.forget(**named)
        assert isinstance(outcome, Refused) and outcome.reason == "invalid"
    with bench.journal() as journal:
        assert list(journal.scan()) == []


def test_a_scope_that_is_not_proven_may_order_nothing(bench):
    with AgentMemory(bench.settings, dispatches=False) as memory:
        outcome = memory.forget(everything=True)
        assert isinstance(outcome, Refused) and outcome.reason == "scope_invalid"


def test_what_was_stored_after_an_orders_mark_is_no_target_of_it(tmp_path, bench):
    given = settings.Settings.load({**bench.environment, "MEMORY_FORGET_MARGIN_S": "0"})
    order = capture.build_forget_order(
        scope=ANN, runtime="custom", at="2026-12-01T10:00:00.000Z", group={"participant": ANN.participant_scope_hash}
    )
    target, named = forget.target_of(order), ordered.of_body(order)
    assert named is not None
    with contextlib.closing(store.open_store(given.producer.store_url)) as opened:
        for number, label in enumerate(("MEMORY_FACT", "MEMORY_MARK", "MEMORY_FACT")):
            row = {"factId": f"{number:064x}", "target": named.key, "by": "b" * 64, **ANN.fields()}
            opened.upsert(label, [row], ["factId"])
            made = opened.find(label, {"factId": row["factId"]}).records[0].id
            until(lambda made=made: time.time() * 1000 > forget.made_ms(made) + 1)  # ids tell milliseconds
    assert len(forget_survey.survey(given, target, named).records) == 2
    found = forget_survey.survey(given, target, named, order_id="b" * 64)
    assert [record.get("factId") for record in found.records] == [f"{0:064x}"]
    assert [record.get("factId") for record in found.newer] == [f"{2:064x}"]


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_targets_and_counts_without_text_and_writes_nothing(bench):
    bench.run("remember", "the editor is Helix", "--participant", "ann")
    before = {path: path.read_bytes() for path in sorted(bench.settings.journal_dir.rglob("*.jsonl"))}
    shown = bench.json("forget", "--all", "--participant", "ann", "--dry-run")
    assert [(one["place"], one["label"]) for one in shown["targets"]] == [("journal", "MEMORY_FACT")]
    assert shown["counts"]["journal"] == 1 and not shown["cut"] and shown["unreachable"] == {}
    assert "Helix" not in json.dumps(shown)
    assert "Helix" not in bench.run("forget", "--all", "--participant", "ann", "--dry-run").stdout
    assert "Helix" in bench.run("forget", "--all", "--participant", "ann", "--dry-run", "--content").stdout
    assert bench.json("forget", "--all", "--participant", "bob", "--dry-run", code=1)["targets"] == []
    after = {path: path.read_bytes() for path in sorted(bench.settings.journal_dir.rglob("*.jsonl"))}
    assert after == before


def test_the_receipt_lists_every_place_and_nothing_is_left_in_the_store(bench):
    with TinyWorker(bench.settings):
        bench.run("remember", "the editor is Helix", "--participant", "ann", "--wait")
        bench.run("remember", "the editor is Kakoune", "--participant", "bob", "--wait")
        done = bench.json("forget", "--all", "--participant", "ann", "--yes")
        assert bench.json("recall", "editor", "--participant", "ann")["memories"] == []
        assert len(bench.json("recall", "editor", "--participant", "bob")["memories"]) == 1
    assert done["outcome"] == "forgotten" and done["settledAt"]
    places = {row["place"]: row for row in done["places"]}
    assert list(places) == PLACES
    for place in ("store", "recent_writes", "dead_letters", "dead_letters_listed", "journal", "prompts", "quarantine"):
        assert (places[place]["state"], places[place]["count"]) == ("done", 0), place
    late_ms = bench.settings.store_late_s * 1000
    settled_ms = segments.ms_of_iso(done["settledAt"])
    assert places["queues"]["state"] == "pending_until"
    assert segments.ms_of_iso(places["queues"]["until"]) - settled_ms >= late_ms
    assert places["journal_bytes"]["state"] == "pending_until" and places["journal_bytes"]["count"] == 1
    assert segments.ms_of_iso(places["journal_bytes"]["until"]) - settled_ms > 300_000
    assert places["other_journals"]["state"] == "pending_until_drained"
    assert (places["backups"]["state"], places["backups"]["count"]) == ("unknown", None)
    states = [line.body["state"] for line in receipts(bench)]
    assert states.count("forgotten") == 1  # the stored line is given up, its bytes go with compaction


def receipts(bench: Bench) -> list[Any]:
    with bench.journal() as journal:
        return [located.line for located in journal.scan() if located.line.kind == "receipt"]


def test_without_a_worker_the_order_is_durable_pending_and_exits_with_one(bench):
    fact_id = bench.json("remember", "the editor is Helix", "--participant", "ann")["id"]
    done = bench.json("forget", "--all", "--participant", "ann", "--yes", "--wait-s", "0.2", code=1)
    assert done["outcome"] == "pending" and done["settledAt"] is None
    places = {row["place"]: row["state"] for row in done["places"]}
    assert list(places) == PLACES
    assert {places[name] for name in ("store", "queues", "journal")} == {"pending_until_drained"}
    assert bench.json("recall", "editor", "--participant", "ann")["memories"] == []
    with TinyWorker(bench.settings), bench.memory() as memory:
        assert memory.flush(WAIT_S)
        (version,) = memory.look_up(fact_id, scope=own_scope(bench)).versions
        assert version.state == "forgotten"


def test_what_cannot_be_reached_is_told_as_unknown(bench):
    with TinyWorker(bench.settings):
        done = bench.json("forget", "1" * 64, "--yes")
        assert done["outcome"] == "forgotten"
    away = {"MEMORY_REDIS_URL": "redis://127.0.0.1:1/0", "MEMORY_STORE_URL": "rushdb+http://127.0.0.1:1"}
    away |= {"MEMORY_STORE_TOKEN": "t"}
    done = bench.json("forget", "1" * 64, "--yes", "--wait-s", "0.2", code=1, changes=away)
    places = {row["place"]: row for row in done["places"]}
    for name in ("recent_writes", "dead_letters_listed", "other_journals"):
        assert (places[name]["state"], places[name]["count"]) == ("unknown", None) and places[name]["detail"]
    assert bench.json("forget", "1" * 64, "--dry-run", code=1, changes=away)["unreachable"].keys() == {
        "store",
        "recent_writes",
    }


def test_an_operators_order_counts_in_every_scope(bench):
    with TinyWorker(bench.settings), bench.memory() as memory:
        anns, bobs = fact(memory, "editor one"), fact(memory, "editor two", scope=BOB)
        assert memory.flush(WAIT_S)
        done = bench.json("forget", "--everywhere", "--participant-hash", "b" * 64, "--yes")
        assert done["outcome"] == "forgotten" and done["order"]["everywhere"]
        assert recalled(memory) == {anns} and recalled(memory, BOB) == set()
        assert bench.json("forget", "--everywhere", anns, "--yes")["outcome"] == "forgotten"
        assert recalled(memory) == set()
        assert memory.look_up(bobs, scope=BOB).versions[0].state == "forgotten"


def test_a_person_by_name_is_forgotten_in_every_agent_and_profile_by_one_order(bench):
    with TinyWorker(bench.settings), bench.memory() as memory:
        for agent in ("claude-code", "cli"):
            words = ("remember", f"the {agent} editor is Helix", "--agent", agent, "--participant")
            bench.json(*words, "ann")
            bench.json(*words, "bob")
        assert memory.flush(WAIT_S)
        bench.run("forget", "--everywhere", "--participant", "ann", "--participant-hash", "b" * 64, "--yes", code=2)
        done = bench.json("forget", "--everywhere", "--participant", "ann", "--yes")
        assert done["outcome"] == "forgotten"
        for agent in ("claude-code", "cli"):
            asked = ("recall", "editor", "--agent", agent, "--participant")
            assert bench.json(*asked, "ann")["memories"] == []
            assert len(bench.json(*asked, "bob")["memories"]) == 1


def test_a_thing_is_forgotten_by_its_key_and_by_nothing_else(bench):
    told = bench.run("forget", "--entity", "Ann", "--yes", code=1)  # `main` makes it one line and exit code 2
    assert str(told.exception) == "group.entityKey: is not a thing's key of 64 hex digits"


def test_a_refused_order_says_what_key_it_needs(bench):
    """What a worker answers to a key without the right stands in `tests/unit/test_incoming.py`."""
    with bench.journal() as journal, Answering(journal, State.DEAD, "everywhere_not_allowed"):
        told = bench.run("forget", "--everywhere", "1" * 64, "--yes", code=1)
        report = bench.json("forget", "--everywhere", "1" * 64, "--yes", code=1)
    assert "operator's key" in told.stderr and "nothing was forgotten" in told.stderr
    assert (report["outcome"], report["reason"], report["places"]) == ("refused", "everywhere_not_allowed", [])


class Answering:
    """Gives every order of a journal this receipt, as a worker's answer would."""

    def __init__(self, journal: Journal, state: State, reason: str) -> None:
        self._journal, self._state, self._reason = journal, state, reason
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        answered: set[str] = set()
        while not self._stop.wait(0.05):
            for located in self._journal.scan():
                line = located.line
                if line.kind == "order" and line.hash not in answered:
                    answered.add(line.hash)
                    made = Receipt(line_hash=line.hash, id=line.id, state=self._state, reason=self._reason)
                    self._journal.append_receipts([made])


def test_prompts_of_forgotten_turns_go_and_those_that_name_nobody_are_told(bench):
    directory = bench.settings.journal_dir
    with TinyWorker(bench.settings), AgentMemory(bench.settings, scope=own_scope(bench)) as memory:
        for number in ("1", "2"):
            prompts.save_prompt(directory, "s-1", f"p-{number}", f"prompt {number}")
        memory.capture_turn(session_id="s-1", user_text="one", assistant_text="noted", source_event_id="p-1")
        assert memory.flush(WAIT_S)
        done = bench.json("forget", "--session", "s-1", "--participant", "ann", "--yes")
    assert prompts.take_prompt(directory, "s-1", "p-1") is None
    assert prompts.take_prompt(directory, "s-1", "p-2") == "prompt 2"
    (row,) = [row for row in done["places"] if row["place"] == "prompts"]
    assert (row["state"], row["count"]) == ("pending_until", 1)


def own_scope(bench: Bench) -> Scope:
    return terminal.scope_of(bench.settings, "", "", "ann")


@pytest.mark.parametrize(
    "words",
    [
        ["--yes"],
        ["1" * 64, "--all", "--yes"],
        ["--all"],
        ["--everywhere", "--yes"],
        ["--everywhere", "--agent", "a", "--yes"],
        ["--everywhere", "--all", "--yes"],
        ["--participant-hash", "a" * 64, "--yes"],
    ],
    ids=["nothing", "two", "json asks nothing", "everywhere what", "half a profile", "everywhere all", "hash here"],
)
def test_what_is_not_one_target_cannot_be_carried_out(bench, words):
    bench.run("forget", *words, "--json", code=2)


def test_it_asks_before_it_forgets(bench):
    bench.run("remember", "the editor is Helix", "--participant", "ann")
    result = CliRunner().invoke(
        cli.app, ["forget", "--all", "--participant", "ann"], env=bench.environment, input="n\n"
    )
    assert result.exit_code == 1 and "Forget this for ever?" in result.output
    with bench.journal() as journal:
        assert [located.line.kind for located in journal.scan()].count("order") == 0


def test_a_session_of_another_runtime_is_named_with_it(bench):
    given = bench.json("forget", "--session", "s", "--runtime", "hermes", "--participant", "ann", "--dry-run", code=1)
    expected = keys.session_key(runtime="hermes", external_session_id="s", scope=own_scope(bench))
    assert given["order"]["group"] == {"session": expected}
