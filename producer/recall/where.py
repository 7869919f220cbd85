"""What a caller may recall: the one place where scope, activity and "not this conversation" become a filter.

The same filter is sent to the store and applied here to recent writes and to the host's own journal, so that a record
cannot pass in one place and be refused in another. Every where for content is made by `within`, and holds the five
fields, never the scopeKey in their place; marks hold no content and have no fields but the scopeKey (`marks_on`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from producer import capture, keys
from producer.convergence import marks
from producer.scope import Scope

__all__ = [
    "Session",
    "copies_of",
    "episodes",
    "facts",
    "in_scope",
    "marks_by",
    "marks_of",
    "marks_on",
    "with_ids",
    "within",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """The conversation that asks, as its host names it. Its own memories are not recalled into it."""

    runtime: str
    external_session_id: str

    @classmethod
    def named(cls, runtime: str, session_id: str) -> Session:
        """The session with its id as events carry it. Raises `errors.ScopeRefused` when it names no conversation."""
        return cls(runtime=runtime, external_session_id=capture.session_id_of(session_id))

    def key(self, scope: Scope) -> str:
        """sessionKey."""
        return keys.session_key(
            runtime=self.runtime, external_session_id=self.external_session_id, scope=scope.fields()
        )


def within(scope: Scope, **conditions: Any) -> dict[str, Any]:
    """The conditions, on records of exactly this scope. A condition can never take the place of a scope field."""
    return {**conditions, **scope.fields()}


def episodes(scope: Scope, session: Session | None) -> dict[str, Any]:
    """Episodes of this scope that no later capture of the same prompt replaced."""
    where = within(scope, supersededByEventId={"$exists": False})
    if session is not None:
        where["externalSessionId"] = {"$ne": session.external_session_id}
    return where


def facts(scope: Scope, session: Session | None, *, now: str = "") -> dict[str, Any]:
    """Active facts of this scope. `now`: none that has expired by then, as far as a store can tell; `merging` has the
    last word.

    `$ne` and `$gt` skip records that lack the field, and a fact may have no session and no end. Another adapter may
    write times in another form, which is in no range: its facts pass here.
    """
    where = within(scope, active=True)
    either: list[list[dict[str, Any]]] = []
    if now:
        lasting = {"validUntil": {"$exists": False}}
        either.append([lasting, {"validUntil": {"$gt": now}}, {"contentHash": {"$exists": False}}])
    if session is not None:
        either.append([{"sessionKey": {"$exists": False}}, {"sessionKey": {"$ne": session.key(scope)}}])
    if either:
        where["$and"] = [{"$or": parts} for parts in either]
    return where


def copies_of(scope: Scope, fact_ids: Iterable[str]) -> dict[str, Any]:
    """All copies of these facts in this scope, whatever their state."""
    return within(scope, factId={"$in": sorted(fact_ids)})


def with_ids(scope: Scope, name: str, values: Iterable[str]) -> dict[str, Any]:
    """Records of this scope that carry one of these values (ids, lines) under this name, whatever their state."""
    return within(scope, **{name: {"$in": sorted(values)}})


def marks_on(scope: Scope, targets: Iterable[str]) -> dict[str, Any]:
    """Marks on these ids that count in this scope: its own, and an operator's."""
    return {"target": {"$in": sorted(targets)}, **marks_of(scope)}


def marks_by(scope: Scope, ids: Iterable[str]) -> dict[str, Any]:
    """Marks of this scope that these ids wrote: what they superseded."""
    return {"by": {"$in": sorted(ids)}, "scopeKey": scope.key}


def marks_of(scope: Scope) -> dict[str, Any]:
    """All marks that count in this scope."""
    return {"scopeKey": {"$in": [scope.key, marks.EVERYWHERE]}}


def in_scope(scope: Scope, properties: Mapping[str, Any]) -> bool:
    """Whether all five fields are there and equal, in type too (1 is not True)."""
    return all(
        type(properties.get(name)) is type(value) and properties[name] == value
        for name, value in scope.fields().items()
    )
