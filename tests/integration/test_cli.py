"""The commands as their user runs them: what they print, their exit codes, one clear line for what is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from memory_tasks import status
from tests.acceptance.machine import Machine, machine
from tests.redis_server import redis_server

FACT = "0" * 64
TURN = ["capture", "--user", "Why?", "--assistant", "Because."]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which nothing runs."""
    with machine(tmp_path_factory.mktemp("alone")) as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which everything runs."""
    directory = tmp_path_factory.mktemp("served")
    with (
        redis_server(directory / "redis", password="a-password-of-redis") as redis,
        machine(directory, MEMORY_BROKER_URL=redis.broker_url) as made,
    ):
        made.start_agent()
        made.start_worker()
        yield made


def refused(made: Machine, *words: str, **more: Any) -> str:
    """The one line that says what is wrong."""
    done = made.run(*words, **more)
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error ")
    return line


# -- what is printed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "exit_code", "names"),
    [
        (TURN, 0, {"outcome", "id"}),
        (["capture", "--user", "Why?", "--assistant", " "], 1, {"outcome", "reason", "detail"}),
        ([*TURN, "--session", " "], 1, {"outcome", "reason", "detail"}),
        ([*TURN, "--wait", "--wait-s", "0.5"], 1, {"outcome", "id", "settled"}),
        (["remember", "Tabs."], 0, {"outcome", "id"}),
        (["retract", FACT], 0, {"outcome", "id"}),
        (["recall", "why"], 0, {"memories", "partial", "sources", "tookMs"}),
        (["status"], 0, {"journal", "turns", "redis", "agent", "store"}),
        (["doctor"], 1, {"name", "level", "found", "todo"}),
        (["connect", "claude-code", "--settings", "settings.json"], 0, {"settings", "changed", "hookConfig"}),
        (["connect", "claude-code", "--settings", "settings.json", "--remove"], 0, {"settings", "removed"}),
    ],
)  # fmt: skip
def test_with_json_a_command_prints_one_document_and_nothing_else(alone, words, exit_code, names):
    printed = alone.json(*words, exit_code=exit_code)
    assert names <= set(printed if isinstance(printed, dict) else printed[0])


def test_who_waits_is_told_of_a_dead_letter_by_its_reason_and_exit_code(tmp_path):
    with (
        redis_server(tmp_path / "redis") as redis,
        machine(tmp_path, MEMORY_BROKER_URL=redis.broker_url, MEMORY_CACHE_KEY="c" * 40) as made,
    ):
        key = {"keyId": "local", "secret": made.settings.producer_key, "tenant": "local", "agents": ["somebody-else"]}
        tenants = made.home / "tenants.json"
        tenants.write_text(json.dumps([{**key, "storeUrl": made.settings.store_url}]))
        tenants.chmod(0o600)
        made.start("worker", changes={"MEMORY_TENANTS_FILE": str(tenants)})
        printed = made.json("remember", "Tabs.", "--wait", exit_code=1)
        assert (printed["settled"], printed["state"], printed["reason"]) == (True, "dead", "scope_not_allowed")
        told = made.run("capture", "--user", "Why?", "--assistant", "So.", "--wait")
        assert told.returncode == 1 and told.stdout.endswith(", dead: scope_not_allowed\n")


def test_recalled_text_is_printed_as_it_is_and_cannot_steer_the_terminal(alone):
    assert alone.run("remember", "Heron [red]nests[/red] :smile: \x1b[31m\x9b2J\x07 é 漢 here.").returncode == 0
    done = alone.run("recall", "heron", changes={"LANG": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
    assert "Heron [red]nests[/red] :smile:" in done.stdout
    assert not any((c < " " and c != "\n") or c == "\x9b" for c in done.stdout)
    (memory,) = alone.json("recall", "heron")["memories"]
    assert memory["text"].startswith("Heron [red]nests[/red] :smile:") and memory["text"].endswith(" é 漢 here.")


def test_status_tells_where_every_event_is(tmp_path):
    with machine(tmp_path) as made:
        assert made.json("status")["journal"] == {
            "path": str(made.state / "journal"),
            "pending": 0,
            "missing": True,
        }
        for number in range(3):
            made.json("remember", f"Fact {number}.")
        made.json("capture", "--user", "Why?", "--assistant", " ", exit_code=1)
        report = made.json("status")
        assert (report["journal"]["pending"], report["journal"]["settled"], report["journal"]["dead"]) == (3, 0, 0)
        assert report["turns"]["python"] == {"seen": 4, "captured": 3, "refused.invalid": 1}
        assert "unreachable" in report["redis"] and "unreachable" in report["agent"]
        done = made.run("status")
        assert done.returncode == 0 and "pending" in done.stdout and done.stderr == ""


def test_status_counts_what_workers_did(served):
    before = served.json("status")["redis"]["counts"].get("stored", 0)
    for number in range(3):
        assert served.json("capture", "--user", f"Why {number}?", "--assistant", "So.", "--wait")["state"] == "stored"
    report = served.json("status")
    assert report["redis"]["counts"]["stored"] - before == 3
    assert report["redis"]["queues"] == {"memory": 0, "memory.backlog": 0}
    assert report["redis"]["lastStoredAgoS"] >= 0
    assert (report["journal"]["pending"], report["agent"]["dispatcher"]["role"]) == (0, "drainer")
    assert report["redis"]["deadLetters"] == 0 and report["redis"]["refusedMessages"] == {}
    assert report["redis"]["countsSince"].endswith("Z")
    done = served.run("metrics")
    assert done.returncode == 0 and f'memory_deliveries_total{{outcome="stored"}} {before + 3}.0' in done.stdout
    assert "memory_dispatcher_pending 0.0" in done.stdout and "memory_journal_pending 0.0" in done.stdout


# -- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_says_what_is_missing_and_what_to_do(alone):
    checks = {check["name"]: check for check in alone.json("doctor", exit_code=1)}
    for name in ("broker", "redis", "agent", "workers"):
        assert checks[name]["level"] == "fail" and checks[name]["todo"], checks[name]
    assert "memory-tasks up" in checks["broker"]["todo"] and "memory-tasks agent" in checks["agent"]["todo"]
    assert checks["journal"]["level"] == checks["store"]["level"] == "ok"


def test_doctor_misses_a_worker_where_only_that_is_missing(tmp_path):
    with redis_server(tmp_path / "redis") as redis, machine(tmp_path, MEMORY_BROKER_URL=redis.broker_url) as made:
        made.start_agent()
        checks = {check["name"]: check for check in made.json("doctor", exit_code=1)}
        assert [name for name, check in checks.items() if check["level"] == "fail"] == ["workers"]
        assert "memory-tasks worker" in checks["workers"]["todo"]


def test_doctor_is_content_when_everything_runs_and_warns_of_a_variable_that_nothing_reads(served):
    checks = {check["name"]: check for check in served.json("doctor", changes={"MEMORY_RECAL_LIMIT": "4"})}
    masked = served.env["MEMORY_BROKER_URL"].replace("a-password-of-redis", "***")
    assert {check["level"] for check in checks.values()} == {"ok", "warn"}
    assert [name for name, check in checks.items() if check["level"] == "warn"] == ["MEMORY_RECAL_LIMIT"]
    assert checks["MEMORY_BROKER_URL"]["found"] == f"{masked} (environment)"
    assert checks["MEMORY_SCOPE_SALT"]["found"] == "set (state directory)"
    assert checks["MEMORY_RECALL_LIMIT"]["found"] == "6 (default)"
    done = served.run("doctor")
    assert (done.returncode, done.stderr) == (0, "") and "ok   workers: worker@" in done.stdout


def test_doctor_refuses_a_broker_that_evicts_and_settings_that_nothing_can_use(tmp_path):
    with (
        redis_server(tmp_path / "redis", extra=["--maxmemory-policy", "allkeys-lru"]) as redis,
        machine(tmp_path, MEMORY_BROKER_URL=redis.broker_url) as made,
    ):
        checks = {check["name"]: check for check in made.json("doctor", exit_code=1)}
        assert "noeviction" in checks["redis eviction"]["todo"]
        checks = {c["name"]: c for c in made.json("doctor", exit_code=1, changes={"MEMORY_CONCURRENCY": "many"})}
        assert checks["settings"]["level"] == "fail" and "MEMORY_CONCURRENCY" in checks["settings"]["found"]


def test_doctor_warns_of_lines_that_a_later_version_wrote(tmp_path):
    with machine(tmp_path) as made:
        made.run("remember", "Herons nest here.")
        (segment,) = (made.state / "journal").glob("segment-*.jsonl")
        checked = '{"v":2,"kind":"event","id":"x"'
        with segment.open("a") as file:
            file.write(f'{checked},"sum":"{hashlib.sha256(checked.encode()).hexdigest()[:16]}"}}\n')
        checks = {check["name"]: check for check in made.json("doctor", exit_code=1)}
        assert checks["journal"]["level"] == "ok"
        assert checks["journal version"]["level"] == "warn" and checks["journal version"]["todo"]


# -- secrets ---------------------------------------------------------------------------------------------------------

SECRETS = {
    "MEMORY_STORE_TOKEN": "token-of-the-store-1234567890",
    "MEMORY_SCOPE_SALT": "salt-of-the-scopes-1234567890",
    "MEMORY_PRODUCER_KEY": "key-of-the-producer-1234567890-1234567890",
    "MEMORY_CACHE_KEY": "key-of-the-cache-1234567890-1234567890",
    "MEMORY_EMBED_TOKEN": "token-of-the-embedder-1234567890",
    "MEMORY_FLOWER_PASSWORD": "password-of-flower-1234567890",
    "MEMORY_BROKER_URL": "redis://:password-of-the-broker-1234567890@127.0.0.1:1/0",
    "MEMORY_REDIS_URL": "redis://:password-of-redis-1234567890@127.0.0.1:1/0",
    "MEMORY_STORE_URL": "rushdb+http://127.0.0.1:1",
}


def test_no_command_prints_a_secret_and_none_is_written_to_disk(tmp_path):
    with machine(tmp_path, **SECRETS) as made:
        printed = ""
        for words in (
            ["doctor"],
            ["doctor", "--json"],
            ["status"],
            ["status", "--json"],
            ["recall", "why"],
            ["remember", "Tabs.", "--participant", "raw-name-of-somebody"],
            ["connect", "claude-code", "--settings", "settings.json", "--participant", "raw-name-of-somebody"],
        ):
            done = made.run(*words)
            assert "Traceback" not in done.stderr
            printed += done.stdout + done.stderr
        kept = "".join(path.read_text("utf-8", "replace") for path in made.home.rglob("*") if path.is_file())
        assert "1234567890" not in printed + kept
        assert "raw-name-of-somebody" not in printed + kept
        assert "***@127.0.0.1:1" in printed


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:p@s/s:w?o;rd@host:1/0?ssl=x", "redis://:***@host:1/0"),
        ("sentinel://:one@h1:1;sentinel://u:two@h2:2", "sentinel://:***@h1:1;sentinel://u:***@h2:2"),
        ("amqps://user:pass@host//vhost", "amqps://user:***@host//vhost"),
        ("redis+socket:///tmp/r.sock?password=x", "redis+socket:///tmp/r.sock"),
        ("sqlite:////home/me@work/store.sqlite3", "sqlite:////home/me@work/store.sqlite3"),
        ("rushdb+https://api.rushdb.com", "rushdb+https://api.rushdb.com"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert status.without_secrets(url) == shown


# -- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--agent", " "], "agent_missing"),
        (["--agent", "a\x07b"], "control_character"),
        (["--profile", "\x7f"], "control_character"),
        (["--participant", "everyone"], "participant_ambiguous"),
        (["--agent", "a" * 600], "too_long"),
    ],
)
def test_a_scope_that_nobody_has_is_refused(alone, options, reason):
    assert reason in refused(alone, "remember", "Tabs.", *options)


@pytest.mark.parametrize(
    ("stdin", "what"),
    [
        (b"not JSON", "is not JSON"),
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "must be an object"),
        (b'{"user": 5, "assistant": "x"}', "must be an object with text"),
        (b'{"user": "x", "assistant": "y", "sesion": "z"}', "unknown field"),
    ],
)
def test_a_turn_on_stdin_that_is_none_is_refused(alone, stdin, what):
    line = refused(alone, "capture", "--user", "-", stdin=stdin)
    assert "stdin" in line and what in line


def test_a_turn_on_stdin_is_captured_also_when_its_bytes_are_not_unicode(alone):
    given = b'{"user": "Why?", "assistant": "Because \xff\xfe.", "session": "s-9"}'
    before = len(alone.lines("event"))
    assert alone.run("capture", "--user", "-", stdin=given).returncode == 0
    event = alone.lines("event")[before:][0][1]["event"]
    assert (event["userText"], event["assistantText"]) == ("Why?", "Because \ufffd\ufffd.")
    assert event["externalSessionId"] == "s-9"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"MEMORY_STORE_URL": "postgres://host/db"}, "MEMORY_STORE_URL: unknown form"),
        ({"MEMORY_BROKER_URL": "kafka://host"}, "MEMORY_BROKER_URL: unknown form"),
        ({"MEMORY_BROKER_URL": "amqp://localhost"}, "MEMORY_REDIS_URL: the broker is not Redis"),
        ({"MEMORY_STORE_URL": "rushdb+https://api.rushdb.com"}, "MEMORY_STORE_TOKEN"),
        (
            {"MEMORY_STORE_URL": "rushdb+https://api.rushdb.com", "MEMORY_STORE_TOKEN": "t"},
            "MEMORY_SCOPE_SALT: must be set when store or broker is not on this machine",
        ),
        ({"MEMORY_BROKER_URL": "redis://10.0.0.7:6379/0"}, "MEMORY_SCOPE_SALT"),
        ({"MEMORY_RECALL_LIMIT": "six"}, "MEMORY_RECALL_LIMIT: is not a number"),
        ({"MEMORY_STATE_DIR": "/proc/nowhere"}, "/proc/nowhere"),
    ],
)
def test_a_setting_that_cannot_be_is_named_in_one_line(alone, changes, what):
    assert what in refused(alone, "remember", "Tabs.", changes=changes)


@pytest.mark.parametrize("command", ["status", "worker", "up", "flower"])
def test_commands_of_the_service_side_refuse_waits_that_outlast_a_delivery(alone, command):
    assert "MEMORY_STORE_LATE_S: 400 s is not below half" in refused(
        alone, command, changes={"MEMORY_STORE_LATE_S": "400", "MEMORY_VISIBILITY_TIMEOUT_S": "600"}
    )


def test_a_worker_names_a_tenants_file_that_it_cannot_read(alone):
    assert "MEMORY_TENANTS_FILE" in refused(alone, "worker", changes={"MEMORY_TENANTS_FILE": "/nowhere.json"})


@pytest.mark.parametrize("command", ["worker", "up"])
def test_what_runs_a_worker_refuses_settings_that_make_no_embedder_before_anything_starts(alone, command):
    changes = {"MEMORY_EMBED_URL": "http://127.0.0.1:9/v1/embeddings"}
    assert "MEMORY_EMBED_DIMENSIONS" in refused(alone, command, changes=changes)


def test_two_agents_do_not_share_a_socket(served):
    assert "another agent runs" in refused(served, "agent")


@pytest.mark.parametrize("words", [["recal", "x"], ["recall"], ["recall", "x", "--limit", "0"], ["capture"]])
def test_a_command_in_another_form_is_refused_with_its_usage(alone, words):
    done = alone.run(*words)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
