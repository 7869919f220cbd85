"""The batch driver: few store calls, and a failure hurts only those whose requests were in the call."""

from __future__ import annotations

from typing import Any

import pytest

from producer import errors
from producer.convergence import driver, forget
from producer.convergence.delivery import Failed, Settled
from producer.receipt import State
from producer.store import port
from producer.store.sqlite import SqliteStore
from tests.unit.convergence.cast import (
    AT,
    CALLS,
    SCOPE,
    SCOPE_KEY,
    CountingStore,
    Shelf,
    episode,
    fact,
    given,
    id_of,
    order,
    records,
)

STORED = Settled(state=State.STORED)
DUPLICATE = Settled(state=State.STORED, duplicate=True)


def test_a_fresh_batch_of_a_hundred_episodes_needs_eleven_store_calls(store: SqliteStore) -> None:
    counting = CountingStore(store)
    batch = [given(episode(f"turn {n}", session=f"s-{n % 7}")) for n in range(100)]
    assert driver.settle_all(counting, batch) == [STORED] * 100
    print(f"fresh batch of 100 episodes: {counting.calls.total()} calls: {dict(counting.calls)}")
    assert counting.calls.total() <= 11
    assert len(records(store, "EPISODE")) == 100
    assert len(records(store, "SESSION")) == 7
    assert len(store.edges("EPISODE", {})) == 100


def test_a_fresh_batch_of_a_hundred_facts_needs_thirteen_store_calls(store: SqliteStore) -> None:
    counting = CountingStore(store)
    batch = [given(fact(f"fact {n}")) for n in range(100)]
    assert driver.settle_all(counting, batch) == [STORED] * 100
    print(f"fresh batch of 100 facts: {counting.calls.total()} calls: {dict(counting.calls)}")
    assert counting.calls.total() <= 13
    assert len(records(store, "MEMORY_FACT", active=True)) == 100


def test_what_is_there_and_settled_needs_no_write(store: SqliteStore) -> None:
    batch = [given(episode(f"turn {n}")) for n in range(50)] + [given(fact(f"fact {n}")) for n in range(50)]
    driver.settle_all(store, batch)
    counting = CountingStore(store)
    assert driver.settle_all(counting, batch) == [DUPLICATE] * 100
    assert counting.writes == 0
    assert counting.calls.total() <= 9


def test_a_look_of_the_same_round_comes_after_the_writes_of_that_round(store: SqliteStore) -> None:
    seen: list[str] = []
    counting = CountingStore(store, lambda name, label, _: seen.append(f"{name} {label}"))
    driver.settle_all(counting, [given(episode())])
    assert seen[3:9] == [
        "upsert EPISODE",
        "upsert SESSION",
        "link IN_SESSION",
        "find EPISODE",
        "find MEMORY_MARK",
        "find SESSION",
    ]


def test_several_copies_of_one_event_in_a_batch_make_one_record_and_count_as_duplicates(store: SqliteStore) -> None:
    batch = [given(episode()) for _ in range(10)]
    assert driver.settle_all(store, batch) == [STORED] + [DUPLICATE] * 9
    assert len(records(store, "EPISODE")) == 1


def test_two_rows_with_one_key_go_in_successive_calls(store: SqliteStore) -> None:
    one = episode()
    later = {**one, "observedAt": "2026-01-01T12:00:01Z"}

    def check(name: str, label: str, rows: Any) -> None:
        if name == "upsert" and label == "EPISODE":
            assert len({row["eventId"] for row in rows}) == len(rows)

    assert driver.settle_all(CountingStore(store, check), [given(one), given(later)]) == [STORED, DUPLICATE]
    assert len(records(store, "EPISODE")) == 1


