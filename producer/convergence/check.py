"""Does the store hold what its marks ask for? One pass over contents and marks; nothing is written, no text is read.

What it finds, by code. Workers mend the first three by themselves whenever they settle an id; the others are for
people, since no rule may guess what was meant:

    duplicate            several records of one content: a worker died before it folded them
    unsettled            a record does not say what its marks ask for
    forgotten_remains    a record under an id that was forgotten
    conflict             other content under one id of one scope; the smaller hash stands
    cycle                facts that supersede each other in a ring: none of them is current
    superseder_missing   superseded by what is not in the store: not delivered yet, or dead (replay it)
    target_missing       names as superseded what is not in the store: until it arrives both may be current
    two_current          more than one is current on a line, of those that superseded one fact, or of a thing's versions
    clock_skew           a superseder that began to hold more than 5 minutes before what it replaced, or anything that
                         claims a time of more than 5 minutes after the store took it: a host's clock is wrong

A store in use is never still: `duplicate`, `unsettled` and the missing ones pass. Ask twice before acting on them.
Memory: about one kilobyte per record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from producer import errors, identity
from producer.convergence import content, forget, marks, settle
from producer.convergence.content import BY, EPISODE, FACT, MARK, OBJECT_KEY
from producer.store import port

__all__ = ["CODES", "SKEW_S", "Problem", "check"]

SKEW_S = 300.0
CODES = (
    "duplicate",
    "unsettled",
    "forgotten_remains",
    "conflict",
    "cycle",
    "superseder_missing",
    "target_missing",
    "two_current",
    "clock_skew",
)
_LABELS = (EPISODE, FACT, *OBJECT_KEY)
_TIME = {EPISODE: "observedAt", FACT: "validFrom", **dict.fromkeys(OBJECT_KEY, "validFrom")}

_Place = tuple[str, str]  # scopeKey, id


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One finding. `others`: ids that belong to it, if any. No text."""

    code: str
    label: str
    id: str
    scope_key: str
    others: tuple[str, ...] = ()


def check(store: port.Store, *, contents: port.Where, marks_where: port.Where) -> list[Problem]:
    """Everything that is not as it must be, in a stable order. `contents` and `marks_where` are the wheres of what to
    look at; both empty: all. Raises what the store raises."""
    said: defaultdict[_Place, list[marks.Mark]] = defaultdict(list)
    for mark in marks.read(_pages(store, MARK, marks_where)):
        said[(mark.scope_key, mark.target)].append(mark)
    found: list[Problem] = []
    for label in _LABELS:
        found += _Label(label, _pages(store, label, contents), said).problems()
    return sorted(found, key=lambda p: (CODES.index(p.code), p.label, p.scope_key, p.id, p.others))


