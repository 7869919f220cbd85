"""Content records: what an event or order says, as it is stored. It never changes and never says whether it is current.

    EPISODE                  merged by eventId, contentHash
    MEMORY_FACT              merged by factId, contentHash; without `active`, which is part of the verdict
    ENTITY, TASK, ARTIFACT   merged by entityKey, taskKey or artifactKey, and contentHash, which is the version's id;
                             without `active`

plus scopeKey, sessionKey and lineKey where known. A record without contentHash or scopeKey was written by another
adapter: it is never written to, only deleted when it was forgotten. No property of a record that was read is sure to be
there, or of its type: others write to the same store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from producer import identity, keys
from producer.convergence.requests import MARK
from producer.store import port

__all__ = [
    "ARTIFACT",
    "BY",
    "ENTITY",
    "EPISODE",
    "FACT",
    "ID",
    "MARK",
    "OBJECT_KEY",
    "SESSION",
    "TASK",
    "TEXT",
    "copies",
    "id_name",
    "is_ours",
    "label_of",
    "merge_by",
    "row_of",
    "scope_of",
    "standing",
    "time_of",
    "whole",
]

EPISODE = "EPISODE"
FACT = "MEMORY_FACT"
SESSION = "SESSION"
ENTITY, TASK, ARTIFACT = "ENTITY", "TASK", "ARTIFACT"
ID = {EPISODE: "eventId", FACT: "factId"}  # of events
OBJECT_KEY = {ENTITY: "entityKey", TASK: "taskKey", ARTIFACT: "artifactKey"}  # of all versions of one thing
BY = {EPISODE: "supersededByEventId", FACT: "supersededByFactId", **dict.fromkeys(OBJECT_KEY, "supersededByHash")}
TEXT = {EPISODE: "summary", FACT: "text"}  # the property that carries the external vector

_TIMES = ("observedAt", "validFrom", "validUntil")


def label_of(event: Mapping[str, Any]) -> str:
    return FACT if event["eventType"] == "fact" else EPISODE


def time_of(event: Mapping[str, Any]) -> str:
    """When it began to hold: what competes on a line or among rivals."""
    return identity.normal_time(event["validFrom" if event["eventType"] == "fact" else "observedAt"])


def id_name(label: str) -> str:
    """The property that holds the id which marks name: of an object it is the version's."""
    return ID.get(label, "contentHash")


def merge_by(label: str) -> tuple[str, ...]:
    """Another scope's or another content's event with the same id can never overwrite a record."""
    return (OBJECT_KEY.get(label) or ID[label], "contentHash")


def row_of(event: Mapping[str, Any], *, scope_key: str, session_key: str, line_key: str) -> dict[str, port.Value]:
    """The content row of a plain event. Raises `errors.ContractViolation` for a time that is none."""
    row = {name: value for name, value in event.items() if value is not None and name != "active"}
    for name in _TIMES:
        if name in row:
            row[name] = identity.normal_time(row[name])
    row["contentHash"] = keys.content_hash(event)
    row["scopeKey"] = scope_key
    if session_key:
        row["sessionKey"] = session_key
    if line_key:
        row["lineKey"] = line_key
    return row


def is_ours(record: port.Record) -> bool:
    """Whether it carries our keys; another adapter may have a contentHash of its own."""
    return isinstance(record.get("contentHash"), str) and isinstance(record.get("scopeKey"), str)


def scope_of(record: port.Record) -> str | None:
    """The scopeKey of a record, also of another adapter's; None when it does not carry the five fields."""
    if is_ours(record):
        return record.get("scopeKey")
    if any(record.get(name) is None for name in keys.SCOPE_FIELDS):
        return None
    return keys.scope_key(record.properties)


def copies(records: Iterable[port.Record]) -> list[list[port.Record]]:
    """Our records of one id and scope, by content: the content that stands first, in each the survivor first."""
    groups: dict[str, list[port.Record]] = {}
    for record in sorted((r for r in records if is_ours(r)), key=_place):
        groups.setdefault(record.properties["contentHash"], []).append(record)  # type: ignore[arg-type]
    return list(groups.values())


def standing(records: Iterable[port.Record], label: str, scope_key: str) -> list[port.Record]:
    """Of our records of one scope the one per id that stands."""
    best: dict[str, port.Record] = {}
    for record in records:
        if record.get("scopeKey") == scope_key and is_ours(record):
            id_ = record.get(id_name(label))
            if isinstance(id_, str) and (id_ not in best or _place(record) < _place(best[id_])):
                best[id_] = record
    return list(best.values())


def whole(label: str, record: port.Record, verdict: Mapping[str, port.Value]) -> dict[str, port.Value]:
    """A row that writes a verdict, with the whole content that was seen, so that no late write leaves half a record."""
    return {**record.properties, **verdict}


def smallest(records: Sequence[port.Record]) -> port.Record | None:
    return min(records, key=lambda r: r.id, default=None)


def _place(record: port.Record) -> tuple[str, str]:
    return (record.properties["contentHash"], record.id)  # type: ignore[return-value]