def test_one_row_that_the_store_refuses_fails_alone(store: SqliteStore) -> None:
    batch = [given(episode(f"turn {n}")) for n in range(100)]
    bad = batch[37].id

    def refuse(name: str, label: str, rows: Any) -> None:
        if name == "upsert" and label == "EPISODE" and any(row["eventId"] == bad for row in rows):
            raise errors.StoreRefused("bad row", status=400)

    results = driver.settle_all(CountingStore(store, refuse), batch)
    assert isinstance(results[37], Failed)
    assert isinstance(results[37].error, errors.StoreRefused) and not results[37].unsure
    assert [r for n, r in enumerate(results) if n != 37] == [STORED] * 99


def test_a_failed_call_fails_only_the_deliveries_whose_requests_were_in_it(store: SqliteStore) -> None:
    def fail(name: str, label: str, _: Any) -> None:
        if name == "upsert" and label == "MEMORY_FACT":
            raise errors.StoreUnavailable("timed out", outcome_unknown=True)

    results = driver.settle_all(CountingStore(store, fail), [given(episode()), given(fact())])
    assert results[0] == STORED
    assert isinstance(results[1], Failed) and isinstance(results[1].error, errors.StoreUnavailable)
    assert results[1].unsure


@pytest.mark.parametrize(
    ("call", "problem", "unsure"),
    [
        ("upsert", errors.StoreUnavailable("refused", outcome_unknown=False), False),
        ("upsert", errors.StoreThrottled("slow down", retry_after_s=7), False),
        ("link", errors.StoreUnavailable("reset", outcome_unknown=True), True),
        ("find", errors.StoreUnavailable("reset", outcome_unknown=True), False),
        ("find", errors.StoreDenied("no key"), False),
    ],
)
def test_a_delivery_is_unsure_only_when_a_write_of_it_has_an_unknown_outcome(
    store: SqliteStore, call: str, problem: errors.IngestError, unsure: bool
) -> None:
    def fail(name: str, label: str, _: Any) -> None:
        if name == call:
            raise problem

    assert driver.settle_all(CountingStore(store, fail), [given(episode())]) == [Failed(error=problem, unsure=unsure)]


class Clock:
    """A store that can be told until when to send, on a clock that goes on by one with every call."""

    def __init__(self, counting: CountingStore) -> None:
        self.counting = counting
        self.now = 0

    def until(self, at: float) -> Any:
        return Timed(self, at)


class Timed:
    def __init__(self, clock: Clock, at: float) -> None:
        self._clock, self._at = clock, at

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._clock.counting, name)
        if name not in CALLS:
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            if self._clock.now > self._at:
                raise errors.DeliveryTooOld("too old")
            self._clock.now += 1
            return real(*arguments, **named)

        return call


def test_nothing_is_sent_once_a_delivery_is_too_old(store: SqliteStore) -> None:
    counting = CountingStore(store)
    (result,) = driver.settle_all(Clock(counting), [given(episode())], untils=[3])
    assert isinstance(result, Failed) and isinstance(result.error, errors.DeliveryTooOld)
    assert counting.calls.total() == 4


def test_a_delivery_that_is_too_old_keeps_no_other_one_of_its_batch(store: SqliteStore) -> None:
    asked: list[Any] = []
    counting = CountingStore(store, lambda name, label, what: asked.append(what))
    old, *others = batch = [given(episode(f"turn {n}")) for n in range(5)]
    results = driver.settle_all(Clock(counting), batch, untils=[1, *[99] * 4])
    assert isinstance(results[0], Failed) and isinstance(results[0].error, errors.DeliveryTooOld)
    assert not results[0].unsure
    assert results[1:] == [STORED] * 4
    assert [what for what in asked[2:] if old.id in str(what)] == []
    assert counting.calls.total() == 11
    assert {r.get("eventId") for r in records(store, "EPISODE")} == {other.id for other in others}


def test_a_store_that_acknowledges_and_does_nothing_ends_in_no_progress(store: SqliteStore) -> None:
    class Liar(CountingStore):
        def upsert(self, *_: Any, **__: Any) -> list[port.Record]:
            return []

    (result,) = driver.settle_all(Liar(store), [given(episode())])
    assert isinstance(result, Failed) and isinstance(result.error, errors.StoreUnavailable)


