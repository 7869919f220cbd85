"""The edges between contents that stand, and the SESSION records they need.

    EPISODE     -IN_SESSION->    SESSION      sessionKey
    MEMORY_FACT -FROM_EPISODE->  EPISODE      a sourceEventId that is an eventId
    MEMORY_FACT -SUPERSEDES->    MEMORY_FACT  supersedesFactId, never a mark

All within one scopeKey. Whoever settles a record looks at both ends, what it names and who names it, and adds the edges
whose other end is there: of two ends that arrive at once the later look sees the other. Edges are added by key, so they
reach every copy; they are judged by record id.

A SESSION folds like content, but its episodes are not at hand: the survivor gets all edges by key and is looked at
before a duplicate is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from producer import keys
from producer.convergence import content
from producer.convergence.content import EPISODE, FACT, SESSION
from producer.convergence.requests import Delete, Edges, Find, Link, Request, Steps, Upsert, together
from producer.store import port

__all__ = [
    "FROM_EPISODE",
    "IN_SESSION",
    "SUPERSEDES",
    "fold_sessions",
    "from_episode",
    "in_session",
    "is_event_id",
    "mend",
    "session_upsert",
    "supersedes",
]

IN_SESSION = "IN_SESSION"
FROM_EPISODE = "FROM_EPISODE"
SUPERSEDES = "SUPERSEDES"

_SESSION_NAMES = ("sessionKey", "runtime", "externalSessionId", *keys.SCOPE_FIELDS)
_EVENT_ID = re.compile(r"[0-9a-f]{64}\Z")


def is_event_id(source_event_id: Any) -> bool:
    """Whether a fact's sourceEventId may be an eventId; hosts put names of their own there too."""
    return isinstance(source_event_id, str) and _EVENT_ID.match(source_event_id) is not None


def in_session(event_id: str) -> Link:
    return Link(
        type=IN_SESSION,
        source_label=EPISODE,
        source_key="sessionKey",
        target_label=SESSION,
        target_key="sessionKey",
        by="eventId",
        value=event_id,
    )


def from_episode(fact_id: str, scope_key: str) -> Link:
    return Link(
        type=FROM_EPISODE,
        source_label=FACT,
        source_key="sourceEventId",
        target_label=EPISODE,
        target_key="eventId",
        by="factId",
        value=fact_id,
        scope_key=scope_key,
    )


def supersedes(fact_id: str, scope_key: str) -> Link:
    return Link(
        type=SUPERSEDES,
        source_label=FACT,
        source_key="supersedesFactId",
        target_label=FACT,
        target_key="factId",
        by="factId",
        value=fact_id,
        scope_key=scope_key,
    )


def session_upsert(row: Mapping[str, port.Value]) -> Upsert:
    """The SESSION of an episode (its row or properties)."""
    return Upsert(label=SESSION, merge_by=("sessionKey",), row={name: row[name] for name in _SESSION_NAMES})


def mend(label: str, stand: Sequence[port.Record]) -> Steps[bool]:
    """Add what is missing at both ends of these records; whether anything was. Objects have links on order only."""
    if label not in content.ID:
        return False
    one = _mend_fact if label == FACT else _mend_episode
    return any((yield from together(one(record) for record in stand)))


def fold_sessions(sessions: Sequence[port.Record]) -> Steps[bool]:
    """Fold duplicates of one SESSION; whether there were any. Look again after it."""
    if len(sessions) < 2:
        return False
    keep, *rest = sorted(sessions, key=lambda r: r.id)
    session_key = keep.properties["sessionKey"]
    yield (
        Link(
            type=IN_SESSION,
            source_label=EPISODE,
            source_key="sessionKey",
            target_label=SESSION,
            target_key="sessionKey",
            by="sessionKey",
            value=session_key,  # type: ignore[arg-type]
        ),
    )
    has, *others = yield tuple(Edges(label=SESSION, record_id=r.id, into=True) for r in (keep, *rest))
    kept = _sources(has, IN_SESSION)
    done = tuple(
        Delete(label=SESSION, record_id=record.id)
        for record, edges in zip(rest, others, strict=True)
        if _sources(edges, IN_SESSION) <= kept
    )
    if done:
        yield done
    return True


def _mend_episode(record: port.Record) -> Steps[bool]:
    id_: Any = record.get("eventId")
    scope_key: Any = record.get("scopeKey")
    sessions, facts, out = yield (
        Find(label=SESSION, key="sessionKey", value=_text(record, "sessionKey")),
        Find(label=FACT, key="sourceEventId", value=id_),
        Edges(label=EPISODE, record_id=record.id),
    )
    folded = yield from fold_sessions(sessions)
    mends: list[Request] = []
    keep = content.smallest(sessions)
    if keep is not None:
        if keep.id not in _targets(out, IN_SESSION):
            mends.append(in_session(id_))
    elif all(record.get(name) is not None for name in _SESSION_NAMES):  # RushDB 2.11 hides some values when read
        mends += (session_upsert(record.properties), in_session(id_))
    naming = content.standing(facts, FACT, scope_key)
    mends += yield from _unlinked(EPISODE, record, naming, FROM_EPISODE)
    if mends:
        yield tuple(mends)
    return folded or bool(mends)


def _mend_fact(record: port.Record) -> Steps[bool]:
    id_: Any = record.get("factId")
    scope_key: Any = record.get("scopeKey")
    source, old = _text(record, "sourceEventId"), _text(record, "supersedesFactId")
    looks: list[Request] = [
        Edges(label=FACT, record_id=record.id),
        Find(label=FACT, key="supersedesFactId", value=id_),
    ]
    if is_event_id(source):
        looks.append(Find(label=EPISODE, key="eventId", value=source))
    if old:
        looks.append(Find(label=FACT, key="factId", value=old))
    out, naming, *ends = yield tuple(looks)
    mends: list[Request] = []
    if is_event_id(source):
        episodes = content.standing(ends.pop(0), EPISODE, scope_key)
        if not {e.id for e in episodes} <= _targets(out, FROM_EPISODE):
            mends.append(from_episode(id_, scope_key))
    if old:
        facts = content.standing(ends.pop(0), FACT, scope_key)
        if not {f.id for f in facts} <= _targets(out, SUPERSEDES):
            mends.append(supersedes(id_, scope_key))
    mends += yield from _unlinked(FACT, record, content.standing(naming, FACT, scope_key), SUPERSEDES)
    if mends:
        yield tuple(mends)
    return bool(mends)


def _unlinked(label: str, record: port.Record, naming: Sequence[port.Record], type_: str) -> Steps[list[Request]]:
    """The links that those who name this record still need."""
    if not naming:
        return []
    (into,) = yield (Edges(label=label, record_id=record.id, into=True),)
    linked = _sources(into, type_)
    link = from_episode if type_ == FROM_EPISODE else supersedes
    return [link(r.properties["factId"], record.properties["scopeKey"]) for r in naming if r.id not in linked]  # type: ignore[arg-type]


def _text(record: port.Record, name: str) -> str:
    """A key that may not be there, or of no type of ours; "" finds nothing."""
    value = record.get(name)
    return value if isinstance(value, str) else ""


def _targets(edges: Sequence[port.Edge], type_: str) -> set[str]:
    return {edge.target_id for edge in edges if edge.type == type_}


def _sources(edges: Sequence[port.Edge], type_: str) -> set[str]:
    return {edge.source_id for edge in edges if edge.type == type_}
