"""`memory-tasks facts history|show|check` on a machine where everything runs: a fact is corrected, then taken back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.machine import Machine, machine
from tests.redis_server import redis_server

UNKNOWN = "0" * 64


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("facts")
    with (
        redis_server(directory / "redis") as redis,
        machine(directory, MEMORY_BROKER_URL=redis.broker_url) as made,
    ):
        made.start_agent()
        made.start_worker()
        yield made


@pytest.fixture(scope="module")
def corrected(served: Machine) -> tuple[str, str]:
    """The ids of a fact and of the one that took its place."""
    old = served.json("remember", "Deploys on Fridays.", "--subject", "team", "--wait")
    new = served.json(
        "remember", "Deploys on \x1b[31mMondays.", "--subject", "team", "--supersedes", old["id"], "--wait"
    )
    assert old["settled"] and new["settled"]
    return old["id"], new["id"]


def test_history_tells_what_a_fact_was_since_when_and_what_took_its_place(served, corrected):
    old, new = corrected
    for asked in corrected:
        versions = served.json("facts", "history", asked)["versions"]
        assert [(v["id"], v["state"], v["by"]) for v in versions] == [(old, "superseded", new), (new, "current", "")]
        assert versions[0]["text"] == "Deploys on Fridays."
        assert versions[0]["endedAt"] == versions[1]["since"]
        assert {v["provenance"] for v in versions} == {"python:remember"}
    done = served.run("facts", "history", new)
    assert [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")] == [
        "superseded",
        "current",
    ]
    assert "\x1b" not in done.stdout


def test_show_tells_one_by_its_id_whatever_became_of_it(served, corrected):
    old, new = corrected
    assert served.json("facts", "show", old)["state"] == "superseded"
    assert served.json("facts", "show", new)["state"] == "current"
    turn = served.json("capture", "--user", "Why?", "--assistant", "Because.", "--wait")
    shown = served.json("facts", "show", turn["id"])
    assert (shown["label"], shown["state"]) == ("EPISODE", "current")


def test_another_scope_is_told_nothing(served, corrected):
    for words in (["facts", "history", corrected[0]], ["facts", "show", corrected[0]]):
        for other in (["--participant", "bob"], ["--agent", "another"], ["--profile", "another"]):
            done = served.run(*words, *other)
            assert done.returncode == 1
            assert done.stdout == ""
            assert "this scope knows no" in done.stderr


def test_an_unknown_id_is_an_answer_of_no(served):
    assert served.json("facts", "history", UNKNOWN, exit_code=1) == {"versions": [], "cut": False}
    assert served.run("facts", "show", UNKNOWN).returncode == 1


def test_check_is_content_with_what_settled_and_names_what_is_missing(served, corrected):
    assert served.json("facts", "check") == {"problems": [], "counts": {}}
    assert served.run("facts", "check", "--everywhere").stdout.strip() == "all is well"
    named = "9" * 64
    new = served.json("remember", "Lunch at one.", "--supersedes", named, "--participant", "bob", "--wait")
    found = served.json("facts", "check", "--participant", "bob", exit_code=1)
    assert [(p["code"], p["id"], p["others"]) for p in found["problems"]] == [("target_missing", new["id"], [named])]
    assert found["counts"] == {"target_missing": 1}
    assert served.json("facts", "check")["problems"] == []
    everywhere = served.run("facts", "check", "--everywhere")
    assert everywhere.returncode == 1
    assert "target_missing" in everywhere.stdout and "Lunch" not in everywhere.stdout


def test_everywhere_and_a_scope_exclude_each_other(served):
    assert served.run("facts", "check", "--everywhere", "--participant", "bob").returncode == 2