def test_a_group_forget_goes_on_as_long_as_it_deletes_and_ends_when_nothing_stays_deleted(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "MAX_ROUNDS", 20)
    monkeypatch.setattr(forget, "_TOGETHER", 1)
    driver.settle_all(store, [given(fact(f"fact {n}")) for n in range(30)])
    forgetting = order("forget", group={"participant": SCOPE["participantScopeHash"]})
    denying = CountingStore(store)
    denying.delete = lambda *_: None  # type: ignore[attr-defined]
    (result,) = driver.settle_all(denying, [forgetting])
    assert isinstance(result, Failed) and isinstance(result.error, errors.StoreUnavailable)
    assert len(records(store, "MEMORY_FACT")) == 30
    assert [type(result) for result in driver.settle_all(store, [forgetting])] == [Settled]
    assert not records(store, "MEMORY_FACT")


def test_keys_with_more_records_than_one_answer_holds_are_looked_at_in_halves_and_pages(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.find

    def find(label: str, where: Any, skip: int = 0) -> port.Page:
        ((_, values),) = where.items()
        assert not skip or len(values["$in"]) == 1
        return real(label, where, limit=3, skip=skip)

    monkeypatch.setattr(store, "find", find)
    line = "line"
    for n in range(8):
        driver.settle_all(store, [given(fact(f"value {n}", validFrom=f"2026-01-01T12:00:0{n}Z"), line=line)])
    assert [r.get("text") for r in real("MEMORY_FACT", {"active": True}).records] == ["value 7"]
    batch = [given(episode(f"turn {n}")) for n in range(10)]
    assert driver.settle_all(store, batch) == [STORED] * 10
    assert driver.settle_all(store, batch) == [DUPLICATE] * 10


def test_a_managed_index_is_woken_by_one_single_upsert_per_label_and_minute(store: SqliteStore) -> None:
    class Embedding(CountingStore):
        woken: list[tuple[str, int]] = []  # noqa: RUF012

        def upsert(self, label: str, rows: Any, merge_by: Any, *, wake: bool = False) -> Any:
            if wake:
                self.woken.append((label, len(rows)))
            return store.upsert(label, rows, merge_by, wake=wake)

        def capabilities(self) -> port.Capabilities:
            return port.Capabilities(name="test", keyword_search=False, vector_search=False, embeds=True)

    now = 1000.0
    waker = driver.Waker(clock=lambda: now)
    embedding = Embedding(store)
    for n in range(3):
        batch = [given(episode(f"{n} {k}")) for k in range(5)]
        assert driver.settle_all(embedding, batch, waker=waker) == [STORED] * 5
    assert embedding.woken == [("EPISODE", 1)]
    now += 61
    driver.settle_all(embedding, [given(episode("later"))], waker=waker)
    assert embedding.woken == [("EPISODE", 1)] * 2


class Embedder:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Any) -> list[list[float]]:
        self.texts += texts
        return [[0.0, 0.0] if "zero" in text else [1.0, float(len(text))] for text in texts]


def test_records_that_are_current_get_a_vector_once(store: SqliteStore) -> None:
    specs = [
        port.IndexSpec(label=label, property=name, dimensions=2)
        for label, name in (("EPISODE", "summary"), ("MEMORY_FACT", "text"))
    ]
    store.ensure_indexes(specs)
    embedder = Embedder()
    old = fact("tea")
    batch = [given(episode(f"turn {n}")) for n in range(5)] + [given(old), given(fact("zero"))]
    assert driver.settle_all(store, batch, embedder=embedder) == [STORED] * 7
    assert len(embedder.texts) == 7
    ids = [r.id for r in records(store, "EPISODE")]
    assert store.with_vectors("EPISODE", "summary", ids) == frozenset(ids)
    assert driver.settle_all(store, batch[:6], embedder=embedder) == [DUPLICATE] * 6
    driver.settle_all(store, [given(fact("coffee", supersedesFactId=id_of(old)))], embedder=embedder)
    assert embedder.texts[7:] == ["coffee"]


