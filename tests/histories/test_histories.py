"""Histories through two real workers of eight threads on the three stores, with RushDB's weaknesses switched on."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from producer.recall.engine import Recall
from producer.store.port import IndexSpec
from tests.histories.campaign import campaign
from tests.histories.model import expected
from tests.histories.runner import Order, Runner
from tests.histories.saying import Said, Writer, scopes_of
from tests.histories.verdict import look
from tests.histories.world import STORES, World

pytestmark = pytest.mark.slow

CLI = Path(sys.executable).with_name("memory-tasks")


@pytest.fixture(scope="module", params=STORES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(request.param) as running:
        running.store.ensure_indexes(
            [IndexSpec(label="EPISODE", property="summary"), IndexSpec(label="MEMORY_FACT", property="text")]
        )
        yield running


def deliver(world: World, *stages: list[Said]) -> None:
    """Each stage at once, the next when all of it has its last receipt."""
    said = {one.hash: one for stage in stages for one in stage}
    Runner(world, random.Random(0)).run([Order(said=list(said.values()), stages=deque(stages))])


def differences(world: World, *said: Said) -> list[str]:
    told = expected(said)
    held = look(world.store, world.recent, list(told))
    return [found.what for scope_key, one in told.items() for found in held[scope_key].differences(one)]


def told_everywhere(world: World) -> Counter[str]:
    """What `memory-tasks facts check --everywhere` counts."""
    ran = subprocess.run(
        [CLI, "facts", "check", "--everywhere", "--json"],
        env=world.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stderr
    counts: Counter[str] = Counter(json.loads(ran.stdout)["counts"])
    assert ran.returncode == bool(counts)
    return counts


def test_the_final_state_is_the_models_whatever_the_order(world: World) -> None:
    before = told_everywhere(world)
    row, differing = campaign(world, range(1, 9), orders=8)
    print(row)
    assert differing == []
    assert row.orders > 100 and (row.faults > 100 or world.rushdb is None)
    assert told_everywhere(world) - before == +Counter(row.problems)


def test_sixteen_deliveries_of_one_id_at_once_leave_one_record(world: World) -> None:
    for number in range(4):
        (mine, _) = (Writer(scope) for scope in scopes_of(f"{time.time_ns()}", number))
        fact = mine.fact("tea", source="write", at=0)
        deliver(world, [fact] * 16)
        assert differences(world, fact) == []


def test_sixteen_deliveries_of_two_rivals_at_once_leave_one_current(world: World) -> None:
    for number in range(4):
        (mine, _) = (Writer(scope) for scope in scopes_of(f"{time.time_ns()}", number))
        old = mine.fact("tea", source="write 0", at=0)
        rivals = [mine.fact(text, source=text, at=1, supersedes_fact_id=old.id) for text in ("coffee", "milk")]
        deliver(world, [old], rivals * 8)
        assert differences(world, old, *rivals) == []


def test_a_clock_ten_minutes_ahead_brings_no_old_value_back(world: World) -> None:
    """F26: host A, ahead, writes v1; host B writes v2 over it; v1's retry lands last, and the cache holds v1 again."""
    scope, _ = scopes_of(f"{time.time_ns()}", 0)
    if world.rushdb is not None:
        world.rushdb.clear_faults()  # a delivery that is doubtful leaves nothing in the cache
    host_a, host_b = Writer(scope, began_s=time.time() + 600), Writer(scope, began_s=time.time())
    v1 = host_a.fact("the meeting is at nine", source="a", at=0)
    v2 = host_b.fact("the meeting is at ten", source="b", at=0, supersedes_fact_id=v1.id)
    from_both = Recall(world.store, world.recent, deadline_ms=20_000)
    from_store = Recall(world.store, None, deadline_ms=20_000)
    before = told_everywhere(world)

    def recalled() -> list[list[str]]:
        return [[m.text for m in one.recall(scope, "when is the meeting?").memories] for one in (from_both, from_store)]

    try:
        deliver(world, [v1])
        (held,) = world.recent.read(v1.scope_key)
        assert held["id"] == v1.id
        assert recalled() == [["the meeting is at nine"]] * 2
        deliver(world, [v2])
        assert recalled() == [["the meeting is at ten"]] * 2
        deliver(world, [v1], [v1])
        assert recalled() == [["the meeting is at ten"]] * 2
        assert [entry["id"] for entry in world.recent.read(v1.scope_key)] == [v2.id]
        world.recent.put(v1.scope_key, held)  # by a worker that was late
        assert recalled() == [["the meeting is at ten"]] * 2
    finally:
        from_both.close()
        from_store.close()
    for record in world.store.find("MEMORY_FACT", {"scopeKey": v1.scope_key}).records:
        times = [str(value) for name, value in record.properties.items() if name in ("validFrom", "supersededAt")]
        assert times and all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one) for one in times)
    assert told_everywhere(world) - before == {
        "clock_skew": 2
    }  # v1 is of the future, and v2 older than what it replaced
