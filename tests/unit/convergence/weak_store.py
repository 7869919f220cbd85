"""A store as weak as the RushDB platform, for the requests of the rules, one at a time.

An upsert finds first and creates or updates later: two at once make two records, and a record that was found may be
gone when the update comes. A write may be acknowledged and not done (a lie). Reads see what is committed. Record ids
are drawn before the commit, so ids and commits may disagree in order.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from producer.convergence import requests
from producer.store import port

INDEXED = (
    *("eventId", "factId", "sessionKey", "sourceEventId", "supersedesFactId", "target", "markKey"),
    *("entityKey", "taskKey", "contentHash"),
)
READ = ("MEMORY_FACT", "ENTITY", "TASK")  # labels of which readers see what is current


class WeakStore:
    def __init__(self, rng: random.Random, lie: float = 0.0) -> None:
        self.rng, self.lie = rng, lie
        self.rows: dict[str, port.Record] = {}
        self.edges: set[tuple[str, str, str]] = set()  # type, source, target
        self.recent: set[tuple[str, str]] = set()  # scope key, id: the recent writes
        self.changes = 0  # of facts and things: readers see something new
        self._index: dict[tuple[str, str, Any], set[str]] = {}
        self._last = 0

    def lies(self) -> bool:
        return self.rng.random() < self.lie

    def records(self, label: str, **where: Any) -> list[port.Record]:
        """For checks: all records of a label that match."""
        return [r for r in self.rows.values() if r.label == label and all(r.get(k) == v for k, v in where.items())]

    def begin(self, request: requests.Upsert) -> tuple[requests.Upsert, list[str], str]:
        """The first half of an upsert: what it found, and the id it will create under otherwise."""
        row = request.row
        first, *others = request.merge_by
        found = [
            id_
            for id_ in self._index.get((request.label, first, row[first]), ())
            if all(self.rows[id_].get(name) == row[name] for name in others)
        ]
        self._last += 1
        return request, found, record_id(self._last)

    def commit(self, request: requests.Upsert, found: list[str], new_id: str) -> None:
        if self.lies():
            return
        for id_ in found:
            if id_ in self.rows:
                self._put(id_, request.label, {**self.rows[id_].properties, **request.row})
        if not found:
            self._put(new_id, request.label, request.row)

    def do(self, request: requests.Request) -> Any:
        """Any request but an upsert."""
        match request:
            case requests.Find(label=label, key=key, value=value):
                return [self.rows[id_] for id_ in sorted(self._index.get((label, key, value), ()))]
            case requests.Edges(record_id=id_, into=into):
                return [
                    port.Edge(type=t, source_id=s, target_id=d, source_label="", target_label="")
                    for t, s, d in sorted(self.edges)
                    if (d if into else s) == id_
                ]
            case requests.Link():
                if not self.lies():
                    self._link(request)
            case requests.Delete(record_id=id_):
                if not self.lies():
                    self._remove(id_)
            case requests.CachePut(scope_key=scope_key, entry=entry):
                self.recent.add((scope_key, entry["id"]))
            case requests.CacheDrop(scope_key=scope_key, id=id_):
                self.recent.discard((scope_key, id_))
            case requests.HasVector() | requests.SetVector():
                return True
            case requests.Scan(label=label, where=where, skip=skip):
                found = sorted(
                    (r for r in self.rows.values() if r.label == label and _under(r, where)), key=lambda r: r.id
                )
                return port.Page(records=found[skip : skip + port.FIND_LIMIT], total=len(found))
        return None

    def place(self, label: str, row: Mapping[str, Any]) -> str:
        """Put a record there at once."""
        self._last += 1
        self._put(record_id(self._last), label, row)
        return record_id(self._last)

    def _link(self, link: requests.Link) -> None:
        scope = link.scope_key
        for source in self.do(requests.Find(label=link.source_label, key=link.by, value=link.value)):
            if scope and source.get("scopeKey") != scope:
                continue
            key = source.get(link.source_key)
            if link.target_by:  # joined by the scope that both have: found by the key that is named
                targets = self.do(requests.Find(label=link.target_label, key=link.target_by, value=link.target_value))
                targets = [target for target in targets if target.get(link.target_key) == key]
            else:
                targets = self.do(requests.Find(label=link.target_label, key=link.target_key, value=key))
            for target in targets:
                if not scope or target.get("scopeKey") == scope:
                    self.edges.add((link.type, source.id, target.id))

    def _put(self, id_: str, label: str, row: Mapping[str, Any]) -> None:
        old = self.rows.get(id_)
        if old is not None:
            self._unindex(old)
        record = self.rows[id_] = port.Record(id=id_, label=label, properties=dict(row))
        for name in INDEXED:
            if name in row:
                self._index.setdefault((label, name, row[name]), set()).add(id_)
        self.changes += label in READ
        assert record.properties

    def _remove(self, id_: str) -> None:
        record = self.rows.pop(id_, None)
        if record is not None:
            self._unindex(record)
            self.edges = {edge for edge in self.edges if id_ not in edge}
            self.changes += record.label in READ

    def _unindex(self, record: port.Record) -> None:
        for name in INDEXED:
            if name in record.properties:
                self._index[(record.label, name, record.properties[name])].discard(record.id)


def record_id(number: int) -> str:
    """A UUIDv7 whose milliseconds are `number`."""
    digits = f"{number:012x}7{0:019x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _under(record: port.Record, where: Mapping[str, Any]) -> bool:
    return all(
        (record.get(name) is not None) == value["$exists"] if isinstance(value, Mapping) else record.get(name) == value
        for name, value in where.items()
    )


class Line:
    """One delivery under way: `step` sends its next request (an upsert takes two steps)."""

    def __init__(self, store: WeakStore, steps: requests.Steps[Any]) -> None:
        self.store, self.steps = store, steps
        self.result: Any = None
        self.done = False
        self._half: Any = None
        self._take(lambda: next(steps))

    def step(self) -> bool:
        """Whether it has ended."""
        if self._half is not None:
            self.store.commit(*self._half)
            self._half = None
            self._answer(None)
        else:
            _, _, request = self._todo[0]
            if isinstance(request, requests.Upsert):
                self._half = self.store.begin(request)
            else:
                self._answer(self.store.do(request))
        return self.done

    def late(self) -> bool:
        """The request in flight when its caller died, a step at a time; whether that is over."""
        if self._half is not None:
            self.store.commit(*self._half)
            return True
        _, _, request = self._todo[0]
        if isinstance(request, requests.Upsert):
            self._half = self.store.begin(request)
            return False
        self.store.do(request)
        return True

    def _answer(self, value: Any) -> None:
        _, place, _ = self._todo.pop(0)
        self._answers[place] = value
        if not self._todo:
            answers = self._answers
            self._take(lambda: self.steps.send(answers))

    def _take(self, go: Any) -> None:
        try:
            wanted: tuple[requests.Request, ...] = go()
        except StopIteration as end:
            self.result, self.done = end.value, True
            return
        self._todo = (
            sorted((requests.rank(r), n, r) for n, r in _numbered(wanted)) if len(wanted) > 1 else [(0, 0, wanted[0])]
        )
        self._answers: list[Any] = [None] * len(wanted)


def _numbered(wanted: Iterable[requests.Request]) -> list[tuple[int, requests.Request]]:
    return list(enumerate(wanted))