def test_a_missing_vector_index_is_the_deployments_fault_and_no_events(store: SqliteStore) -> None:
    results = driver.settle_all(store, [given(fact(text)) for text in ("tea", "coffee")], embedder=Embedder())
    assert [type(r.error) for r in results if isinstance(r, Failed)] == [errors.SettingsRefused] * 2
    store.ensure_indexes([port.IndexSpec(label="MEMORY_FACT", property="text", dimensions=2)])
    results = driver.settle_all(store, [given(fact(text)) for text in ("tea", "coffee")], embedder=Embedder())
    assert [r.state for r in results if isinstance(r, Settled)] == [State.STORED] * 2


def test_a_mark_that_never_stays_ends_in_a_failure_after_a_few_writes(store: SqliteStore) -> None:
    counting = CountingStore(store)
    counting.upsert = lambda *_, **__: []  # type: ignore[attr-defined]
    (result,) = driver.settle_all(counting, [order("retract", target=id_of(fact()))])
    assert isinstance(result, Failed) and isinstance(result.error, errors.StoreUnavailable)
    assert counting.calls["find MEMORY_MARK"] <= 20


def test_a_recent_write_stays_only_when_the_last_look_confirms_it(store: SqliteStore) -> None:
    shelf = Shelf()
    old, new = fact("tea"), fact("coffee", validFrom="2026-01-01T13:00:00Z")
    driver.settle_all(store, [given(old, line="l")], recent=shelf)
    assert shelf.entries[(SCOPE_KEY, id_of(old))]["record"]["active"] is True
    driver.settle_all(store, [given(new, line="l")], recent=shelf)
    assert list(shelf.entries) == [(SCOPE_KEY, id_of(new))]
    beaten = fact("milk", validFrom="2026-01-01T12:30:00Z")
    driver.settle_all(store, [given(beaten, line="l")], recent=shelf)
    assert list(shelf.entries) == [(SCOPE_KEY, id_of(new))]
    driver.settle_all(store, [order("retract", target=id_of(new))], recent=shelf)
    assert not shelf.entries


def test_a_recent_write_is_kept_as_it_is_stored(store: SqliteStore) -> None:
    shelf = Shelf()
    one = fact()
    driver.settle_all(store, [given(one)], recent=shelf)
    (record,) = records(store, "MEMORY_FACT")
    assert shelf.entries == {
        (SCOPE_KEY, id_of(one)): {"id": id_of(one), "label": "MEMORY_FACT", "record": dict(record.properties)}
    }


def test_a_recent_write_of_a_delivery_that_failed_is_taken_back(store: SqliteStore) -> None:
    shelf = Shelf()

    def fail_after_put(name: str, label: str, _: Any) -> None:
        if shelf.entries:
            raise errors.StoreUnavailable("reset")

    (result,) = driver.settle_all(CountingStore(store, fail_after_put), [given(fact())], recent=shelf)
    assert isinstance(result, Failed)
    assert not shelf.entries


def test_a_recent_write_is_taken_back_also_when_settling_ends_in_an_error_that_nobody_foresaw(
    store: SqliteStore,
) -> None:
    shelf = Shelf()

    def fault_after_put(name: str, label: str, _: Any) -> None:
        if shelf.entries:
            raise KeyError("a bug")

    with pytest.raises(KeyError):
        driver.settle_all(CountingStore(store, fault_after_put), [given(fact())], recent=shelf)
    assert not shelf.entries


def test_a_recent_write_of_a_copy_that_died_goes_when_its_event_is_no_longer_current(store: SqliteStore) -> None:
    shelf = Shelf()
    old = fact("tea")
    driver.settle_all(store, [given(old)], recent=shelf)
    left = dict(shelf.entries)
    driver.settle_all(store, [given(fact("coffee", supersedesFactId=id_of(old)))])
    shelf.entries = left
    driver.settle_all(store, [given(old)], recent=shelf)
    assert not shelf.entries


