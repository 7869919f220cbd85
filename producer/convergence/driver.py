"""The batch driver: runs the rules of many deliveries in lockstep rounds and sends their requests as few store calls.

A round takes what every delivery wants next and sends it in the order of `requests.rank`: upserts of one label as one
batch of at most 100 rows, sorted by key; links of one edge type as one request; deletes by id; then looks, all keys of
one label and property as one find. A look of a round is sent after the writes of that round, never before: it may
confirm them. Two different rows with the same key go in successive calls.

A call that fails, fails the deliveries whose requests were in it, and no others. A refused batch is halved until one
bad request fails alone; a call that is too late for one of its deliveries is made for the others. Nothing is retried
here: the caller does that, and what was settled stays settled.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from producer import errors, keys
from producer.convergence import content, forget, requests
from producer.convergence import deliver as rules
from producer.convergence.delivery import Delivery, Failed, Settled
from producer.receipt import State
from producer.store import port

__all__ = ["MAX_ROUNDS", "BoundedStore", "Embedder", "RecentWrites", "Waker", "settle_all"]

MAX_ROUNDS = 1000  # of a delivery without progress: writes are answered and not done. Deleting a new find is progress
_KEYS = 300  # keys of one find or link: measured, it costs the same as one
_WAKE_EVERY_S = 60.0
_WRITES = (requests.Upsert, requests.Link, requests.SetVector, requests.Delete)

T = TypeVar("T")


class BoundedStore(port.Store, Protocol):
    """A store that can be told until when to send."""

    def until(self, at: float) -> port.Store:
        """A view that sends nothing after `at`: it raises `errors.DeliveryTooOld` then."""
        ...


class RecentWrites(Protocol):
    """The recent-write cache. May raise `errors.RedisUnavailable`, which is counted and ignored."""

    def put_all(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Add these, by scope key."""
        ...

    def drop_all(self, entries: Sequence[tuple[str, str]]) -> None:
        """Remove these scope keys' ids."""
        ...


class Embedder(Protocol):
    """Makes our own (external) vectors. Raises `errors.IngestError` subclasses."""

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...


