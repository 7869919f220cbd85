"""Links that a host ordered, between two contents of one scope: kept as marks on both ends, hung up as edges.

An order names a type and two ends, each by label and key: eventId, factId, entityKey, taskKey or artifactKey. It is
written down as two marks, one on each end, so that whoever settles an end finds it by the look it makes anyway:

    {what: "link:<TYPE>:out:<label of the other end>", target: source's key, by: target's key}
    {what: "link:<TYPE>:in:<label of the other end>",  target: target's key, by: source's key}

Edges are added when both ends are there, in whatever order they came, and by whoever sees one missing. A thing's key
has several versions: each of them that is there gets the edge, and a reader takes the active one. A mark is kept for
good, as all marks are: what is ordered twice is ordered once, and there is no order to undo a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from producer import errors
from producer.convergence import content, marks
from producer.convergence.requests import Edges, Find, Link, Request, Steps, together
from producer.store import port

__all__ = ["LABELS", "RESERVED", "Ends", "ends_of", "mend", "mend_pair", "write"]

LABELS = {**content.ID, **content.OBJECT_KEY}
RESERVED = frozenset({"IN_SESSION", "FROM_EPISODE", "SUPERSEDES"})
_TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")
_KEY = re.compile(r"[0-9a-f]{64}\Z")
_WHAT = re.compile(r"link:([A-Z][A-Z0-9_]{0,63}):(in|out):([A-Z_]+)\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """What is to be linked to what."""

    type: str
    source_label: str
    source: str
    target_label: str
    target: str
    scope_key: str


def ends_of(order: Mapping[str, Any], scope_key: str) -> Ends:
    """The ends that an order names. Raises `errors.ContractViolation`."""
    type_ = order.get("type")
    if not isinstance(type_, str) or not _TYPE.match(type_) or type_ in RESERVED:
        raise errors.ContractViolation("is no name of a link of the host's own", field="order.type")
    (source_label, source), (target_label, target) = _end(order, "from"), _end(order, "to")
    if (source_label, source) == (target_label, target):
        raise errors.ContractViolation("links a record to itself", field="order.to")
    return Ends(
        type=type_,
        source_label=source_label,
        source=source,
        target_label=target_label,
        target=target,
        scope_key=scope_key,
    )


def write(ends: Ends, at: str) -> Steps[None]:
    """Return once the marks on both ends were found in the store."""
    out, into = f"link:{ends.type}:out:{ends.target_label}", f"link:{ends.type}:in:{ends.source_label}"
    said = (
        marks.Mark(what=out, target=ends.source, by=ends.target, scope_key=ends.scope_key, at=at),
        marks.Mark(what=into, target=ends.target, by=ends.source, scope_key=ends.scope_key, at=at),
    )
    yield from together(marks.write(mark, cached=False) for mark in said)


def mend(label: str, stand: Sequence[port.Record], on: Iterable[marks.Mark]) -> Steps[bool]:
    """Add the edges that these marks ask for at the contents that stand; whether anything was missing."""
    found = {ends: None for mark in on for record in stand if (ends := _asked(label, record, mark)) is not None}
    if not found:
        return False
    return any((yield from together(mend_pair(ends) for ends in found)))


def mend_pair(ends: Ends) -> Steps[bool]:
    """Add the edges between what is there of both ends; whether anything was missing. Look again after it."""
    sources, targets = yield (
        Find(label=ends.source_label, key=LABELS[ends.source_label], value=ends.source),
        Find(label=ends.target_label, key=LABELS[ends.target_label], value=ends.target),
    )
    sources = content.standing(sources, ends.source_label, ends.scope_key)
    targets = content.standing(targets, ends.target_label, ends.scope_key)
    if not sources or not targets:
        return False
    edges = yield tuple(Edges(label=ends.source_label, record_id=record.id) for record in sources)
    wanted = {record.id for record in targets}
    if all(wanted <= {edge.target_id for edge in out if edge.type == ends.type} for out in edges):
        return False
    link: Request = Link(
        type=ends.type,
        source_label=ends.source_label,
        source_key="scopeKey",  # joined by what both have in common
        target_label=ends.target_label,
        target_key="scopeKey",
        by=LABELS[ends.source_label],
        value=ends.source,
        scope_key=ends.scope_key,
        target_by=LABELS[ends.target_label],
        target_value=ends.target,
    )
    yield (link,)
    return True


def _asked(label: str, record: port.Record, mark: marks.Mark) -> Ends | None:
    """What a mark asks of a record, if it is a link of its scope that starts or ends there."""
    found = _WHAT.match(mark.what)
    key = record.get(LABELS[label])
    if found is None or found[3] not in LABELS or mark.target != key or mark.scope_key != record.get("scopeKey"):
        return None
    mine, other = (label, mark.target), (found[3], mark.by)
    (source_label, source), (target_label, target) = (mine, other) if found[2] == "out" else (other, mine)
    return Ends(
        type=found[1],
        source_label=source_label,
        source=source,
        target_label=target_label,
        target=target,
        scope_key=mark.scope_key,
    )


def _end(order: Mapping[str, Any], name: str) -> tuple[str, str]:
    end = order.get(name)
    match end:
        case {"label": str(label), "key": str(key), **others} if not others and label in LABELS and _KEY.match(key):
            return label, key
    raise errors.ContractViolation("names no record by label and key", field=f"order.{name}")