def test_a_beaten_rival_leaves_the_recent_writes_also_when_whoever_marked_it_died_before_that(
    store: SqliteStore,
) -> None:
    shelf = Shelf()
    old = fact("tea")
    rivals = sorted((fact(text, supersedesFactId=id_of(old)) for text in ("coffee", "milk")), key=id_of)
    for event in (old, *rivals):
        driver.settle_all(store, [given(event)])
    beaten, winner = rivals  # at the same time the greater id stands
    shelf.put_all([(SCOPE_KEY, {"id": id_of(beaten)})])
    (result,) = driver.settle_all(store, [given(winner)], recent=shelf)
    assert result == DUPLICATE
    assert (SCOPE_KEY, id_of(beaten)) not in shelf.entries


def test_a_cache_that_does_not_answer_is_counted_and_ignored(store: SqliteStore) -> None:
    class Down(Shelf):
        def put_all(self, *_: Any) -> None:
            raise errors.RedisUnavailable("down")

        drop_all = put_all

    results = driver.settle_all(store, [given(episode()), given(fact())], recent=Down())
    assert results == [Settled(state=State.STORED, cache_errors=1)] * 2


def test_recent_writes_of_one_round_go_as_one_and_their_failure_counts_for_those_in_it(store: SqliteStore) -> None:
    class Breaks(Shelf):
        def __init__(self, fails: str) -> None:
            super().__init__()
            self.calls: list[str] = []
            self.fails = fails

        def put_all(self, entries: Any) -> None:
            self._note("put", len(entries))
            super().put_all(entries)

        def drop_all(self, entries: Any) -> None:
            self._note("drop", len(entries))
            super().drop_all(entries)

        def _note(self, name: str, count: int) -> None:
            self.calls.append(f"{name} {count}")
            if name == self.fails:
                raise errors.RedisUnavailable("down")

    events = [fact("one"), fact("two"), fact("three"), fact("ended", active=False)]
    down = Breaks("put")
    results = driver.settle_all(store, [given(event) for event in events], recent=down)
    assert [call for call in down.calls if call.startswith("put")] == ["put 3"]
    assert [result.cache_errors for result in results] == [1, 1, 1, 0]
    down = Breaks("drop")
    orders = [order("retract", target=id_of(event)) for event in events[1:3]]
    results = driver.settle_all(store, [given(episode()), *orders], recent=down)
    assert [call for call in down.calls if call.startswith("drop")] == ["drop 2"]
    assert [result.cache_errors for result in results] == [0, 1, 1]


def test_recent_writes_of_deliveries_that_failed_are_taken_back_as_one(store: SqliteStore) -> None:
    class Counted(Shelf):
        drops = 0

        def drop_all(self, entries: Any) -> None:
            self.drops += 1
            super().drop_all(entries)

    shelf = Counted()

    def fail_after_put(name: str, label: str, _: Any) -> None:
        if shelf.entries:
            raise errors.StoreUnavailable("reset")

    batch = [given(fact(f"fact {number}")) for number in range(3)]
    results = driver.settle_all(CountingStore(store, fail_after_put), batch, recent=shelf)
    assert all(isinstance(result, Failed) for result in results)
    assert not shelf.entries and shelf.drops == 1


def test_an_event_whose_time_is_none_fails_alone(store: SqliteStore) -> None:
    results = driver.settle_all(store, [given(fact(validFrom="yesterday")), given(episode())])
    assert isinstance(results[0], Failed) and isinstance(results[0].error, errors.ContractViolation)
    assert results[1] == STORED


def test_an_unknown_order_is_refused(store: SqliteStore) -> None:
    results = driver.settle_all(
        store, [order("dance"), order("retract"), order("forget"), order("retract", scope=None, target="x")]
    )
    kinds = [errors.Unsupported, errors.ContractViolation, errors.ContractViolation, errors.ScopeRefused]
    assert [type(r.error) for r in results if isinstance(r, Failed)] == kinds
    assert AT
