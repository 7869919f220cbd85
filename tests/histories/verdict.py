"""What a store and the recent writes hold of some scopes in the end, and what differs from the model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from producer import keys
from producer.convergence import check, reader
from producer.recall.recent import RecentWrites
from producer.store import port
from tests.histories.model import LABELS, THING_KEYS, Content, Expected

__all__ = ["Difference", "Held", "look"]

CONTENT_LABELS = (*LABELS.values(), *THING_KEYS)
IDS = {"MEMORY_FACT": "factId", "EPISODE": "eventId", **THING_KEYS}
BY = {"MEMORY_FACT": "supersededByFactId", "EPISODE": "supersededByEventId"}
SCOPES_AT_ONCE = 100


@dataclass(frozen=True, kw_only=True)
class Difference:
    what: str
    resurrected: bool = False  # ended, and there or current all the same


@dataclass(kw_only=True)
class Held:
    """What there is of one scope."""

    records: list[port.Record]
    sessions: Counter[str]
    edges: set[tuple[str, str, str]]  # type, source and target record id
    others: Mapping[str, port.Record]  # all records that were looked at, by record id
    problems: Counter[tuple[str, str, str]]
    cached: list[Mapping[str, object]]

    def differences(self, told: Expected) -> list[Difference]:
        return [
            *self._of_contents(told),
            *self._of_readers(told),
            *self._of_edges(told),
            *self._of_sessions(told),
            *self._of_problems(told),
            *self._of_recent_writes(told),
        ]

    def _of_contents(self, told: Expected) -> Iterable[Difference]:
        there: defaultdict[Content, list[port.Record]] = defaultdict(list)
        for record in self.records:
            there[_content(record)].append(record)
        for content, records in there.items():
            if content not in told.contents:
                yield Difference(what=f"{_short(content)} is there", resurrected=True)
            elif len(records) > 1:
                yield Difference(what=f"{_short(content)} is there {len(records)} times")
            elif _is_current(records[0]) != told.contents[content]:
                current = _is_current(records[0])
                yield Difference(what=f"{_short(content)} is {'' if current else 'not '}current", resurrected=current)
            elif (by := _by(records[0])) is not None and by not in told.may_end.get(content, ()):
                yield Difference(what=f"{_short(content)} is superseded by a stranger")
        for content in told.contents:
            if content not in there:
                yield Difference(what=f"{_short(content)} is missing")

    def _of_readers(self, told: Expected) -> Iterable[Difference]:
        """What recall may show of the facts: those that are current, once each."""
        facts = [r for r in self.records if r.label == "MEMORY_FACT" and r.get("active") is True]
        shown = sorted(str(r.get("factId")) for r in reader.keep(facts))
        current = sorted(
            id_ for (label, id_, _), is_current in told.contents.items() if is_current and label == "MEMORY_FACT"
        )
        if shown != current:
            yield Difference(
                what=f"readers see {len(shown)} facts of {len(current)}", resurrected=bool({*shown} - {*current})
            )

    def _of_edges(self, told: Expected) -> Iterable[Difference]:
        there = set()
        for type_, source, target in self.edges:
            one, other = self.others.get(source), self.others.get(target)
            if one is None or other is None or one.get("scopeKey") != _scope_of(other):
                yield Difference(what=f"a {type_} edge leaves the scope")
            elif type_ == "IN_SESSION":
                if one.get("sessionKey") != other.get("sessionKey"):
                    yield Difference(what="an episode is in another session")
            else:
                there.add((type_, _content(one), _content(other)))
        for edge in told.edges - there:
            yield Difference(what=f"a {edge[0]} edge of {_short(edge[1])} is missing")
        asked = {(type_, source[:2], target[:2]) for type_, source, target in told.edges}
        for type_, source, target in there:
            if (type_, source[:2], target[:2]) not in asked:
                yield Difference(what=f"a {type_} edge that nobody asked for")
        joined = {source for type_, source, _ in self.edges if type_ == "IN_SESSION"}
        for record in self._standing_episodes():
            if record.id not in joined:
                yield Difference(what="an episode is in no session")

    def _standing_episodes(self) -> list[port.Record]:
        best: dict[object, port.Record] = {}
        for record in self.records:
            if record.label == "EPISODE":
                id_ = record.get("eventId")
                best[id_] = min(best.get(id_, record), record, key=lambda r: str(r.get("contentHash")))
        return list(best.values())

    def _of_sessions(self, told: Expected) -> Iterable[Difference]:
        for session in told.sessions:
            if self.sessions[session] != 1:
                yield Difference(what=f"a session is there {self.sessions[session]} times")
        for session in told.no_sessions - told.sessions:
            if self.sessions[session]:
                yield Difference(what="a forgotten session is there", resurrected=True)

    def _of_problems(self, told: Expected) -> Iterable[Difference]:
        for problem in (self.problems - told.problems).keys() | (told.problems - self.problems).keys():
            times = f"{self.problems[problem]} times, not {told.problems[problem]}"
            yield Difference(what=f"check finds {problem[0]} of {problem[1]} {times}")

    def _of_recent_writes(self, told: Expected) -> Iterable[Difference]:
        """They may know less than the store, and never other than it."""
        current = {content[:2] for content, is_current in told.contents.items() if is_current}
        for entry in self.cached:
            label, record = str(entry["label"]), entry["record"]
            assert isinstance(record, Mapping)
            if (label, entry["id"]) not in current:
                yield Difference(what=f"the cache holds a {label} that ended", resurrected=True)
            elif record.get("contentHash") != min(
                hash_ for one, id_, hash_ in told.contents if (one, id_) == (label, entry["id"])
            ):
                yield Difference(what=f"the cache holds content of a {label} that does not stand")


def look(store: port.Store, recent: RecentWrites, scope_keys: Sequence[str]) -> dict[str, Held]:
    """What there is of these scopes, by scopeKey."""
    held: dict[str, Held] = {}
    for start in range(0, len(scope_keys), SCOPES_AT_ONCE):
        held |= _look(store, recent, scope_keys[start : start + SCOPES_AT_ONCE])
    return held


def _look(store: port.Store, recent: RecentWrites, scope_keys: Sequence[str]) -> dict[str, Held]:
    where: port.Where = {"scopeKey": {"$in": list(scope_keys)}}
    by_scope: defaultdict[str, list[port.Record]] = defaultdict(list)
    every: dict[str, port.Record] = {}
    edges: list[port.Edge] = []
    participants: dict[str, None] = {}
    for label in CONTENT_LABELS:
        for record in _all(store, label, where):
            every[record.id] = record
            by_scope[str(record.get("scopeKey"))].append(record)
            participants[str(record.get("participantScopeHash"))] = None
        edges += store.edges(label, where)
    sessions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in _all(store, "SESSION", {"participantScopeHash": {"$in": list(participants)}}):
        every[record.id] = record
        sessions[_scope_of(record)][str(record.get("sessionKey"))] += 1
    problems: defaultdict[str, Counter[tuple[str, str, str]]] = defaultdict(Counter)
    for one in check.check(store, contents=where, marks_where=where):
        problems[one.scope_key][(one.code, one.label, one.id)] += 1
    return {
        scope_key: Held(
            records=by_scope[scope_key],
            sessions=sessions[scope_key],
            edges={
                (edge.type, edge.source_id, edge.target_id)
                for edge in edges
                if every[edge.source_id].get("scopeKey") == scope_key
            },
            others=every,
            problems=problems[scope_key],
            cached=recent.read(scope_key),
        )
        for scope_key in scope_keys
    }


def _scope_of(record: port.Record) -> str:
    return str(record.get("scopeKey") or keys.scope_key(record.properties))  # a SESSION carries the five fields alone


def _all(store: port.Store, label: str, where: port.Where) -> Iterable[port.Record]:
    skip = 0
    while True:
        page = store.find(label, where, skip=skip)
        yield from page.records
        skip += len(page.records)
        if not page.records or skip >= page.total:
            return


def _content(record: port.Record) -> Content:
    return record.label, str(record.get(IDS[record.label])), str(record.get("contentHash"))


def _is_current(record: port.Record) -> bool:
    if record.label == "EPISODE":
        return _by(record) is None
    return record.get("active") is True


def _by(record: port.Record) -> object:
    return record.get(BY.get(record.label, "supersededByHash"))


def _short(content: Content) -> str:
    label, id_, hash_ = content
    return f"{label} {id_[:8]} ({hash_[:8]})"