class Waker:
    """Says when a managed index needs a single upsert again: batches do not wake it (measured on RushDB 2.11).

    One per store; threads may share it: at worst two of them wake an index at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, every_s: float = _WAKE_EVERY_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._last: dict[str, float] = {}

    def is_due(self, store: port.Store, label: str) -> bool:
        """Whether one row of this label should go alone now; the answer yes takes the turn."""
        if label not in content.TEXT:
            return False
        now = self._clock()
        if now - self._last.get(label, float("-inf")) < self._every_s or not store.capabilities().embeds:
            return False
        self._last[label] = now
        return True


_WAKER = Waker()  # for a process with one store


@dataclass(kw_only=True, slots=True, eq=False)
class _Run:
    """One delivery under way."""

    delivery: Delivery
    until: float
    steps: requests.Steps[Settled]
    wanted: tuple[requests.Request, ...] = ()
    answers: list[Any] = field(default_factory=list)
    wrote: bool = False
    put: set[tuple[str, str]] = field(default_factory=set)  # recent writes that no last look has confirmed
    unsure: bool = False
    cache_errors: int = 0
    rounds_left: int = field(default_factory=lambda: MAX_ROUNDS)
    deleted: set[str] = field(default_factory=set)  # record ids
    result: Settled | Failed | None = None

    def has_deleted(self, record_id: str) -> None:
        """A group may hold any number of records; one that is deleted again did not stay deleted."""
        if record_id not in self.deleted:
            self.deleted.add(record_id)
            self.rounds_left = MAX_ROUNDS

    def go_on(self) -> None:
        """Hand over the answers; take what it wants next, or its result."""
        try:
            self.wanted = self.steps.send(self.answers) if self.wanted else next(self.steps)
        except StopIteration as end:
            self.settled(end.value)
        except errors.IngestError as problem:
            self.fail(problem)
        else:
            self.answers = [None] * len(self.wanted)

    def settled(self, value: Settled) -> None:
        duplicate = value.state is State.STORED and not self.wrote
        self.result = replace(value, duplicate=duplicate, unsure=self.unsure, cache_errors=self.cache_errors)

    def fail(self, problem: errors.IngestError) -> None:
        self.steps.close()
        self.result = Failed(error=problem, unsure=self.unsure, cache_errors=self.cache_errors)


@dataclass(frozen=True, slots=True)
class _Ask:
    """One request of one run in this round, and where its answer goes."""

    request: Any
    run: _Run
    place: int


_Part = list[list[_Ask]]  # of one store call; equal requests side by side


def settle_all(
    store: port.Store | BoundedStore,
    deliveries: Sequence[Delivery],
    *,
    untils: Sequence[float] | None = None,
    recent: RecentWrites | None = None,
    embedder: Embedder | None = None,
    forget_margin_s: float = forget.MARGIN_S,
    waker: Waker = _WAKER,
) -> list[Settled | Failed]:
    """Settle these deliveries together; what became of each, in their order. Never raises an `errors.IngestError`.

    `untils`: for each delivery the time after which no request may be sent for it, on the clock of the store, which
    then has to be a `BoundedStore`. Who is too old fails, and the others go on. `waker`: pass one per store where a
    process has several.
    """
    runs = [
        _Run(delivery=delivery, until=until, steps=rules.deliver(delivery, forget_margin_s=forget_margin_s))
        for delivery, until in zip(deliveries, untils or [math.inf] * len(deliveries), strict=True)
    ]
    rounds = _Rounds(store, recent, embedder, waker)
    try:
        for run in runs:
            run.go_on()
        while live := [run for run in runs if run.result is None and run.rounds_left]:
            for run in live:
                run.rounds_left -= 1
            rounds.send(live)
            for run in live:
                if run.result is None:
                    run.go_on()
    finally:  # also when this ends in an error that nobody foresaw
        rounds.take_back([run for run in runs if not isinstance(run.result, Settled)])
    for run in runs:
        if run.result is None:
            run.fail(errors.StoreUnavailable("no progress: what the store acknowledged does not stay"))
    return _with_twins(runs)


def _with_twins(runs: Sequence[_Run]) -> list[Settled | Failed]:
    """The results; of several copies of one event in a batch only the first is not a duplicate."""
    copies = Counter(run.delivery.id for run in runs)
    results: list[Settled | Failed] = []
    first: set[tuple[str, str]] = set()
    for run in runs:
        result = run.result
        assert result is not None
        shared = copies[run.delivery.id] > 1 and run.delivery.kind == "event"
        if shared and isinstance(result, Settled) and result.state is State.STORED:
            twin = (run.delivery.id, keys.content_hash(run.delivery.event))
            if twin in first:
                result = replace(result, duplicate=True)
            first.add(twin)
        results.append(result)
    return results


class _Rounds:
    """Sends what the runs of one batch want, a round at a time."""

    def __init__(
        self,
        store: port.Store | BoundedStore,
        recent: RecentWrites | None,
        embedder: Embedder | None,
        waker: Waker,
    ) -> None:
        self._given = store
        self._store: port.Store = store  # as the call under way may use it
        self._recent = recent
        self._embedder = embedder
        self._waker = waker

    def send(self, runs: Sequence[_Run]) -> None:
        """Send everything these runs want, writes before looks; their answers are filled in, or they have failed."""
        stages: dict[int, list[_Ask]] = {}
        for run in runs:
            for place, request in enumerate(run.wanted):
                stages.setdefault(requests.rank(request), []).append(_Ask(request, run, place))
        send: dict[type, Callable[[list[_Ask]], None]] = {
            requests.Upsert: self._upsert,
            requests.Link: self._link,
            requests.SetVector: self._set_vectors,
            requests.Delete: self._delete,
            requests.CachePut: self._put,
            requests.Find: self._find,
            requests.Scan: self._scan,
            requests.Edges: self._edges,
            requests.HasVector: self._has_vectors,
            requests.CacheDrop: self._drop,
        }
        for _, stage in sorted(stages.items()):
            for kind, asks in _grouped(stage, lambda ask: type(ask.request)).items():
                send[kind](asks)

    # writes

    def _upsert(self, asks: list[_Ask]) -> None:
        for (label, merge_by), same in _grouped(asks, lambda a: (a.request.label, a.request.merge_by)).items():
            for rows in _waves(same, merge_by):
                if self._wakes(label):
                    self._call(rows[:1], partial(self._upsert_rows, label, merge_by, True))
                    rows = rows[1:]
                for chunk in _chunks(rows, port.UPSERT_ROWS):
                    self._call(chunk, partial(self._upsert_rows, label, merge_by, False))

    def _upsert_rows(self, label: str, merge_by: tuple[str, ...], wake: bool, part: _Part) -> None:
        self._store.upsert(label, [same[0].request.row for same in part], merge_by, wake=wake)

    def _wakes(self, label: str) -> bool:
        try:
            return self._waker.is_due(self._store, label)
        except errors.IngestError:
            return False  # the upsert that follows tells what is wrong

    def _link(self, asks: list[_Ask]) -> None:
        for same in _grouped(asks, lambda a: replace(a.request, value="")).values():
            for chunk in _chunks(_by_value(same, lambda a: a.request.value), _KEYS):
                self._call(chunk, self._link_values)

    def _link_values(self, part: _Part) -> None:
        link: requests.Link = part[0][0].request
        scope = {"scopeKey": link.scope_key} if link.scope_key else {}
        self._store.link(
            port.LinkSpec(
                type=link.type,
                source_label=link.source_label,
                source_key=link.source_key,
                source_where={link.by: {"$in": [same[0].request.value for same in part]}, **scope},
                target_label=link.target_label,
                target_key=link.target_key,
                target_where={**scope, **({link.target_by: link.target_value} if link.target_by else {})},
            )
        )

    def _delete(self, asks: list[_Ask]) -> None:
        for same in _by_value(asks, lambda a: (a.request.label, a.request.record_id)):
            self._call([same], self._delete_one)

    def _delete_one(self, part: _Part) -> None:
        request: requests.Delete = part[0][0].request
        self._store.delete(request.label, request.record_id)
        for run in _runs(part):
            run.has_deleted(request.record_id)

    def _set_vectors(self, asks: list[_Ask]) -> None:
        for (label, name), same in _grouped(asks, lambda a: (a.request.label, a.request.property)).items():
            for chunk in _chunks(_by_value(same, lambda a: a.request.record_id), port.UPSERT_ROWS):
                vectors: dict[str, Sequence[float]] = {}
                self._call(chunk, partial(self._embed, vectors))
                made = [group for group in chunk if any(vectors.get(group[0].request.record_id, ()))]
                self._call(made, partial(self._write_vectors, label, name, vectors), may_be_refused=True)

    def _embed(self, vectors: dict[str, Sequence[float]], part: _Part) -> None:
        assert self._embedder is not None
        made = self._embedder.embed([same[0].request.text for same in part])
        vectors.update((same[0].request.record_id, vector) for same, vector in zip(part, made, strict=True))

    def _write_vectors(self, label: str, name: str, vectors: Mapping[str, Sequence[float]], part: _Part) -> None:
        ids = [same[0].request.record_id for same in part]
        self._store.set_vectors(label, name, {id_: vectors[id_] for id_ in ids})

    # looks

    def _find(self, asks: list[_Ask]) -> None:
        for (label, key), same in _grouped(asks, lambda a: (a.request.label, a.request.key)).items():
            for chunk in _chunks(_by_value(same, lambda a: a.request.value), _KEYS):
                self._call(chunk, partial(self._find_values, label, key))

    def _find_values(self, label: str, key: str, part: _Part) -> None:
        where = {key: {"$in": [same[0].request.value for same in part]}}
        page = self._store.find(label, where)
        records = list(page.records)
        if page.total > len(records):
            if len(part) > 1:  # more than one answer holds: halve, so that nothing is missed
                for half in _halves(part):
                    self._call(half, partial(self._find_values, label, key))
                return
            records = self._pages(label, where, records)
        found = _grouped(records, lambda record: record.get(key))
        for same in part:
            _answer(same, found.get(same[0].request.value, []))

    def _pages(self, label: str, where: port.Where, records: list[port.Record]) -> list[port.Record]:
        seen = {record.id: record for record in records}
        skip = len(records)
        while True:
            page = self._store.find(label, where, skip=skip)
            seen.update((record.id, record) for record in page.records)
            skip += len(page.records)
            if not page.records or skip >= page.total:
                return list(seen.values())

    def _scan(self, asks: list[_Ask]) -> None:
        for ask in asks:
            self._call([[ask]], self._scan_one)

    def _scan_one(self, part: _Part) -> None:
        request: requests.Scan = part[0][0].request
        _answer(part[0], self._store.find(request.label, request.where, skip=request.skip))

    def _edges(self, asks: list[_Ask]) -> None:
        for (label, into), same in _grouped(asks, lambda a: (a.request.label, a.request.into)).items():
            for chunk in _chunks(_by_value(same, lambda a: a.request.record_id), _KEYS):
                self._call(chunk, partial(self._edges_of, label, into))

    def _edges_of(self, label: str, into: bool, part: _Part) -> None:
        where = {"$id": {"$in": [same[0].request.record_id for same in part]}}
        edges = self._store.edges_into(label, where) if into else self._store.edges(label, where)
        found = _grouped(edges, lambda edge: edge.target_id if into else edge.source_id)
        for same in part:
            _answer(same, found.get(same[0].request.record_id, []))

    def _has_vectors(self, asks: list[_Ask]) -> None:
        if self._embedder is None:
            _answer(asks, True)
            return
        for (label, name), same in _grouped(asks, lambda a: (a.request.label, a.request.property)).items():
            for chunk in _chunks(_by_value(same, lambda a: a.request.record_id), _KEYS):
                self._call(chunk, partial(self._vectors_of, label, name))

    def _vectors_of(self, label: str, name: str, part: _Part) -> None:
        has = self._store.with_vectors(label, name, [same[0].request.record_id for same in part])
        for same in part:
            _answer(same, same[0].request.record_id in has)

    # recent writes

    def _put(self, asks: list[_Ask]) -> None:
        live = [ask for ask in asks if ask.run.result is None]
        if self._recent is None or not live:
            return
        for ask in live:
            ask.run.put.add((ask.request.scope_key, ask.request.entry["id"]))
        entries = [(ask.request.scope_key, ask.request.entry) for ask in live]
        self._cached(live, partial(self._recent.put_all, entries))

    def take_back(self, runs: Sequence[_Run]) -> None:
        """Drop what runs that did not settle had put into the recent writes: no last look has confirmed it."""
        asks = [
            _Ask(requests.CacheDrop(scope_key=scope_key, id=id_), run, 0) for run in runs for scope_key, id_ in run.put
        ]
        self._drop(asks)

    def _drop(self, asks: list[_Ask]) -> None:
        if self._recent is None or not asks:
            return
        entries = sorted({(ask.request.scope_key, ask.request.id) for ask in asks})
        self._cached(asks, partial(self._recent.drop_all, entries))

    def _cached(self, asks: Sequence[_Ask], call: Callable[[], None]) -> None:
        try:
            call()
        except errors.RedisUnavailable:
            for ask in asks:
                ask.run.cache_errors += 1

    # one store call

    def _call(self, part: _Part, call: Callable[[_Part], None], *, may_be_refused: bool = False) -> None:
        """Make one call for what is still wanted of this part. `may_be_refused`: the answers are whether it was
        taken, and one that the store refuses alone fails nobody."""
        part = [live for same in part if (live := [ask for ask in same if ask.run.result is None])]
        if not part:
            return
        writes = isinstance(part[0][0].request, _WRITES)
        runs = _runs(part)
        until = min(run.until for run in runs)
        self._store = self._given if until == math.inf else self._given.until(until)  # type: ignore[union-attr]
        for run in runs:
            run.wrote = run.wrote or writes
        try:
            call(part)
        except errors.DeliveryTooOld as problem:  # nothing was sent
            for run in runs:
                if run.until <= until:
                    run.fail(problem)
            self._call(part, call, may_be_refused=may_be_refused)
        except errors.StoreRefused as problem:
            if len(part) > 1:
                for half in _halves(part):
                    self._call(half, call, may_be_refused=may_be_refused)
            elif may_be_refused:
                _answer(part[0], False)
            else:
                _fail(part, problem, unsure=False)
        except errors.IngestError as problem:
            _fail(part, problem, unsure=writes and getattr(problem, "outcome_unknown", False))
        else:
            if may_be_refused:
                for same in part:
                    _answer(same, True)


def _fail(part: _Part, problem: errors.IngestError, *, unsure: bool) -> None:
    for run in _runs(part):
        run.unsure = run.unsure or unsure
        run.fail(problem)


def _answer(same: Sequence[_Ask], value: Any) -> None:
    for ask in same:
        ask.run.answers[ask.place] = value


def _halves(part: _Part) -> tuple[_Part, _Part]:
    middle = len(part) // 2
    return part[:middle], part[middle:]


def _runs(part: _Part) -> list[_Run]:
    return list({id(ask.run): ask.run for group in part for ask in group}.values())


def _grouped(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _by_value(asks: Sequence[_Ask], value: Callable[[_Ask], Any]) -> _Part:
    """Asks for the same thing side by side, sorted by it."""
    return [same for _, same in sorted(_grouped(asks, value).items())]


def _waves(asks: Sequence[_Ask], merge_by: Sequence[str]) -> list[_Part]:
    """Rows sorted by key, equal ones side by side; different rows with one key in successive waves."""
    waves: list[_Part] = []
    for _, same in sorted(_grouped(asks, lambda a: tuple(a.request.row[name] for name in merge_by)).items()):
        different: list[list[_Ask]] = []
        for ask in same:
            for equal in different:
                if equal[0].request.row == ask.request.row:
                    equal.append(ask)
                    break
            else:
                different.append([ask])
        for number, equal in enumerate(different):
            if number == len(waves):
                waves.append([])
            waves[number].append(equal)
    return waves


def _chunks(items: Sequence[T], size: int) -> list[list[T]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
