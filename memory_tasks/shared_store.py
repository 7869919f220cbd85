"""One store shared by the task threads of a worker: what they ask for at the same time goes as one request.

A request that finds its lane free is sent at once. What arrives while one is in flight waits, and goes together as the
next. Per kind of request:

    upsert        one in flight per label; calls with the same merge keys are joined up to `port.UPSERT_ROWS` rows,
                  sorted by key. A key with the same row is sent once; with another row it waits for the next batch.
    find          `{key: {"$in": [..]}}`, alone or beside equal conditions, whole first page in default order
    edges         of record ids, out of them or into them
    with_vectors  of record ids
    link          one in flight of those that are equal but for the values of one `$in` in the source's where

Of reads that can be joined, two are in flight. Everything else passes through. A look joins only a request that has not
been sent yet: one that was sent may be older than the write that the look must confirm. Each caller gets what it would
have got alone, its own records and its own total; a joined find that does not fit its page is sent again in halves. So
is a refused batch: one bad row fails alone, and its caller can bisect on. Any other error goes to every caller of the
batch.

`until(at)` gives a view for one delivery: none of its requests is sent after `at`, also not by another thread on its
behalf; `errors.DeliveryTooOld` is raised in its place.
"""

from __future__ import annotations

import copy
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memory_tasks import clock
from memory_tasks.lane import Call, Lane
from producer import errors
from producer.store import port

__all__ = ["JOINED_VALUES", "SharedStore"]

JOINED_VALUES = 300  # values of one joined `$in`; measured: a find of three hundred keys costs the same as of one

_ORDER = (("__id", "asc"),)
_WRITES_IN_FLIGHT = 1  # per lane: two upserts of one key at once make two records on RushDB
_LANES_KEPT = 256
_READS_IN_FLIGHT = 2  # per lane: a slow one does not hold up all


@dataclass(frozen=True, slots=True)
class _Upsert:
    merge_by: tuple[str, ...]
    rows: Mapping[str, Mapping[str, port.Value]]  # by the text of the row's key
    wake: bool


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of one `$in`, in the caller's order."""

    values: tuple[str, ...]


