"""`memory-tasks demo`: a conversation through the whole path, its worker killed in the middle, none lost or doubled."""

from __future__ import annotations

import psutil
import pytest

from memory_tasks import demo
from tests.acceptance.machine import machine
from tests.rushdb_server import rushdb_server


def assert_good(result: dict[str, object]) -> None:
    talk = demo.conversation()
    captured = sum(len(session["turns"]) for session in talk["sessions"]) + len(talk["facts"])
    assert (result["captured"], result["stored"], result["duplicates"], result["lost"]) == (captured, captured, 0, 0)
    assert result["settled"] and result["good"]
    assert [asked["question"] for asked in result["recalled"]] == [asked["ask"] for asked in talk["questions"]]
    assert all(asked["memories"] and asked["good"] for asked in result["recalled"])
    assert 0 < result["stored_at_kill"] < captured  # the worker died in the middle
    assert not psutil.pid_exists(result["killed_pid"])


def test_the_demo_loses_and_doubles_nothing_on_the_embedded_default_and_leaves_nothing_behind(tmp_path):
    with machine(tmp_path) as made:
        theirs = {"MEMORY_JOURNAL_DIR": str(made.home / "journal"), "MEMORY_BROKER_URL": "redis://127.0.0.1:1/0"}
        assert_good(made.json("demo", changes={**theirs, "TMPDIR": str(made.home)}))
        assert list(made.home.iterdir()) == []  # neither its own directory nor anything of the user's


@pytest.mark.slow
@pytest.mark.parametrize(("form", "profile"), [("rushdb", "2.11"), ("rushdb+direct", "direct")])
def test_the_same_demo_runs_on_a_rushdb_that_the_environment_names(tmp_path, form, profile):
    with rushdb_server(tmp_path / "rushdb.sqlite", profile=profile) as server:
        where = {"MEMORY_STORE_URL": f"{form}+{server.url}", "MEMORY_STORE_TOKEN": server.token}
        with machine(tmp_path, **where) as made:
            assert_good(made.json("demo"))
        talk = demo.conversation()
        assert len(server.records("EPISODE")) == sum(len(session["turns"]) for session in talk["sessions"])
        assert len(server.records("MEMORY_FACT")) == len(talk["facts"])
        assert len(server.records("SESSION")) == len(talk["sessions"])
        assert server.crashes() == 0


@pytest.mark.slow
def test_the_demo_prints_what_it_recalled_and_the_counts(tmp_path):
    with machine(tmp_path) as made:
        done = made.run("demo")
        assert done.returncode == 0, done.stderr
        talk = demo.conversation()
        for asked in talk["questions"]:
            assert asked["ask"] in done.stdout
        for word in ("captured", "stored", "duplicates", "lost", "SIGKILL"):
            assert word in done.stdout
        assert "not what was expected" not in done.stdout
