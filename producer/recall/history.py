"""One memory by its id, and a fact's versions: what it said, since when, until when, and what ended it. Read-only.

The versions of a fact are all that hang together with it in its scope: what it names as superseded, what superseded it,
and what stands on the same line, in every direction, until nothing new is found. What became of each is worked out
from the marks, not from the record's own words, which a worker may be about to mend:

    current      it is recalled
    superseded   `by` took its place at `ended_at`
    retracted    it was taken back at `ended_at`, and nothing took its place
    expired      its `validUntil` has passed; later nothing but the id is left
    kept_aside   other content under the same id stands (a conflict); this one is kept and not recalled
    forgotten    on order: nothing but the id is left
    missing      something names it, and it is not in the store: not delivered yet, or dead

Every where holds the five scope fields, or asks for marks of this scope (`producer.recall.where`).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from producer.convergence import content, marks, reader
from producer.convergence.content import EPISODE, FACT, ID, MARK
from producer.recall import where as recall_where
from producer.scope import Scope
from producer.store import port

__all__ = ["MAX_VERSIONS", "History", "State", "Version", "by_id", "history"]

MAX_VERSIONS = 1000
_KEYS = 300  # of one find
_TIME = {EPISODE: "observedAt", FACT: "validFrom"}


class State(enum.StrEnum):
    CURRENT = "current"
    SUPERSEDED = "superseded"
    RETRACTED = "retracted"
    EXPIRED = "expired"
    KEPT_ASIDE = "kept_aside"
    FORGOTTEN = "forgotten"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One version. `record` holds the stored properties (text, kind, provenance, runtime, sourceEventId: who and
    why); None when there is nothing to show. `since` is its validFrom (of an episode observedAt), "" when unknown."""

    id: str
    label: str
    state: State
    since: str = ""
    by: str = ""
    ended_at: str = ""
    record: Mapping[str, port.Value] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Versions, the oldest first; those of unknown time at the end. `cut`: there are more than `MAX_VERSIONS`, and
    these are the fact that was asked for and the newest of those that were found. `failure`: why the store could not
    be asked, as a code; "" when it was."""

    versions: tuple[Version, ...] = ()
    cut: bool = False
    failure: str = ""


def by_id(store: port.Store, scope: Scope, id_: str, *, now: str) -> Version | None:
    """The event or fact of this scope with this id, whatever became of it; None when this scope knows nothing of it.

    `now` is a normal time. Raises what the store raises.
    """
    on = marks.read(_all(store, MARK, recall_where.marks_on(scope, [id_])))
    for label in (FACT, EPISODE):
        records = _all(store, label, recall_where.with_ids(scope, ID[label], [id_]))
        if records:
            return _versions(label, id_, records, on, scope.key, now)[0]
    if marks.forgotten(on, scope.key):
        return _gone(id_, "", on, scope.key)
    return None


def history(store: port.Store, scope: Scope, fact_id: str, *, now: str) -> History:
    """All versions that hang together with this fact. Empty when this scope knows nothing of it.

    `now` is a normal time. Raises what the store raises.
    """
    web = _Web(store, scope)
    web.follow(fact_id)
    cut = web.is_full()
    ids = web.newest(fact_id) if cut else sorted(web.ids())
    versions = [version for id_ in ids for version in web.versions(id_, now)]
    if len(versions) == 1 and versions[0].state is State.MISSING:
        versions = []  # the id that was asked for, and nothing else: unknown
    versions.sort(key=lambda v: (not v.since, v.since, v.id))
    return History(versions=tuple(versions), cut=cut)


class _Web:
    """What was found around a fact: records and marks by key, where a key is a fact's id or a line."""

    def __init__(self, store: port.Store, scope: Scope) -> None:
        self._store = store
        self._scope = scope
        self._records: dict[str, dict[str, port.Record]] = {}  # factId -> record id -> record
        self._on: dict[str, set[marks.Mark]] = {}
        self._named: set[str] = set()  # ids, for sure
        self._seen: set[str] = set()

    def follow(self, fact_id: str) -> None:
        """Find everything, or until it is full."""
        self._named.add(fact_id)
        todo = [fact_id]
        while todo and not self.is_full():
            keys, todo = todo[:_KEYS], todo[_KEYS:]
            self._seen.update(keys)
            todo = sorted({*todo, *self._around(keys)} - self._seen)

    def is_full(self) -> bool:
        """Whether there is more than is shown: nothing more is read then, however long a line is."""
        return len(self._named) > MAX_VERSIONS

    def _around(self, keys: list[str]) -> set[str]:
        """Other keys that hang together with these, the newest first."""
        found: set[str] = set()
        for name in (ID[FACT], "supersedesFactId", "lineKey"):
            where = recall_where.with_ids(self._scope, name, keys)
            for record in _pages(self._store, FACT, where, newest_by=_TIME[FACT]):
                if self.is_full():
                    return found
                id_ = self._keep(record)
                if not id_:
                    continue
                self._named.add(id_)
                old = record.get("supersedesFactId")
                if isinstance(old, str) and old:
                    self._named.add(old)
                found |= {key for key in (id_, old, record.get("lineKey")) if isinstance(key, str) and key}
        for where in (recall_where.marks_on(self._scope, keys), recall_where.marks_by(self._scope, keys)):
            for record in _pages(self._store, MARK, where, newest_by="at"):
                if self.is_full():
                    return found
                for mark in marks.read([record]):
                    self._on.setdefault(mark.target, set()).add(mark)
                    if mark.what == marks.SUPERSEDED:
                        self._named.add(mark.by)
                        found |= {mark.target, mark.by}
                    elif mark.what in marks.ENDING:
                        self._named.add(mark.target)
        return found

    def _keep(self, record: port.Record) -> str:
        """Keep a fact's record; its id, "" when it has none."""
        id_ = record.get(ID[FACT])
        if not isinstance(id_, str) or not id_:
            return ""
        self._records.setdefault(id_, {})[record.id] = record
        return id_

    def ids(self) -> set[str]:
        """Keys that are ids of facts; a line is none, and a target without content may be a line."""
        return self._named & self._seen

    def newest(self, fact_id: str) -> list[str]:
        """This id and the newest others of which there is content; what became of them is looked up, for nobody
        followed them."""

        def since(id_: str) -> str:
            return max(_since(FACT, record) for record in self._records[id_].values())

        others = sorted((id_ for id_ in self._records if id_ != fact_id), key=since, reverse=True)
        ids = [fact_id, *others[: MAX_VERSIONS - 1]]
        for start in range(0, len(ids), _KEYS):
            keys = ids[start : start + _KEYS]
            for record in _all(self._store, FACT, recall_where.with_ids(self._scope, ID[FACT], keys)):
                self._keep(record)
            for mark in marks.read(_all(self._store, MARK, recall_where.marks_on(self._scope, keys))):
                self._on.setdefault(mark.target, set()).add(mark)
        return ids

    def versions(self, id_: str, now: str) -> list[Version]:
        records = list(self._records.get(id_, {}).values())
        return _versions(FACT, id_, records, self._on.get(id_, ()), self._scope.key, now)


def _versions(
    label: str, id_: str, records: Collection[port.Record], on: Iterable[marks.Mark], scope_key: str, now: str
) -> list[Version]:
    """The versions that one id comes to: the one that stands first, then what is kept aside."""
    on = list(on)
    said = marks.standing(on, scope_key)
    if said.forgotten:
        return [_gone(id_, label, on, scope_key)]
    shown = [same[0] for same in content.copies(records)] or sorted(records, key=lambda r: r.id)[:1]
    if not shown:
        return [Version(id=id_, label=label, state=State.MISSING)]
    first, *aside = shown
    return [
        _version(label, id_, first, said, now),
        *(
            Version(
                id=id_, label=label, state=State.KEPT_ASIDE, since=_since(label, record), record=dict(record.properties)
            )
            for record in aside
        ),
    ]


def _gone(id_: str, label: str, on: Iterable[marks.Mark], scope_key: str) -> Version:
    """What is left of an id that was forgotten."""
    ended_at = marks.expired_at(on, scope_key)
    if ended_at is not None:
        return Version(id=id_, label=FACT, state=State.EXPIRED, ended_at=ended_at)
    return Version(id=id_, label=label, state=State.FORGOTTEN)


def _version(label: str, id_: str, record: port.Record, said: marks.Standing, now: str) -> Version:
    state, by, ended_at = _state(label, record, said, now)
    return Version(
        id=id_,
        label=label,
        state=state,
        since=_since(label, record),
        by=by,
        ended_at=ended_at,
        record=dict(record.properties),
    )


def _state(label: str, record: port.Record, said: marks.Standing, now: str) -> tuple[State, str, str]:
    if said.claims:
        at, by = max(said.claims)
        return State.SUPERSEDED, by, at
    if said.retracted_at is not None:
        return State.RETRACTED, "", said.retracted_at
    if not content.is_ours(record):  # another adapter's verdict is all there is
        if reader.has_ended(record):
            by, at = record.get(content.BY[label]), record.get("supersededAt") or record.get("retractedAt")
            return (State.SUPERSEDED if by else State.RETRACTED), str(by or ""), str(at or "")
        if label == FACT and record.get("active") is not True:
            return State.RETRACTED, "", ""
    until = record.get("validUntil")
    if isinstance(until, str) and until and until <= now:
        return State.EXPIRED, "", until
    return State.CURRENT, "", ""


def _since(label: str, record: port.Record) -> str:
    value = record.get(_TIME[label])
    return value if isinstance(value, str) else ""


def _all(store: port.Store, label: str, where: port.Where) -> list[port.Record]:
    return list(_pages(store, label, where))


def _pages(store: port.Store, label: str, where: port.Where, *, newest_by: str = "") -> Iterator[port.Record]:
    order_by = ((newest_by, "desc"), ("__id", "desc")) if newest_by else (("__id", "asc"),)
    skip = 0
    while True:
        page = store.find(label, where, skip=skip, order_by=order_by)
        yield from page.records
        skip += len(page.records)
        if not page.records or skip >= page.total:
            return