class SharedStore:
    """`producer.store.port.Store` over another one, for many threads. Closing it closes the other one."""

    def __init__(self, store: port.Store, *, now_s: Callable[[], float] = clock.now_s) -> None:
        self._store = store
        self._now_s = now_s
        self._until = math.inf
        self._lanes: dict[tuple[Any, ...], Lane] = {}
        self._callers: Counter[tuple[Any, ...]] = Counter()  # of each lane, waiting or in flight
        self._guard = threading.Lock()

    def until(self, at: float) -> SharedStore:
        """A view that sends nothing after `at` on the store's clock; it shares everything else."""
        view = copy.copy(self)
        view._until = at
        return view

    def upsert(
        self,
        label: str,
        rows: Sequence[Mapping[str, port.Value]],
        merge_by: Sequence[str],
        *,
        wake: bool = False,
    ) -> Sequence[port.Record]:
        names = tuple(merge_by)
        keyed = {_key_of(row, names): row for row in rows}
        if not rows or len(keyed) != len(rows):  # nothing, or a key twice: the adapter has the word
            return self._passed().upsert(label, rows, merge_by, wake=wake)

        def send(calls: list[Call]) -> None:
            self._halving(calls, lambda live: self._upsert(label, live))

        with self._lane(("upsert", label), _WRITES_IN_FLIGHT) as lane:
            return lane.run(Call(_Upsert(names, keyed, wake), self._until), _pick_upserts, send)

    def find(
        self,
        label: str,
        where: port.Where,
        *,
        limit: int = port.FIND_LIMIT,
        skip: int = 0,
        order_by: Sequence[tuple[str, str]] = _ORDER,
    ) -> port.Page:
        form = _in_form(where)
        if form is None or limit != port.FIND_LIMIT or skip or tuple(order_by) != _ORDER:
            return self._passed().find(label, where, limit=limit, skip=skip, order_by=order_by)
        key, values, rest = form

        def send(calls: list[Call]) -> None:
            self._halving(calls, lambda live: self._find(label, key, where, live))

        with self._lane(("find", label, key, _text(rest)), _READS_IN_FLIGHT) as lane:
            return lane.run(Call(_Values(values), self._until), _pick_values, send)

    def edges(self, label: str, where: port.Where) -> Sequence[port.Edge]:
        return self._edges("edges", self._store.edges, "source_id", label, where)

    def edges_into(self, label: str, where: port.Where) -> Sequence[port.Edge]:
        return self._edges("edges_into", self._store.edges_into, "target_id", label, where)

    def with_vectors(self, label: str, property: str, record_ids: Sequence[str]) -> frozenset[str]:
        if not record_ids:
            return frozenset()

        def ask(live: Sequence[Call]) -> bool:
            found = self._store.with_vectors(label, property, _union(live))
            for call in live:
                _answered(call, found.intersection(call.work.values))
            return True

        call = Call(_Values(tuple(record_ids)), self._until)
        with self._lane(("with_vectors", label, property), _READS_IN_FLIGHT) as lane:
            return lane.run(call, _pick_values, lambda calls: self._halving(calls, ask))

    def link(self, spec: port.LinkSpec) -> None:
        form = _in_form(spec.source_where)
        if form is None:
            return self._passed().link(spec)
        key, values, rest = form

        def ask(live: Sequence[Call]) -> bool:
            self._store.link(_with_where(spec, {**spec.source_where, key: {"$in": _union(live)}}))
            for call in live:
                _answered(call, None)
            return True

        ends = (spec.type, spec.source_label, spec.source_key, spec.target_label, spec.target_key)
        call = Call(_Values(values), self._until)
        with self._lane(("link", *ends, key, _text(rest), _text(spec.target_where)), _WRITES_IN_FLIGHT) as lane:
            return lane.run(call, _pick_values, lambda calls: self._halving(calls, ask))

    def search(
        self,
        label: str,
        property: str,
        where: port.Where,
        *,
        text: str | None = None,
        vector: Sequence[float] | None = None,
        limit: int = 20,
    ) -> Sequence[port.Record]:
        return self._passed().search(label, property, where, text=text, vector=vector, limit=limit)

    def set_vectors(self, label: str, property: str, vectors: Mapping[str, Sequence[float]]) -> None:
        self._passed().set_vectors(label, property, vectors)

    def delete(self, label: str, record_id: str) -> None:
        self._passed().delete(label, record_id)

    def ensure_indexes(self, specs: Sequence[port.IndexSpec]) -> port.Capabilities:
        return self._passed().ensure_indexes(specs)

    def capabilities(self) -> port.Capabilities:
        return self._passed().capabilities()

    def ping(self) -> None:
        self._passed().ping()

    def close(self) -> None:
        self._store.close()

    def _passed(self) -> port.Store:
        """The store, for a request that goes alone."""
        if self._now_s() > self._until:
            raise _too_old()
        return self._store

    @contextmanager
    def _lane(self, key: tuple[Any, ...], in_flight: int) -> Iterator[Lane]:
        """The lane of this key, the same for everybody who has it now."""
        with self._guard:
            lane = self._lanes.get(key)
            if lane is None:
                # Conditions beside the `$in` may differ without bound (a scope): idle lanes are let go. One that
                # somebody has stays, else a second one would let more fly at once.
                if len(self._lanes) >= _LANES_KEPT:
                    for idle in [other for other in self._lanes if other not in self._callers]:
                        del self._lanes[idle]  # in place: views share this dict
                lane = self._lanes[key] = Lane(in_flight)
            self._callers[key] += 1
        try:
            yield lane
        finally:
            with self._guard:
                self._callers[key] -= 1
                if not self._callers[key]:
                    del self._callers[key]

    def _halving(self, calls: Sequence[Call], ask: Callable[[Sequence[Call]], bool]) -> None:
        """Ask for all calls that may still be sent; in halves when the store refuses them together or the answer does
        not tell them apart (`ask` returned False)."""
        live = []
        for call in calls:
            if self._now_s() > call.until:
                call.error = _too_old()
            else:
                live.append(call)
        if not live:
            return
        try:
            whole = ask(live)
        except errors.StoreRefused as refusal:
            if len(live) == 1:
                live[0].error = refusal
                return
            whole = False
        except errors.IngestError as problem:
            for call in live:
                call.error = _copy_of(problem)
            return
        if not whole:
            middle = len(live) // 2
            self._halving(live[:middle], ask)
            self._halving(live[middle:], ask)

    def _upsert(self, label: str, live: Sequence[Call]) -> bool:
        first: _Upsert = live[0].work
        rows: dict[str, Mapping[str, port.Value]] = {}
        for call in live:
            rows.update(call.work.rows)
        ordered = [rows[key] for key in sorted(rows)]
        records = self._store.upsert(label, ordered, first.merge_by, wake=first.wake)
        for call in live:
            own = [r for r in records if _key_of(r.properties, first.merge_by) in call.work.rows]
            _answered(call, own if len(live) > 1 else records)
        return True

    def _find(self, label: str, key: str, where: port.Where, live: Sequence[Call]) -> bool:
        page = self._store.find(label, {**where, key: {"$in": _union(live)}})
        if len(live) == 1:
            _answered(live[0], page)
            return True
        if page.total > len(page.records):
            return False
        for call in live:
            wanted = frozenset(call.work.values)
            own = [r for r in page.records if (r.id if key == "$id" else r.get(key)) in wanted]
            _answered(call, port.Page(records=own, total=len(own)))
        return True

    def _edges(
        self,
        kind: str,
        ask_store: Callable[[str, port.Where], Sequence[port.Edge]],
        end: str,
        label: str,
        where: port.Where,
    ) -> Sequence[port.Edge]:
        form = _in_form(where)
        if form is None or form[0] != "$id" or form[2]:
            self._passed()
            return ask_store(label, where)

        def ask(live: Sequence[Call]) -> bool:
            edges = ask_store(label, {"$id": {"$in": _union(live)}})
            for call in live:
                wanted = frozenset(call.work.values)
                _answered(call, [edge for edge in edges if getattr(edge, end) in wanted])
            return True

        call = Call(_Values(form[1]), self._until)
        with self._lane((kind, label), _READS_IN_FLIGHT) as lane:
            return lane.run(call, _pick_values, lambda calls: self._halving(calls, ask))


