"""What a reader may show of the records that came back: one per id, none that is superseded or retracted.

Readers of facts filter `active: true` in the where; these functions say what to drop of the rest. A record that
another adapter wrote (no contentHash) carries no verdict of ours: look for marks and content under its id
(`foreign_ids` says which), then `without_ended`.
"""

from __future__ import annotations

from collections.abc import Iterable

from producer.convergence import content, marks
from producer.convergence.content import EPISODE, FACT
from producer.store import port

__all__ = ["foreign_ids", "has_ended", "keep", "without_ended"]


def has_ended(record: port.Record) -> bool:
    """Whether a record names a superseder or a retraction, whatever its flag says: a late write can leave both."""
    by = content.BY.get(record.label)
    return (by is not None and record.get(by) is not None) or record.get("retractedAt") is not None


def keep(records: Iterable[port.Record]) -> list[port.Record]:
    """The records to show, where the first copy of each came: of all copies of an id the one that stands (smallest
    contentHash, record id; ours before another adapter's), nothing of an id of which any copy has ended, no fact that
    is not active. Records of other labels pass."""
    best: dict[tuple[str, str], port.Record] = {}
    ended: set[tuple[str, str]] = set()
    for record in records:
        place = _place(record)
        if has_ended(record):
            ended.add(place)
        elif record.label == FACT and record.get("active") is not True:
            continue
        elif place not in best or _rank(record) < _rank(best[place]):
            best[place] = record
    return [record for place, record in best.items() if place not in ended]


def foreign_ids(records: Iterable[port.Record]) -> dict[str, list[str]]:
    """Ids of records by other adapters, by label: find the marks on them (`target`) and our content under them."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        id_ = _id(record)
        if record.label in content.ID and not content.is_ours(record) and id_ is not None:
            found.setdefault(record.label, {})[id_] = None
    return {label: list(ids) for label, ids in found.items()}


def without_ended(
    records: Iterable[port.Record], *, marks_found: Iterable[port.Record], ours: Iterable[port.Record]
) -> list[port.Record]:
    """`records` without those by other adapters on whose id there is a mark of their scope, or content of ours."""
    said: dict[str, list[marks.Mark]] = {}
    for mark in marks.read(marks_found):
        said.setdefault(mark.target, []).append(mark)
    there = {(*_place(record), content.scope_of(record)) for record in ours if content.is_ours(record)}
    return [record for record in records if not _is_replaced(record, said, there)]


def _is_replaced(
    record: port.Record, said: dict[str, list[marks.Mark]], there: set[tuple[str, str, str | None]]
) -> bool:
    if record.label not in (EPISODE, FACT) or content.is_ours(record):
        return False
    scope_key = content.scope_of(record)
    if scope_key is None:
        return True  # no scope is proven
    id_ = _id(record)
    marked = id_ is not None and any(
        mark.what in marks.ENDING and marks.counts(mark, scope_key) for mark in said.get(id_, ())
    )
    return marked or (*_place(record), scope_key) in there


def _place(record: port.Record) -> tuple[str, str]:
    return record.label, _id(record) or record.id


def _id(record: port.Record) -> str | None:
    name = content.ID.get(record.label)
    value = record.get(name) if name else None
    return value if isinstance(value, str) and value else None


def _rank(record: port.Record) -> tuple[bool, str, str]:
    return (not content.is_ours(record), str(record.get("contentHash") or ""), record.id)
