"""The operator's commands over dead letters, on a real journal and a real Redis."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
import typer
from typer.testing import CliRunner, Result

from memory_tasks import counts, dead_letters, operator_commands, receipts, verdicts
from producer import config, receipt
from producer.dispatcher import Dispatcher
from producer.journal import Journal
from producer.journal.index import Index
from producer.journal.line import Line
from producer.receipt import Receipt, State
from tests import worker_messages as make
from tests.redis_server import RedisServer, redis_server
from tests.unit.test_dispatcher import Broker

OTHER = "f" * 32

app = typer.Typer()
app.add_typer(operator_commands.dead_letters_app, name="dead-letters")
app.command("replay")(operator_commands.replay)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


class Bench:
    def __init__(self, tmp_path: Path, server: RedisServer) -> None:
        self.environment = {"MEMORY_STATE_DIR": str(tmp_path / "state"), "MEMORY_BROKER_URL": server.broker_url}
        self.settings = config.load(self.environment)
        self.client = redis_py.Redis.from_url(server.url)
        self.client.flushall()

    def journal(self) -> Journal:
        given = self.settings
        return Journal.open(
            given.journal_dir,
            max_bytes=given.journal_max_bytes,
            reserve_bytes=given.journal_reserve_bytes,
            segment_max_bytes=given.segment_max_bytes,
        )

    def die(self, number: int, reason: str, deaths: int = 0) -> Line:
        """A line that is dead here and listed in Redis."""
        with self.journal() as journal:
            line = journal.append_event(make.episode(number))
            journal.append_receipts([self.receipt(line, reason, deaths)])
            self.list(journal.journal_id, line, reason, deaths)
        return line

    def list(self, journal_id: str, line: Line, reason: str, deaths: int = 0) -> None:
        answer = verdicts.Answer(
            receipts=[(journal_id, self.receipt(line, reason, deaths))], again=None, counted={"dead": 1}
        )
        to = receipts.Receipts(self.client, ttl_s=1000, dead_letters_kept=100)
        to.send(answer, key=self.settings.key, tenant="local")

    @staticmethod
    def receipt(line: Line, reason: str, deaths: int) -> Receipt:
        return Receipt(line_hash=line.hash, id=line.id, state=State.DEAD, reason=reason, deaths=deaths)

    def run(self, *words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(words), env=self.environment)
        assert result.exit_code == code, result.output
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def states(self) -> dict[str, State | None]:
        with self.journal() as journal:
            index = Index(journal).read_all()
            return {hash_.hex(): entry.state for hash_, entry in index.entries.items()}

    def listed(self) -> set[str]:
        return {letter.line_hash for letter in dead_letters.read(self.client, "local")}


@pytest.fixture
def bench(tmp_path, server, monkeypatch) -> Iterator[Bench]:
    monkeypatch.setenv("COLUMNS", "200")
    made = Bench(tmp_path, server)
    yield made
    made.client.close()


def test_list_names_what_is_dead_here_and_elsewhere_without_any_content(bench):
    here = bench.die(1, "store_refused:422")
    elsewhere = make.line(make.episode(2))
    bench.list(OTHER, elsewhere, "poison", deaths=3)
    rows = bench.json("dead-letters", "list")["deadLetters"]
    assert [(row["id"], row["reason"], row["deaths"], row["here"]) for row in rows] == [
        (here.id, "store_refused:422", 0, True),
        (elsewhere.id, "poison", 3, False),
    ]
    shown = bench.run("dead-letters", "list").output
    assert "store_refused:422" in shown
    assert f"journal {OTHER[:8]}" in shown
    assert make.SECRET_WORDS not in shown + json.dumps(rows)


def test_list_tells_what_is_here_while_redis_is_away_and_says_so(bench):
    line = bench.die(1, "poison")
    bench.environment["MEMORY_BROKER_URL"] = "redis://127.0.0.1:9/0"
    answer = bench.json("dead-letters", "list")
    assert [row["id"] for row in answer["deadLetters"]] == [line.id]
    assert answer["redis"].startswith("Redis cannot be reached")


def test_list_says_that_a_later_version_wrote_here_and_not_to_try_again(bench):
    bench.die(1, "contract:visibility:unknown")
    (segment,) = bench.settings.journal_dir.glob("segment-*.jsonl")
    checked = '{"v":2,"kind":"event","id":"x"'
    with segment.open("a") as file:
        file.write(f'{checked},"sum":"{hashlib.sha256(checked.encode()).hexdigest()[:16]}"}}\n')
    result = CliRunner().invoke(app, ["dead-letters", "list"], env=bench.environment)
    said = f"{result.exception} {result.output}"
    assert "later version" in said and "try again" not in said


def test_list_makes_no_journal_where_there_is_none(bench):
    assert bench.json("dead-letters", "list")["deadLetters"] == []
    assert not bench.settings.journal_dir.exists()
    bench.run("replay", "--all", code=1)
    assert not bench.settings.journal_dir.exists()


def test_show_prints_content_only_when_asked_and_as_ascii(bench):
    line = bench.die(1, "poison", deaths=3)
    for words in (("--json",), ()):
        shown = bench.run("dead-letters", "show", line.id[:12], *words).output
        assert line.id in shown
        assert make.SECRET_WORDS not in shown
    (row,) = bench.json("dead-letters", "show", line.hash, "--content")
    assert row["content"] == make.episode(1)
    assert (row["kind"], row["reason"], row["deaths"], row["appendedAt"]) == ("event", "poison", 3, line.appended_at)
    assert make.SECRET_WORDS in bench.run("dead-letters", "show", line.id, "--content").output


def test_what_stands_in_another_hosts_journal_is_said_to_be_there(bench):
    elsewhere = make.line(make.episode(2))
    bench.list(OTHER, elsewhere, "poison")
    for words in (
        ("dead-letters", "show", elsewhere.id),
        ("replay", elsewhere.id),
        ("dead-letters", "discard", elsewhere.id),
    ):
        assert f"journal {OTHER}, on another host" in bench.run(*words, code=1).output
    assert bench.listed() == {elsewhere.hash}


def test_replay_by_id_publishes_it_again_as_unsure_with_no_deaths_and_takes_it_off_the_listing(bench):
    one, other = bench.die(1, "poison", deaths=3), bench.die(2, "poison", deaths=3)
    assert bench.json("replay", one.id) == {"replayed": [one.id], "missing": []}
    assert bench.states() == {one.hash: State.REPLAYED, other.hash: State.DEAD}
    assert bench.listed() == {other.hash}
    broker = Broker()
    with bench.journal() as journal:
        dispatcher = Dispatcher(journal, broker, broker, key=bench.settings.key)
        for _ in range(3):
            dispatcher.run_once()
        dispatcher.close()
    (item,) = [item for item in broker.items() if "check" not in item]
    assert (item["line"], item["unsure"], item["deaths"]) == (one.text, True, 0)


def test_replay_by_reason_takes_the_code_and_what_it_begins(bench):
    refused = [bench.die(1, "store_refused:422"), bench.die(2, "store_refused:413")]
    poison, other = bench.die(3, "poison"), bench.die(4, "store_refused_by_somebody")
    assert set(bench.json("replay", "--reason", "store_refused")["replayed"]) == {line.id for line in refused}
    assert bench.json("replay", "--reason", "poison")["replayed"] == [poison.id]
    assert bench.states()[other.hash] is State.DEAD
    bench.run("replay", "--reason", "poison", code=1)


def test_replay_all_takes_all_that_are_dead_and_nothing_else(bench):
    dead = [bench.die(number, "poison") for number in range(3)]
    with bench.journal() as journal:
        pending = journal.append_event(make.episode(9))
    assert set(bench.json("replay", "--all")["replayed"]) == {line.id for line in dead}
    assert bench.states()[pending.hash] is None
    assert bench.listed() == set()
    bench.run("replay", "--all", code=1)


def test_discard_gives_up_what_is_named_and_nothing_else(bench):
    one, other = bench.die(1, "poison"), bench.die(2, "poison")
    assert bench.json("dead-letters", "discard", one.id, "abcdef0123456789", code=1) == {
        "discarded": [one.id],
        "missing": ["abcdef0123456789"],
    }
    assert bench.states() == {one.hash: State.DISCARDED, other.hash: State.DEAD}
    assert bench.listed() == {other.hash}
    bench.run("replay", one.id, code=1)


@pytest.mark.parametrize("words", [(), ("--all", "--reason", "poison"), ("a" * 64, "--all")])
def test_what_to_act_on_is_said_in_exactly_one_way(bench, words):
    bench.die(1, "poison")
    for command in (("replay",), ("dead-letters", "discard")):
        bench.run(*command, *words, code=2)
    assert set(bench.states().values()) == {State.DEAD}


def test_a_short_prefix_names_nothing(bench):
    line = bench.die(1, "poison")
    bench.run("replay", line.id[:7], code=1)
    bench.run("replay", line.id[:8].upper())


def test_a_replay_while_redis_is_away_is_durable_all_the_same(bench):
    line = bench.die(1, "poison")
    bench.environment["MEMORY_BROKER_URL"] = "redis://127.0.0.1:9/0"
    bench.run("replay", line.id)
    assert bench.states() == {line.hash: State.REPLAYED}


def test_acting_counts_nothing_and_sends_no_receipt(bench):
    line = bench.die(1, "poison")
    before = counts.read(bench.client, "local")
    with bench.journal() as journal:
        name = receipt.list_name(journal.journal_id)
    waiting = bench.client.llen(name)
    bench.run("replay", line.id)
    assert counts.read(bench.client, "local") == before
    assert bench.client.llen(name) == waiting