def _pick_upserts(waiting: Sequence[Call]) -> list[Call]:
    """The oldest call, and those behind it that fit into its batch."""
    first: _Upsert = waiting[0].work
    rows = dict(first.rows)
    picked = [waiting[0]]
    if first.wake:
        return picked
    for call in waiting[1:]:
        work: _Upsert = call.work
        if work.wake or work.merge_by != first.merge_by or len(rows.keys() | work.rows.keys()) > port.UPSERT_ROWS:
            continue
        if all(_text(rows[key]) == _text(work.rows[key]) for key in rows.keys() & work.rows.keys()):
            rows.update(work.rows)
            picked.append(call)
    return picked


def _pick_values(waiting: Sequence[Call]) -> list[Call]:
    values = set(waiting[0].work.values)
    picked = [waiting[0]]
    for call in waiting[1:]:
        if len(values.union(call.work.values)) <= JOINED_VALUES:
            values.update(call.work.values)
            picked.append(call)
    return picked


def _in_form(where: port.Where) -> tuple[str, tuple[str, ...], dict[str, Any]] | None:
    """Key, values and the other conditions of a where with exactly one `{key: {"$in": [texts]}}`; None for others."""
    found = [
        (key, condition["$in"])
        for key, condition in where.items()
        if isinstance(condition, Mapping) and tuple(condition) == ("$in",)
    ]
    if len(found) != 1:
        return None
    key, values = found[0]
    if not isinstance(values, list | tuple) or not values or not all(isinstance(value, str) for value in values):
        return None
    return key, tuple(values), {name: condition for name, condition in where.items() if name != key}


def _union(live: Iterable[Call]) -> list[str]:
    return list(dict.fromkeys(value for call in live for value in call.work.values))


def _answered(call: Call, answer: Any) -> None:
    call.answer, call.error = answer, None


def _key_of(row: Mapping[str, Any], merge_by: Sequence[str]) -> str:
    return _text([row.get(name) for name in merge_by])


def _text(value: Any) -> str:
    """Equal for equal values of equal types only: 1, 1.0 and true are three."""
    return json.dumps(value, sort_keys=True, default=str)


def _with_where(spec: port.LinkSpec, source_where: port.Where) -> port.LinkSpec:
    return port.LinkSpec(
        type=spec.type,
        source_label=spec.source_label,
        source_key=spec.source_key,
        source_where=source_where,
        target_label=spec.target_label,
        target_key=spec.target_key,
        target_where=spec.target_where,
    )


def _copy_of(problem: errors.IngestError) -> errors.IngestError:
    """Each thread raises its own: a traceback belongs to one."""
    other = copy.copy(problem)
    other.__cause__ = problem.__cause__
    return other


def _too_old() -> errors.DeliveryTooOld:
    return errors.DeliveryTooOld("half of the visibility timeout is over: another worker may have this delivery")
