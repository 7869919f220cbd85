"""Children of a worker as real processes: who is blamed, what a hang is, what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from memory_tasks import children, clock, parts, poison, tenants
from memory_tasks.results import Died, Handled
from producer import errors, message
from producer.convergence import delivery
from producer.receipt import State
from producer.store.sqlite import SqliteStore
from tests import worker_messages as make
from tests.integration.local_nodes import ROOT

KEY = message.Key(id="key", secret=b"s" * 32)
GRANT = tenants.Grant(key=KEY, tenant="local", store_url="unused")
DEADLINE_S = 20.0
PLAYER = """
import sys
from pathlib import Path
from tests import worker_messages as make
from tests.integration.test_children import Bench, items_of
Bench(Path(sys.argv[1])).handle(*items_of([make.episode()]))
"""


class Bench:
    def __init__(self, tmp_path: Path, **limits: Any) -> None:
        self.faults = tmp_path / "faults"
        self.faults.mkdir(exist_ok=True)
        self.store = SqliteStore(tmp_path / "store.sqlite3")
        plan = parts.Plan(
            stores={"local": (f"sqlite://{tmp_path / 'store.sqlite3'}", "")},
            store_timeout_s=20.0,
            store_pool=2,
            redis_url="redis://127.0.0.1:9/0",  # nobody answers there: recent writes are ignored
            cache_key="c" * 32,
            recent_ttl_s=900,
            recent_max_entries=64,
            embed_url="",
            embed_model="",
            embed_dimensions=0,
            embed_token="",
            forget_margin_s=60.0,
        )
        self.pool = children.Children(
            "tests.integration.faulty_child",
            {"plan": plan.plain(), "poisonDeaths": 3},
            **{"limit": 2, **limits},
        )
        self.apart = poison.Apart(self.pool)

    def handle(self, *items: message.Item, for_s: float = DEADLINE_S) -> list[Handled]:
        now_s = clock.now_s()
        return self.apart.handle(items, GRANT, received_s=now_s, until=now_s + for_s)

    def fault(self, kind: str, event: dict[str, Any]) -> None:
        (self.faults / f"{kind}-{event['eventId']}").touch()

    def stored(self, events: Sequence[dict[str, Any]]) -> int:
        return self.store.find("EPISODE", {"eventId": {"$in": [e["eventId"] for e in events]}}).total

    def close(self) -> None:
        self.pool.close()
        self.store.close()


@pytest.fixture
def bench_of(tmp_path, monkeypatch) -> Iterator[Callable[..., Bench]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TEST_FAULTS_DIR", str(tmp_path / "faults"))
    made: list[Bench] = []

    def make_bench(**limits: Any) -> Bench:
        made.append(Bench(tmp_path, **limits))
        return made[-1]

    yield make_bench
    for bench in made:
        bench.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def items_of(events: Sequence[dict[str, Any]], **changes: Any) -> list[message.Item]:
    return [make.item(make.line(event), unsure=True, **changes) for event in events]


def states(handled: Sequence[Handled]) -> list[Any]:
    return [one.result.state if isinstance(one.result, delivery.Settled) else type(one.result) for one in handled]


def test_doubtful_items_are_opened_and_settled_in_a_child_and_answered_in_their_order(bench_of):
    bench = bench_of()
    events = [make.episode(number) for number in range(10)]
    bad = make.line({**make.episode(90), "visibility": "x"})
    handled = bench.handle(*items_of(events[:5]), make.item(bad, unsure=True), *items_of(events[5:]))
    assert states(handled) == [State.STORED] * 5 + [type(None)] + [State.STORED] * 5
    assert handled[5].entry.refusal == "contract:visibility:is_not_one_of_the_allowed_values"
    assert [one.entry.line_hash for one in handled[:5]] == [make.line(event).hash for event in events[:5]]
    assert [one.entry.id for one in handled[6:]] == [event["eventId"] for event in events[5:]]
    assert bench.stored(events) == 10


@pytest.mark.parametrize(("fault", "how"), [("exit", "exit:137"), ("segv", "signal:11")])
def test_of_a_batch_that_kills_a_child_each_is_handled_alone_and_only_the_killer_is_blamed(
    bench_of, caplog, fault, how
):
    bench = bench_of()
    events = [make.episode(number) for number in range(6)]
    bench.fault(fault, events[2])
    handled = bench.handle(*items_of(events))
    assert states(handled) == [State.STORED, State.STORED, Died, State.STORED, State.STORED, State.STORED]
    assert handled[2].entry.id == events[2]["eventId"]
    assert handled[2].entry.line_hash == make.line(events[2]).hash
    assert bench.stored(events) == 5
    assert caplog.text.count(f"how={how} began=True") == 2
    assert make.SECRET_WORDS not in caplog.text


def test_an_event_that_killed_before_is_alone_from_the_start(bench_of):
    bench = bench_of()
    events = [make.episode(number) for number in range(3)]
    bench.fault("exit", events[1])
    sure, suspect = items_of(events[:1]), items_of(events[1:2], deaths=1)
    handled = bench.handle(*sure, *suspect, *items_of(events[2:]))
    assert states(handled) == [State.STORED, Died, State.STORED]


def test_a_child_that_hangs_is_killed_at_the_deadline_and_nobody_is_blamed(bench_of):
    bench = bench_of()
    event = make.episode()
    bench.fault("hang", event)
    (handled,) = bench.handle(*items_of([event]), for_s=2.0)
    assert isinstance(handled.result, delivery.Failed)
    assert isinstance(handled.result.error, children.ChildHung)
    assert handled.result.unsure
    (bench.faults / f"hang-{event['eventId']}").unlink()
    assert states(bench.handle(*items_of([event]))) == [State.STORED]


def test_a_child_that_died_while_it_waited_costs_nobody_anything(bench_of):
    bench = bench_of()
    assert states(bench.handle(*items_of([make.episode(1)]))) == [State.STORED]
    (pid,) = bench.pool.pids()
    os.kill(pid, signal.SIGKILL)
    assert states(bench.handle(*items_of([make.episode(2)]))) == [State.STORED]
    assert bench.pool.pids() != [pid]


def test_a_child_that_cannot_live_defers_and_blames_nobody(bench_of):
    bench = bench_of()
    broken = children.Children("tests.integration.no_such_module", {}, limit=2)
    now_s = clock.now_s()
    (handled,) = poison.Apart(broken).handle(
        items_of([make.episode()]), GRANT, received_s=now_s, until=now_s + DEADLINE_S
    )
    assert isinstance(handled.result, delivery.Failed)
    assert isinstance(handled.result.error, errors.ChildUnavailable)
    broken.close()
    assert bench.pool.pids() == []  # none is started before it is needed


@pytest.mark.slow
def test_children_are_bounded_used_again_replaced_after_their_requests_and_retired_when_idle(bench_of):
    bench = bench_of(limit=2, requests_max=5, idle_s=0.5)
    seen: set[int] = set()
    most = 0

    def work(first: int) -> None:
        for number in range(first, first + 4):
            alone = items_of([make.episode(number)], deaths=1)
            assert states(bench.handle(*alone)) == [State.STORED]
            seen.update(bench.pool.pids())

    threads = [threading.Thread(target=work, args=(first * 10,)) for first in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, len(children_of(os.getpid())))
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert most <= 2
    assert 4 <= len(seen) < 16  # 16 requests, 5 each at most; one that is idle for long goes earlier
    wait_for(lambda: not children_of(os.getpid()))
    assert bench.pool.pids() == []


def test_closing_ends_idle_and_busy_children_and_blames_nobody(bench_of):
    bench = bench_of()
    bench.handle(*items_of([make.episode(1)]))
    event = make.episode(2)
    bench.fault("hang", event)
    handled: list[Handled] = []
    thread = threading.Thread(target=lambda: handled.extend(bench.handle(*items_of([event]))))
    thread.start()
    wait_for((bench.faults / "hung").exists)
    bench.pool.close()
    thread.join()
    assert isinstance(handled[0].result, delivery.Failed)
    assert children_of(os.getpid()) == []
    with pytest.raises(errors.ChildUnavailable):
        bench.pool.ask({}, until=clock.now_s() + 1)


def test_closing_while_a_hung_child_is_being_killed_ends_all_the_same(bench_of, monkeypatch):
    bench = bench_of()
    bench.handle(*items_of([make.episode(1)]))  # starts the child, which takes a while
    event = make.episode(2)
    bench.fault("hang", event)
    killed = threading.Event()
    kill = children._Child.kill

    def kill_slowly(child: children._Child) -> int:
        code = kill(child)
        killed.set()
        wait_for(lambda: bench.pool._closed)
        return code

    monkeypatch.setattr(children._Child, "kill", kill_slowly)
    thread = threading.Thread(target=lambda: bench.handle(*items_of([event]), for_s=1.0))
    thread.start()
    assert killed.wait(DEADLINE_S)
    bench.pool.close()
    thread.join()
    assert children_of(os.getpid()) == []


def test_signals_to_a_group_of_processes_pass_a_child_by(bench_of):
    bench = bench_of()
    bench.handle(*items_of([make.episode(1)]))
    (pid,) = bench.pool.pids()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert states(bench.handle(*items_of([make.episode(2)]))) == [State.STORED]
    assert bench.pool.pids() == [pid]


def test_a_child_whose_worker_is_killed_ends_also_in_the_middle_of_a_request(bench_of, tmp_path):
    """A process of its own plays the worker and is killed while its child hangs."""
    bench = bench_of()
    event = make.episode()
    bench.fault("hang", event)
    player = subprocess.Popen(
        [sys.executable, "-c", PLAYER, str(tmp_path)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_for((bench.faults / "hung").exists)
        orphans = children_of(player.pid)
    finally:
        player.kill()
        player.wait()
    psutil.wait_procs(orphans, timeout=DEADLINE_S)
    assert not any(orphan.is_running() for orphan in orphans)


def test_a_child_loads_nothing_but_what_settling_needs():
    heavy = ("celery", "kombu", "typer", "rich", "flower", "pydantic_settings", "memory_tasks.settings")
    code = f"import sys, memory_tasks.poison_child; print([m for m in {heavy!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_the_plan_of_a_child_shows_no_secret(bench_of):
    plan = parts.Plan(
        stores={"t": ("rushdb+https://x", "token-1")},
        store_timeout_s=1,
        store_pool=1,
        redis_url="redis://:pass@x",
        cache_key="cache-key",
        recent_ttl_s=1,
        recent_max_entries=1,
        embed_url="",
        embed_model="",
        embed_dimensions=0,
        embed_token="embed-token",
        forget_margin_s=1,
    )
    assert "token" not in repr(plan)
    assert "pass" not in repr(plan)
    assert parts.Plan.of_plain(plan.plain()) == plan


def children_of(pid: int) -> list[psutil.Process]:
    try:
        return [one for one in psutil.Process(pid).children() if one.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []
