"""What an order to forget names, as it is now: in the store, among the recent writes, in this host's journal.

Made before the order is given, to show it, and after it was settled, to see what is left. It reads, and writes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memory_tasks import redis_errors
from memory_tasks import status as status_module
from memory_tasks.settings import Settings
from producer import errors, store
from producer.convergence import content, forget, marks, ordered
from producer.convergence.content import EPISODE, FACT, MARK, SESSION, TEXT
from producer.journal import Journal
from producer.journal.index import RECENTLY_SENT_S, Entry, Index
from producer.recall import recent
from producer.receipt import State
from producer.store import port

__all__ = ["Covered", "Here", "Survey", "Target", "names", "survey"]

_STORE_TIMEOUT_S = 20.0
_COMPACTED_WITHIN_S = 70.0  # a segment that may go is looked at again after a minute
_SETTLED = (State.STORED, State.FORGOTTEN, State.DISCARDED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One thing that the order names. `text` is shown on demand only."""

    place: str
    label: str
    id: str
    at: str
    text: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """A line of this host's journal that the order names. The entry is followed by its index."""

    entry: Entry
    kind: str
    id: str
    appended_at: str
    body: Mapping[str, Any] = field(repr=False)


class Here:
    """This host's journal and what of it an order covers. Not for several threads."""

    def __init__(self, journal: Journal, order: ordered.Order) -> None:
        self.journal = journal
        self.index = Index(journal).read_all()
        self.covered = list(self._covered(order))

    def _covered(self, order: ordered.Order) -> Iterator[Covered]:
        seen: set[str] = set()
        for located in self.journal.scan():
            line = located.line
            if line.kind not in ("event", "order") or line.hash in seen:
                continue
            seen.add(line.hash)
            named, entry = ordered.named_of_line(line), self.index.entries.get(bytes.fromhex(line.hash))
            if named is not None and entry is not None and order.names(named):
                yield Covered(
                    entry=entry, kind=line.kind, id=line.id, appended_at=line.appended_at, body=line.body[line.kind]
                )

    def in_state(self, *states: State | None) -> list[Covered]:
        return [one for one in self.covered if one.entry.copies and one.entry.state in states]

    @property
    def settled(self) -> list[Covered]:
        """Those that wait for compaction."""
        return self.in_state(*_SETTLED)

    @property
    def open(self) -> list[Covered]:
        return [one for one in self.covered if one.entry.is_open]

    @property
    def is_answered(self) -> bool:
        """Whether the drainer has done what it does about settled and dead lines at once."""
        return not self.in_state(State.STORED, State.DEAD)

    def gone_ms(self, now_ms: int) -> int:
        """By when the bytes of what is settled are off the disk, while somebody drains this journal."""
        names = {one.entry.segment for one in self.settled}
        sent_ms = [e.sent_ms for e in self.index.entries.values() if e.segment in names and e.is_terminal]
        last_ms = max((ms + int(RECENTLY_SENT_S * 1000) for ms in sent_ms if ms), default=0)
        return max(now_ms, last_ms) + int(_COMPACTED_WITHIN_S * 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What was found; `unreachable` says of a place why it could not be asked."""

    records: tuple[port.Record, ...] = ()
    newer: tuple[port.Record, ...] = ()  # of the group, made after its mark
    sessions: int = 0
    entries: tuple[Mapping[str, Any], ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)

    def targets(self, here: Here | None) -> list[Target]:
        found = [
            _target(
                "store", record.label, str(record.get(content.id_name(record.label)) or record.id), record.properties
            )
            for record in self.records
        ]
        found += [
            _target("recent_writes", str(entry["label"]), str(entry["id"]), entry["record"]) for entry in self.entries
        ]
        for one in here.covered if here is not None else ():
            if one.entry.copies:
                label = str(one.body.get("label") or (FACT if one.body.get("eventType") == "fact" else EPISODE))
                found.append(_target(_place_of(one.entry), label, one.id, one.body))
        return found


def _target(place: str, label: str, id_: str, says: Mapping[str, Any]) -> Target:
    at = next((says[name] for name in ("observedAt", "validFrom", "at") if says.get(name)), "")
    return Target(place=place, label=label, id=id_, at=str(at), text=str(says.get(TEXT.get(label, "name")) or ""))


def _place_of(entry: Entry) -> str:
    if entry.state is State.DEAD:
        return "dead_letters"
    return "journal_bytes" if entry.is_terminal else "journal"


def survey(settings: Settings, target: forget.Target, order: ordered.Order, *, order_id: str = "") -> Survey:
    """The targets as they are now. `order_id`: an order that was settled; what is younger than its mark is none."""
    unreachable: dict[str, str] = {}
    records: list[port.Record] = []
    newer: list[port.Record] = []
    sessions = 0
    entries: list[Mapping[str, Any]] = []
    try:
        with _opened_store(settings) as opened:
            marked_ms, mark = _marked(opened, order, order_id)
            for record in _records(opened, target):
                is_newer = bool(target.where) and forget.is_newer(
                    record.label, record, mark, marked_ms, settings.forget_margin_s
                )
                (newer if is_newer else records).append(record)
            if target.where and not newer and not any(name in target.where for name in content.OBJECT_KEY.values()):
                sessions = opened.find(SESSION, target.where, limit=1).total
    except errors.IngestError as problem:
        unreachable["store"] = str(problem)
    try:
        entries = list(_entries(settings, target, order, {_id_of(record) for record in newer}))
    except errors.IngestError as problem:
        unreachable["recent_writes"] = str(problem)
    return Survey(
        records=tuple(records), newer=tuple(newer), sessions=sessions, entries=tuple(entries), unreachable=unreachable
    )


def _opened_store(settings: Settings) -> contextlib.closing[store.Store]:
    given = settings.producer
    return contextlib.closing(store.open_store(given.store_url, token=given.store_token, timeout_s=_STORE_TIMEOUT_S))


def _marked(opened: port.Store, order: ordered.Order, order_id: str) -> tuple[int, marks.Mark]:
    """When the store made the mark of an order; 0 without one."""
    mark = marks.Mark(what=marks.FORGOTTEN, target=order.key, by=order_id, scope_key=order.scope_key, at=order.at)
    if not order_id:
        return 0, mark
    made = [forget.made_ms(r.id) for r in _pages(opened, MARK, {"target": order.key, "by": order_id})]
    return min(made, default=0), mark


def _records(opened: port.Store, target: forget.Target) -> Iterator[port.Record]:
    own = target.scope.fields() if target.scope is not None else {}
    if not target.where:
        for label in (EPISODE, FACT, *content.OBJECT_KEY):
            yield from _pages(opened, label, {content.id_name(label): target.key, **own})
        return
    for label, where in forget.sweeps(target):
        yield from (record for record in _pages(opened, label, where) if forget.holds(target, record))


def _pages(opened: port.Store, label: str, where: port.Where) -> Iterator[port.Record]:
    skip = 0
    while True:
        page = opened.find(label, where, skip=skip)
        yield from page.records
        skip += len(page.records)
        if not page.records or skip >= page.total:
            return


def _entries(
    settings: Settings, target: forget.Target, order: ordered.Order, newer: set[str]
) -> Iterator[Mapping[str, Any]]:
    given = settings.producer
    client = status_module.open_redis(given.redis_url)
    try:
        cache = recent.RecentWrites(lambda: client, tenant=given.tenant, cache_key=given.cache_key)
        if target.scope is not None:
            scope_keys = [target.scope.key]
        else:
            prefix = recent.key_name(given.tenant, "")
            scope_keys = [name.removeprefix(prefix) for name in names(client, f"{prefix}*")]
        for scope_key in scope_keys:
            for entry in cache.read(scope_key):
                record = entry.get("record")
                named = ordered.named_of(entry["label"], record) if isinstance(record, Mapping) else None
                if named is not None and order.names(named) and named.id not in newer:
                    yield entry
    finally:
        client.close()


def names(client: Any, pattern: str) -> list[str]:
    """Names of Redis keys like this. Raises `errors.RedisUnavailable`."""
    with redis_errors.translated():
        return sorted(name.decode("utf-8", "replace") for name in client.scan_iter(pattern, count=1000))


def _id_of(record: port.Record) -> str:
    return str(record.get(content.id_name(record.label)))
