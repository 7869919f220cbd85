"""SharedStore: what threads ask for together goes as one request, and each gets what it would have got alone.

The store below is the real SQLite one behind a gate, which holds requests back until the test lets them through, so
that "at the same time" is decided by the test and not by the scheduler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from memory_tasks import shared_store
from producer import errors
from producer.store import port
from producer.store.sqlite import SqliteStore
from tests.contract.store_contract import StoreContract

DEADLINE_S = 10.0


class GatedStore:
    """Notes every request, holds it while the gate is shut, fails where the test says so, then asks the real store."""

    def __init__(self, store: port.Store) -> None:
        self.store = store
        self.sent: list[tuple[str, tuple[Any, ...]]] = []
        self.fails: Callable[[str, tuple[Any, ...]], Exception | None] = lambda name, arguments: None
        self.gate = threading.Event()
        self.gate.set()
        self.running = 0
        self.most_running = 0
        self._guard = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.store, name)

        def call(*arguments: Any, **named: Any) -> Any:
            with self._guard:
                self.sent.append((name, arguments))
                self.running += 1
                self.most_running = max(self.most_running, self.running)
            try:
                assert self.gate.wait(DEADLINE_S), "the test never opened the gate"
                if (problem := self.fails(name, arguments)) is not None:
                    raise problem
                return real(*arguments, **named)
            finally:
                with self._guard:
                    self.running -= 1

        return call

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for sent, arguments in self.sent if sent == name]


class Setup:
    def __init__(self, gated: GatedStore, shared: shared_store.SharedStore, pool: ThreadPoolExecutor) -> None:
        self.gated, self.shared, self.pool = gated, shared, pool

    def together(self, first: Callable[[], Any], *others: Callable[[], Any], held: int = 1) -> list[Future[Any]]:
        """Start `first` and hold it (and `held` in all) at the gate, queue the others behind it, open the gate."""
        self.gated.gate.clear()
        before = len(self.gated.sent)
        futures = [self.pool.submit(first)]
        wait_for(lambda: len(self.gated.sent) == before + 1)
        for number, other in enumerate(others, 1):
            futures.append(self.pool.submit(other))
            wait_for(lambda n=number: self.waiting() == max(0, n + 1 - held))
        self.gated.gate.set()
        for future in futures:
            future.exception(DEADLINE_S)
        return futures

    def waiting(self) -> int:
        return sum(len(lane.waiting) for lane in list(self.shared._lanes.values()))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


@pytest.fixture
def setup(tmp_path) -> Iterator[Setup]:
    gated = GatedStore(SqliteStore(tmp_path / "store.sqlite3"))
    with ThreadPoolExecutor(16) as pool:
        yield Setup(gated, shared_store.SharedStore(gated), pool)
    gated.store.close()


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"factId": f"f{number:03}", "contentHash": "h", "text": f"text {number}", **more}


def upsert(setup: Setup, *rows: dict[str, Any]) -> Callable[[], Any]:
    return lambda: setup.shared.upsert("MEMORY_FACT", list(rows), ("factId", "contentHash"))


def find(setup: Setup, *ids: str, **rest: Any) -> Callable[[], port.Page]:
    return lambda: setup.shared.find("MEMORY_FACT", {"factId": {"$in": list(ids)}, **rest})


def test_a_request_alone_is_sent_at_once_as_it_was_asked(setup):
    records = upsert(setup, row(1))()
    assert [r.get("factId") for r in records] == ["f001"]
    page = find(setup, "f001")()
    assert page.total == 1
    assert [name for name, _ in setup.gated.sent] == ["upsert", "find"]
    assert setup.gated.of("find") == [("MEMORY_FACT", {"factId": {"$in": ["f001"]}})]


def test_upserts_that_wait_for_one_label_go_as_one_batch_sorted_by_key(setup):
    futures = setup.together(
        upsert(setup, row(0)), upsert(setup, row(9)), upsert(setup, row(3), row(7)), upsert(setup, row(5))
    )
    batches = [[r["factId"] for r in rows] for _, rows, _ in setup.gated.of("upsert")]
    assert batches == [["f000"], ["f003", "f005", "f007", "f009"]]
    assert [[r.get("factId") for r in f.result()] for f in futures[1:]] == [["f009"], ["f003", "f007"], ["f005"]]
    assert setup.gated.store.find("MEMORY_FACT", {}).total == 5


def test_one_upsert_per_label_is_in_flight_while_other_labels_are_not_held_up(setup):
    setup.together(
        upsert(setup, row(0)),
        lambda: setup.shared.upsert("EPISODE", [{"eventId": "e", "contentHash": "h"}], ("eventId", "contentHash")),
        upsert(setup, row(1)),
        held=2,
    )
    assert setup.gated.most_running == 2
    with ThreadPoolExecutor(8) as pool:
        setup.gated.most_running = 0
        list(pool.map(lambda n: upsert(setup, row(n))(), range(200)))
    assert setup.gated.most_running == 1
    assert setup.gated.store.find("MEMORY_FACT", {}).total == 200


def test_the_same_key_with_another_row_waits_for_the_next_batch_and_with_the_same_row_is_sent_once(setup):
    setup.together(
        upsert(setup, row(0)),
        upsert(setup, row(1)),
        upsert(setup, row(1, active=True)),
        upsert(setup, row(1)),
        upsert(setup, row(2)),
    )
    batches = [[(r["factId"], r.get("active")) for r in rows] for _, rows, _ in setup.gated.of("upsert")]
    assert batches == [[("f000", None)], [("f001", None), ("f002", None)], [("f001", True)]]


def test_values_of_other_types_are_other_values(setup):
    setup.together(upsert(setup, row(0)), upsert(setup, row(1, turnIndex=1)), upsert(setup, row(1, turnIndex=True)))
    assert len(setup.gated.of("upsert")) == 3


def test_a_batch_holds_at_most_the_ports_hundred_rows(setup):
    calls = [upsert(setup, *(row(base + n) for n in range(40))) for base in (0, 40, 80, 120)]
    setup.together(upsert(setup, row(999)), *calls)
    assert [len(rows) for _, rows, _ in setup.gated.of("upsert")] == [1, 80, 80]


def test_other_merge_keys_and_waking_upserts_go_alone(setup):
    setup.together(
        upsert(setup, row(0)),
        lambda: setup.shared.upsert("MEMORY_FACT", [row(1)], ("factId",)),
        lambda: setup.shared.upsert("MEMORY_FACT", [row(2)], ("factId", "contentHash"), wake=True),
        upsert(setup, row(3)),
        upsert(setup, row(4)),
    )
    assert sorted(len(rows) for _, rows, _ in setup.gated.of("upsert")) == [1, 1, 1, 2]


def test_of_a_refused_batch_only_the_caller_with_the_bad_row_fails(setup):
    def refuse(name: str, arguments: tuple[Any, ...]) -> Exception | None:
        bad = name == "upsert" and any(r["factId"] == "f005" for r in arguments[1])
        return errors.StoreRefused("a row is refused", status=422) if bad else None

    setup.gated.fails = refuse
    futures = setup.together(upsert(setup, row(0)), *(upsert(setup, row(n)) for n in range(1, 9)))
    failed = [n for n, future in enumerate(futures) if future.exception() is not None]
    assert failed == [5]
    assert isinstance(futures[5].exception(), errors.StoreRefused)
    assert setup.gated.store.find("MEMORY_FACT", {}).total == 8


def test_any_other_error_goes_to_every_caller_of_the_batch_as_an_error_of_its_own(setup):
    setup.gated.fails = lambda name, arguments: (
        errors.StoreUnavailable("timed out", outcome_unknown=True, status=408) if len(arguments[1]) == 3 else None
    )
    first, *others = setup.together(upsert(setup, row(0)), *(upsert(setup, row(n)) for n in range(1, 4)))
    assert first.exception() is None
    raised = [future.exception() for future in others]
    assert len({id(problem) for problem in raised}) == 3
    for problem in raised:
        assert isinstance(problem, errors.StoreUnavailable)
        assert (problem.outcome_unknown, problem.status, str(problem)) == (True, 408, "timed out")
    assert len(setup.gated.of("upsert")) == 2


def test_a_fault_of_our_own_reaches_its_thread_and_leaves_nobody_waiting(setup):
    setup.gated.fails = lambda name, arguments: KeyError("bug") if len(arguments[1]) == 2 else None
    _, *others = setup.together(upsert(setup, row(0)), upsert(setup, row(1)), upsert(setup, row(2)))
    kinds = sorted(type(future.exception()).__name__ for future in others)
    assert kinds == ["KeyError", "StoreUnavailable"]
    assert upsert(setup, row(3))()


def test_finds_that_wait_are_joined_and_each_caller_gets_its_own_records_and_total(setup):
    upsert(setup, *(row(n) for n in range(6)))()
    one, two, three, four = setup.together(
        find(setup, "f000"), find(setup, "f000"), find(setup, "f001", "f002"), find(setup, "f002", "none"), held=2
    )
    asked = [where["factId"]["$in"] for _, where in setup.gated.of("find")]
    assert asked == [["f000"], ["f000"], ["f001", "f002", "none"]]
    assert [r.get("factId") for r in three.result().records] == ["f001", "f002"]
    assert [r.get("factId") for r in four.result().records] == ["f002"]
    assert (one.result().total, two.result().total, three.result().total, four.result().total) == (1, 1, 2, 1)


def test_a_look_never_joins_a_find_that_has_been_sent(setup):
    """The first find is at the store already when the record is written; a look started then must see it."""
    setup.gated.gate.clear()
    early = setup.pool.submit(find(setup, "f001"))
    wait_for(lambda: len(setup.gated.of("find")) == 1)
    setup.gated.store.upsert("MEMORY_FACT", [row(1)], ("factId", "contentHash"))
    late = setup.pool.submit(find(setup, "f001"))
    wait_for(lambda: len(setup.gated.of("find")) + setup.waiting() == 2)
    setup.gated.gate.set()
    assert late.result(DEADLINE_S).total == 1
    early.result(DEADLINE_S)
    assert len(setup.gated.of("find")) == 2


def test_finds_by_another_key_or_beside_another_condition_are_not_joined(setup):
    upsert(setup, row(1, scopeKey="a"), row(2, scopeKey="b"))()
    futures = setup.together(
        find(setup, "f009"),
        find(setup, "f001", "f002", scopeKey="a"),
        find(setup, "f001", "f002", scopeKey="b"),
        lambda: setup.shared.find("MEMORY_FACT", {"text": {"$in": ["text 1"]}}),
        lambda: setup.shared.find("MEMORY_FACT", {"factId": "f001"}),
        lambda: setup.shared.find("MEMORY_FACT", {"factId": {"$in": ["f001"]}}, limit=10),
        held=6,
    )
    assert [[r.get("factId") for r in f.result().records] for f in futures] == [
        [],
        ["f001"],
        ["f002"],
        ["f001"],
        ["f001"],
        ["f001"],
    ]


def test_a_joined_find_that_does_not_fit_its_page_is_sent_again_in_parts(setup, monkeypatch):
    upsert(setup, *(row(n) for n in range(90)))()
    real = setup.gated.store.find

    def small_pages(label: str, where: port.Where, **named: Any) -> port.Page:
        page = real(label, where)
        return port.Page(records=page.records[:30], total=page.total)

    monkeypatch.setattr(setup.gated.store, "find", small_pages)
    ids = [[f"f{n:03}" for n in range(base, base + 20)] for base in (0, 20, 40)]
    futures = setup.together(find(setup, "x"), find(setup, "x"), *(find(setup, *part) for part in ids), held=2)
    assert [[r.get("factId") for r in f.result().records] for f in futures[2:]] == ids


def test_a_joined_find_asks_for_a_bounded_number_of_values(setup):
    parts = [[f"{base}-{n}" for n in range(140)] for base in range(3)]
    setup.together(find(setup, "x"), find(setup, "x"), *(find(setup, *part) for part in parts), held=2)
    assert [len(where["factId"]["$in"]) for _, where in setup.gated.of("find")] == [1, 1, 280, 140]


def test_edges_and_vectors_of_record_ids_are_joined_and_told_apart(setup):
    store = setup.gated.store
    store.ensure_indexes([port.IndexSpec(label="EPISODE", property="summary", dimensions=2)])
    ids = []
    for n in range(3):
        (session,) = (
            store.upsert("SESSION", [{"sessionKey": f"s{n}"}], ("sessionKey",))
            or store.find("SESSION", {"sessionKey": f"s{n}"}).records
        )
        store.upsert("EPISODE", [{"eventId": f"e{n}", "sessionKey": f"s{n}", "summary": "x"}], ("eventId",))
        ids.append((store.find("EPISODE", {"eventId": f"e{n}"}).records[0].id, session.id))

    def link(n: int) -> Callable[[], None]:
        return lambda: setup.shared.link(
            port.LinkSpec(
                type="IN_SESSION",
                source_label="EPISODE",
                source_key="sessionKey",
                source_where={"eventId": {"$in": [f"e{n}"]}},
                target_label="SESSION",
                target_key="sessionKey",
            )
        )

    for future in setup.together(link(0), link(1), link(2)):
        assert future.exception() is None
    assert [spec.source_where for (spec,) in setup.gated.of("link")] == [
        {"eventId": {"$in": ["e0"]}},
        {"eventId": {"$in": ["e1", "e2"]}},
    ]
    out = [lambda n=n: setup.shared.edges("EPISODE", {"$id": {"$in": [ids[n][0]]}}) for n in (0, 0, 1, 2)]
    assert [[e.target_id for e in f.result()] for f in setup.together(*out, held=2)] == [
        [ids[n][1]] for n in (0, 0, 1, 2)
    ]
    into = [lambda n=n: setup.shared.edges_into("SESSION", {"$id": {"$in": [ids[n][1]]}}) for n in (0, 0, 1, 2)]
    assert [[e.source_id for e in f.result()] for f in setup.together(*into, held=2)] == [
        [ids[n][0]] for n in (0, 0, 1, 2)
    ]
    assert (len(setup.gated.of("edges")), len(setup.gated.of("edges_into"))) == (3, 3)
    store.set_vectors("EPISODE", "summary", {ids[1][0]: (1.0, 0.0)})
    has = [lambda n=n: setup.shared.with_vectors("EPISODE", "summary", [ids[n][0]]) for n in (0, 0, 1, 2)]
    assert [f.result() for f in setup.together(*has, held=2)] == [
        frozenset(),
        frozenset(),
        frozenset({ids[1][0]}),
        frozenset(),
    ]


def test_nothing_of_a_delivery_is_sent_after_its_time_also_not_from_the_queue(tmp_path):
    now = [0.0]
    gated = GatedStore(SqliteStore(tmp_path / "store.sqlite3"))
    shared = shared_store.SharedStore(gated, now_s=lambda: now[0])
    with ThreadPoolExecutor(4) as pool:
        setup = Setup(gated, shared, pool)
        gated.gate.clear()
        first = pool.submit(upsert(setup, row(0)))
        wait_for(lambda: len(gated.sent) == 1)
        view = shared.until(10.0)
        late = pool.submit(lambda: view.upsert("MEMORY_FACT", [row(1)], ("factId", "contentHash")))
        wait_for(lambda: setup.waiting() == 1)
        other = pool.submit(upsert(setup, row(2)))
        wait_for(lambda: setup.waiting() == 2)
        now[0] = 10.1
        gated.gate.set()
        assert first.result(DEADLINE_S)
        assert isinstance(late.exception(DEADLINE_S), errors.DeliveryTooOld)
        assert other.result(DEADLINE_S)
    with pytest.raises(errors.DeliveryTooOld):
        view.find("MEMORY_FACT", {"factId": {"$in": ["f001"]}})
    for call in (view.ping, lambda: view.delete("MEMORY_FACT", "x"), lambda: view.edges("EPISODE", {})):
        with pytest.raises(errors.DeliveryTooOld):
            call()
    assert [r.get("factId") for r in gated.store.find("MEMORY_FACT", {}).records] == ["f000", "f002"]
    gated.store.close()


def test_many_threads_get_their_own_answers_and_lose_nothing(setup):
    def work(number: int) -> None:
        mine = [row(number * 3 + n) for n in range(3)]
        records = setup.shared.upsert("MEMORY_FACT", mine, ("factId", "contentHash"))
        assert {r.get("factId") for r in records} <= {r["factId"] for r in mine}
        page = find(setup, *(r["factId"] for r in mine))()
        assert sorted(r.get("factId") for r in page.records) == sorted(r["factId"] for r in mine)
        assert page.total == 3

    for future in [setup.pool.submit(work, number) for number in range(300)]:
        future.result(60)
    assert setup.gated.store.find("MEMORY_FACT", {}).total == 900
    assert len(setup.gated.sent) < 600
    assert setup.waiting() == 0


def test_lanes_that_are_idle_are_let_go(setup):
    for number in range(600):
        find(setup, "f000", scopeKey=str(number))()
    assert len(setup.shared._lanes) <= 257


def test_a_lane_with_a_link_in_flight_is_not_let_go(setup):
    def link(n: int) -> None:
        setup.shared.link(
            port.LinkSpec(
                type="IN_SESSION",
                source_label="EPISODE",
                source_key="sessionKey",
                source_where={"eventId": {"$in": [f"e{n}"]}},
                target_label="SESSION",
                target_key="sessionKey",
            )
        )

    setup.gated.gate.clear()
    first = setup.pool.submit(link, 1)
    wait_for(lambda: setup.gated.running == 1)
    for number in range(600):  # each a lane of its own; refused, since their time is over, before the gate
        with pytest.raises(errors.DeliveryTooOld):
            setup.shared.until(0.0).find("MEMORY_FACT", {"factId": {"$in": ["f000"]}, "scopeKey": str(number)})
    second = setup.pool.submit(link, 2)
    wait_for(lambda: setup.waiting() == 1)
    setup.gated.gate.set()
    assert (first.result(DEADLINE_S), second.result(DEADLINE_S)) == (None, None)
    assert setup.gated.most_running == 1


class TestSharedStore(StoreContract):
    """To one caller it is a store like any other."""

    @pytest.fixture
    def store(self, tmp_path) -> Iterator[port.Store]:
        made = shared_store.SharedStore(SqliteStore(tmp_path / "store.sqlite3"))
        yield made
        made.close()


def test_deliveries_go_on_sharing_their_upserts_after_many_lanes_were_let_go(setup):
    views = [setup.shared.until(float("inf")) for _ in range(4)]
    for number in range(600):
        views[number % 4].find("MEMORY_FACT", {"factId": {"$in": ["f000"]}, "scopeKey": str(number)})
    setup.gated.most_running = 0
    setup.gated.gate.clear()
    keys = ("factId", "contentHash")
    first = setup.pool.submit(lambda: views[0].upsert("TASK", [row(0)], keys))
    wait_for(lambda: setup.gated.running == 1)
    others = [setup.pool.submit(lambda v=v, n=n: v.upsert("TASK", [row(n)], keys)) for n, v in enumerate(views[1:], 1)]
    wait_for(lambda: setup.waiting() == 3)
    setup.gated.gate.set()
    for future in (first, *others):
        assert future.result(DEADLINE_S)
    assert setup.gated.most_running == 1
