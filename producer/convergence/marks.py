"""Marks say of an id, a line or a group that it was superseded, retracted or forgotten. They never change. Those that
say of two keys that they are linked are read by `producer.convergence.links` alone.

    MEMORY_MARK {markKey, what, target, by, scopeKey, at}

A mark counts only for content of its own scope; an operator's forgetting (scopeKey "*") counts in every scope. What is
superseded is read as one claim per superseder, with its smallest time, so that one fact captured by two clocks is one
rival. A mark that is already there counts, whatever its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from producer import errors, keys
from producer.convergence.content import MARK
from producer.convergence.requests import CacheDrop, Find, Steps, Upsert
from producer.store import port

__all__ = [
    "ENDING",
    "EVERYWHERE",
    "EXPIRY",
    "FORGOTTEN",
    "RETRACTED",
    "SUPERSEDED",
    "Claim",
    "Mark",
    "Standing",
    "claims",
    "counts",
    "expired_at",
    "forgotten",
    "is_there",
    "read",
    "retracted_at",
    "standing",
    "write",
]

SUPERSEDED = "superseded"
RETRACTED = "retracted"
FORGOTTEN = "forgotten"
ENDING = frozenset({SUPERSEDED, RETRACTED, FORGOTTEN})  # what any reader must respect; others are links
EVERYWHERE = "*"
EXPIRY = "expired"  # who forgot a fact whose time was over; no order's id looks like this
_WRITES = 20  # of one mark: so many lies in a row are none

Claim = tuple[str, str]  # (at, by): the greatest stands


@dataclass(frozen=True, slots=True)
class Mark:
    what: str
    target: str
    by: str
    scope_key: str
    at: str

    def row(self) -> dict[str, port.Value]:
        key = keys.mark_key(what=self.what, target=self.target, by=self.by, scope_key=self.scope_key, at=self.at)
        return {
            "markKey": key,
            "what": self.what,
            "target": self.target,
            "by": self.by,
            "scopeKey": self.scope_key,
            "at": self.at,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What the marks on one id say in one scope."""

    claims: frozenset[Claim]
    retracted_at: str | None
    forgotten: bool


def read(records: Iterable[port.Record]) -> list[Mark]:
    """The marks of a look; a record that is no whole mark is nobody's mark."""
    found = []
    for record in records:
        says = record.properties
        values = [says.get(name) for name in ("what", "target", "by", "scopeKey", "at")]
        if all(isinstance(value, str) for value in values):
            found.append(Mark(*values))  # type: ignore[arg-type]
    return found


def counts(mark: Mark, scope_key: str) -> bool:
    """Whether a mark counts for content of this scope."""
    return mark.scope_key == scope_key or (mark.scope_key == EVERYWHERE and mark.what == FORGOTTEN)


def claims(found: Iterable[Mark], scope_key: str) -> frozenset[Claim]:
    """Who supersedes the target in this scope."""
    first: dict[str, str] = {}
    for mark in found:
        if mark.what == SUPERSEDED and counts(mark, scope_key):
            first[mark.by] = min(mark.at, first.get(mark.by, mark.at))
    return frozenset((at, by) for by, at in first.items())


def retracted_at(found: Iterable[Mark], scope_key: str) -> str | None:
    return min((m.at for m in found if m.what == RETRACTED and counts(m, scope_key)), default=None)


def forgotten(found: Iterable[Mark], scope_key: str) -> bool:
    return any(m.what == FORGOTTEN and counts(m, scope_key) for m in found)


def expired_at(found: Iterable[Mark], scope_key: str) -> str | None:
    """The validUntil of a fact that was removed when its time was over; None of one that was forgotten on order."""
    ordered = [m for m in found if m.what == FORGOTTEN and counts(m, scope_key)]
    return min((m.at for m in ordered), default=None) if all(m.by == EXPIRY for m in ordered) else None


def standing(found: Iterable[Mark], scope_key: str) -> Standing:
    found = list(found)
    return Standing(
        claims=claims(found, scope_key),
        retracted_at=retracted_at(found, scope_key),
        forgotten=forgotten(found, scope_key),
    )


def is_there(found: Iterable[Mark], mark: Mark) -> bool:
    """Whether the same was said before, at whatever time."""
    said = (mark.what, mark.target, mark.by, mark.scope_key)
    return any((m.what, m.target, m.by, m.scope_key) == said for m in found)


def write(mark: Mark, *, cached: bool = True) -> Steps[None]:
    """Return once the mark was found in the store (an answer may be a lie); then its target leaves the recent writes.

    `cached`: the target is an id, not a line or a group. Raises `errors.StoreUnavailable` when it was written often and
    never found: RushDB 2.11 gives some names ("constructor") back as nothing, and they may stand where an id should.
    """
    for _ in range(_WRITES):
        (found,) = yield (Find(label=MARK, key="target", value=mark.target),)
        if is_there(read(found), mark):
            break
        yield (Upsert(label=MARK, merge_by=("markKey",), row=mark.row()),)
    else:
        raise errors.StoreUnavailable("no progress: a mark that was written is never found")
    if cached and mark.scope_key != EVERYWHERE:  # who settles then drops it in every scope where it was
        yield (CacheDrop(scope_key=mark.scope_key, id=mark.target),)