class _Label:
    """The records of one label by scope and id, judged under the marks."""

    def __init__(
        self, label: str, records: Iterable[port.Record], said: Mapping[_Place, Collection[marks.Mark]]
    ) -> None:
        self._label = label
        self._said = said
        self._records: defaultdict[_Place, list[port.Record]] = defaultdict(list)
        self._on_line: defaultdict[_Place, set[str]] = defaultdict(set)
        for record in records:
            id_, scope_key = record.get(content.id_name(label)), content.scope_of(record)
            if isinstance(id_, str) and id_ and scope_key is not None:
                self._records[(scope_key, id_)].append(_light(label, record))
                line = record.get("lineKey")
                if isinstance(line, str) and line:
                    self._on_line[(scope_key, line)].add(id_)

    def problems(self) -> Iterator[Problem]:
        for place, records in self._records.items():
            yield from self._of_one(place, records)
        yield from self._of_targets()
        yield from self._cycles()

    def _marks(self, place: _Place) -> list[marks.Mark]:
        """Those that count for content of this scope under this id."""
        return [*self._said.get(place, ()), *self._said.get((marks.EVERYWHERE, place[1]), ())]

    def _standing(self, place: _Place) -> marks.Standing:
        return marks.standing(self._marks(place), place[0])

    def _problem(self, code: str, place: _Place, others: Iterable[str] = ()) -> Problem:
        return Problem(code=code, label=self._label, id=place[1], scope_key=place[0], others=tuple(sorted(others)))

    def _of_one(self, place: _Place, records: list[port.Record]) -> Iterator[Problem]:
        said = self._standing(place)
        if said.forgotten:
            yield self._problem("forgotten_remains", place)
            return
        copies = content.copies(records)
        if any(len(same) > 1 for same in copies):
            yield self._problem("duplicate", place)
        if len(copies) > 1:
            yield self._problem("conflict", place)
        for number, same in enumerate(copies):
            says = settle.verdict(self._label, said, stands=number == 0)
            if any(same[0].get(name) != value for name, value in says.items()):
                yield self._problem("unsettled", place)
                break
        if any(_is_ahead(self._label, record) for record in records):
            yield self._problem("clock_skew", place)
        old = records[0].get("supersedesFactId") if self._label == FACT else None
        if isinstance(old, str) and old:
            target = (place[0], old)
            if target not in self._records and not self._standing(target).forgotten:
                yield self._problem("target_missing", place, [old])

    def _of_targets(self) -> Iterator[Problem]:
        """Of every id and line that was superseded: who did it, and who of them is current."""
        for (scope_key, target), found in self._said.items():
            place = (scope_key, target)
            by = [one for _, one in marks.claims(found, scope_key)]
            if not by or not self._is_mine(place, by):
                continue
            missing = [
                one
                for one in by
                if (scope_key, one) not in self._records and not self._standing((scope_key, one)).forgotten
            ]
            if missing:
                yield self._problem("superseder_missing", place, missing)
            current = [one for one in {*by, *self._on_line.get(place, ())} if self._is_current((scope_key, one))]
            if len(current) > 1:
                yield self._problem("two_current", place, current)
            late = [one for one in by if self._is_before((scope_key, one), place)]
            if late:
                yield self._problem("clock_skew", place, late)

    def _is_mine(self, place: _Place, by: Iterable[str]) -> bool:
        """Marks do not say of which label their target is; its content does, or that of a superseder."""
        return place in self._records or place in self._on_line or any((place[0], one) in self._records for one in by)

    def _is_current(self, place: _Place) -> bool:
        said = self._standing(place)
        return place in self._records and not (said.claims or said.forgotten or said.retracted_at is not None)

    def _is_before(self, superseder: _Place, target: _Place) -> bool:
        one, other = self._time(superseder), self._time(target)
        return one is not None and other is not None and other - one > timedelta(seconds=SKEW_S)

    def _time(self, place: _Place) -> datetime | None:
        return next((t for r in self._records.get(place, ()) if (t := _time(self._label, r)) is not None), None)

    def _cycles(self) -> Iterator[Problem]:
        """Rings of who was superseded by whom (the greatest claim of each)."""
        done: set[_Place] = set()
        for start in sorted(self._records):
            path: dict[_Place, int] = {}
            place: _Place | None = start
            while place is not None and place not in done and place not in path:
                path[place] = len(path)
                claims = self._standing(place).claims
                place = (place[0], max(claims)[1]) if claims else None
            if place is not None and place in path:
                ring = [one for one in path if path[one] >= path[place]]
                yield self._problem("cycle", min(ring), [id_ for _, id_ in ring if (place[0], id_) != min(ring)])
            done.update(path)


def _light(label: str, record: port.Record) -> port.Record:
    """The record without its texts."""
    names = (
        content.id_name(label),
        "contentHash",
        "scopeKey",
        "lineKey",
        "supersedesFactId",
        "active",
        "retractedAt",
        "supersededAt",
        BY[label],
        _TIME[label],
    )
    kept = {name: record.properties[name] for name in names if name in record.properties}
    return port.Record(id=record.id, label=record.label, properties=kept)


def _time(label: str, record: port.Record) -> datetime | None:
    said = record.get(_TIME[label])
    try:
        return datetime.fromisoformat(identity.normal_time(said if isinstance(said, str) else ""))
    except errors.ContractViolation:
        return None


def _is_ahead(label: str, record: port.Record) -> bool:
    """Whether it claims a time long after the store made it, by the store's own clock."""
    made_ms, said = forget.made_ms(record.id), _time(label, record)
    return bool(made_ms) and said is not None and said.timestamp() - made_ms / 1000 > SKEW_S


def _pages(store: port.Store, label: str, where: port.Where) -> Iterator[port.Record]:
    skip = 0
    while True:
        page = store.find(label, where, skip=skip)
        yield from page.records
        skip += len(page.records)
        if not page.records or skip >= page.total:
            return
