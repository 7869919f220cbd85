"""From everything that was found to what is recalled: one memory per id, only what stands, best first. No I/O.

Three sources, in the order in which they are believed about one id: the store, recent writes, the host's own journal.
Whatever any of them tells about the end of a memory counts against all of them:

- a copy that names a superseder or a retraction, or a fact of which the store has only inactive copies;
- another result that names it as superseded, also one that is itself not recalled (of this conversation, say);
- a later one on the same line (a fact of a single-valued kind, a later Stop of the same prompt);
- an order in the journal that retracts or forgets it, or a group it is in: settling that takes all that the store
  holds of the group by then, so all of it is gone at once (`producer.recall.tail` sees to the journal's own lines);
- of a recent write and of a line of the journal, a mark in the store on its id: the cache may have missed that it was
  forgotten, and another host may have forgotten the line; of a line, a mark on a group too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from producer import errors, identity
from producer.convergence import marks, ordered
from producer.convergence.content import BY, EPISODE, FACT, ID, TEXT
from producer.recall import ranking
from producer.recall import where as recall_where
from producer.recall.where import Session
from producer.scope import Scope
from producer.store import where as store_where
from producer.store.port import Record

__all__ = ["Found", "Memory", "keys_of", "merge"]

_MAX_TEXT_UNITS = 6000  # a record of another adapter may hold more
_SHOWN_CHARS = 2000  # of one memory, in the recalled block
_TIME_NAMES = {EPISODE: "observedAt", FACT: "validFrom"}
_ENDED_BY = (*BY.values(), "retractedAt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """One recalled memory. `record` holds the stored properties: provenance, trustClass, times."""

    id: str
    label: str
    text: str
    score: float  # 0 to 1, comparable within one recall
    at: str  # validFrom or observedAt
    source: str  # "store", "recent" or "journal"
    record: Mapping[str, Any]

    def quotable(self) -> dict[str, Any]:
        """What `formatting.format_context` takes."""
        return {**self.record, "label": self.label, "text": self.text, "score": self.score}


@dataclass(kw_only=True, slots=True)
class Found:
    """What the searches brought, each as records. `copies`: what the store has of facts that others told of, or None
    when it was not asked or did not answer. `marks`: what it has on `keys_of` recent and journal. `orders`: bodies of
    order lines of the journal that are not settled yet."""

    hits: Sequence[Record] = ()
    copies: Sequence[Record] | None = None
    marks: Sequence[Record] = ()
    recent: Sequence[Record] = ()
    journal: Sequence[Record] = ()
    orders: Sequence[Mapping[str, Any]] = field(default_factory=list)


def keys_of(scope: Scope, records: Iterable[Record]) -> set[str]:
    """What marks may name these by: their ids and groups."""
    named = [_named(record) for record in records if _is_ours(scope, record)]
    return {key for one in named if one is not None for key in one.keys}


def merge(
    found: Found,
    *,
    scope: Scope,
    session: Session | None,
    query: str,
    now: str,
    limit: int,
    max_chars: int,
    skip_ids: Collection[str] = (),
) -> list[Memory]:
    """At most `limit` memories, best first, of together at most `max_chars` characters as `format_context` shows them;
    the best one always comes."""
    sources = {"journal": found.journal, "recent": found.recent, "store": found.hits}
    ours = {name: [r for r in records if _is_ours(scope, r)] for name, records in sources.items()}
    copies = [r for r in found.copies or () if _is_ours(scope, r)]
    ended = _ended([*(r for records in ours.values() for r in records), *copies], copies)
    ended |= _ordered_away(ours, found.orders)
    ended |= _marked((*ours["journal"], *ours["recent"]), found.marks)
    allowed = {EPISODE: recall_where.episodes(scope, session), FACT: recall_where.facts(scope, session)}
    standing: dict[str, tuple[str, Record]] = {}
    for name, records in ours.items():  # the store last: its record of an id takes the place of the others
        for record in records:
            id_ = _id(record)
            if id_ not in ended and id_ not in skip_ids and _may_pass(record, allowed[record.label], now):
                standing[id_] = (name, record)
    return _best(standing, query, limit, max_chars)


def _is_ours(scope: Scope, record: Record) -> bool:
    name = ID.get(record.label)
    return (
        name is not None
        and isinstance(record.get(name), str)
        and isinstance(record.get(TEXT[record.label]), str)
        and recall_where.in_scope(scope, record.properties)
    )


def _id(record: Record) -> str:
    return str(record.properties[ID[record.label]])


def _may_pass(record: Record, allowed: Mapping[str, Any], now: str) -> bool:
    try:
        if not store_where.matches(allowed, record):
            return False
        until = record.get("validUntil")
        return until is None or identity.normal_time(until) > now
    except errors.Permanent:  # a value that no record has, a time that is none: not ours to show
        return False


def _ended(seen: Sequence[Record], copies: Sequence[Record]) -> set[str]:
    ended = {_id(record) for record in seen if any(record.get(name) is not None for name in _ENDED_BY)}
    ended |= {_id(r) for r in copies} - {_id(r) for r in copies if r.get("active") is not False}
    for record in seen:
        named = record.get("supersedesFactId")
        if isinstance(named, str) and named != _id(record):
            ended.add(named)
    lines: dict[str, set[tuple[str, str]]] = {}
    for record in seen:
        if isinstance(line := record.get("lineKey"), str):
            lines.setdefault(line, set()).add((_at(record), _id(record)))
    for standing in lines.values():
        ended |= {id_ for _, id_ in standing} - {max(standing)[1]}
    return ended


def _ordered_away(ours: Mapping[str, Sequence[Record]], bodies: Iterable[Mapping[str, Any]]) -> set[str]:
    orders = ordered.by_key(order for body in bodies if (order := ordered.of_body(body)) is not None)
    away = set()
    for source, records in ours.items() if orders else ():
        for record in records:
            named = _named(record)
            if named is None:
                continue
            # Lines that a group's order covers were left out by the tail; those that are here came after it.
            bearing = [order for key in named.keys for order in orders.get(key, ()) if order.names(named)]
            if any(source != "journal" or order.key == named.id for order in bearing):
                away.add(named.id)
    return away


def _marked(told: Iterable[Record], found: Sequence[Record]) -> set[str]:
    ending = [order for mark in marks.read(found) if (order := ordered.of_mark(mark)) is not None]
    away = set()
    for record in told if ending else ():
        named = _named(record)
        # A recent write says no appendedAt, so no group's mark covers it: what a group took has marks on its ids.
        if named is not None and any(order.covers(named, str(record.get("appendedAt") or "")) for order in ending):
            away.add(named.id)
    return away


def _named(record: Record) -> ordered.Named | None:
    return ordered.named_of(record.label, record.properties)


def _at(record: Record) -> str:
    value = record.get(_TIME_NAMES[record.label])
    try:
        return identity.normal_time(value) if isinstance(value, str) else ""
    except errors.ContractViolation:
        return ""


def _best(standing: Mapping[str, tuple[str, Record]], query: str, limit: int, max_chars: int) -> list[Memory]:
    items = sorted(standing.items())
    texts = [str(record.properties[TEXT[record.label]]) for _, (_, record) in items]
    highest: dict[str, float] = {}
    for _, (_, record) in items:
        highest[record.label] = max(highest.get(record.label, 0.0), record.score or 0.0)
    memories = []
    for (id_, (source, record)), text, words in zip(items, texts, ranking.relevance(query, texts), strict=True):
        # A store's score knows meaning and the whole collection, the words know what was written a moment ago.
        score = words
        if record.score is not None:
            top = highest[record.label]
            score = (words + (record.score / top if top > 0 else 0.0)) / 2
        elif words == 0:
            continue  # recent, but about something else
        memories.append(
            Memory(
                id=id_,
                label=record.label,
                text=identity.bounded_text(text, _MAX_TEXT_UNITS),
                score=score,
                at=_at(record),
                source=source,
                record=record.properties,
            )
        )
    memories.sort(key=lambda m: m.id)
    memories.sort(key=lambda m: m.at, reverse=True)
    memories.sort(key=lambda m: -round(m.score, 2))  # near ties: the newer one
    kept: list[Memory] = []
    room = max_chars
    for memory in memories[:limit]:
        room -= min(len(memory.text), _SHOWN_CHARS)
        if kept and room < 0:
            break
        kept.append(memory)
    return kept
