"""The reader's rule: which of the records that a search brought stand. Two finds at most, and only for foreign records.

The where has already asked for `active: true`, but a record may be caught between two writes of it, so: an id is
dropped when any copy names a superseder or a retraction, and of the rest one record per id stays (smallest contentHash,
then record id). A record that another adapter wrote (no contentHash) knows nothing of marks: it is dropped when its
scope holds a mark on its id, or when a record of ours with that id is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from producer.convergence.content import BY, ID, MARK
from producer.scope import Scope
from producer.store.port import Record, Store

__all__ = ["standing"]

_EVERYWHERE = "*"
_ENDED_BY = (*BY.values(), "retractedAt")


def standing(store: Store, scope: Scope, label: str, records: Sequence[Record]) -> list[Record]:
    """Those of `records` (of one label and scope) that stand, in their order."""
    name = ID[label]
    ended = {r.get(name) for r in records if any(r.get(by) is not None for by in _ENDED_BY)}
    first: dict[str, Record] = {}
    for record in records:
        id_ = record.get(name)
        if isinstance(id_, str) and id_ not in ended and (id_ not in first or _rank(record) < _rank(first[id_])):
            first[id_] = record
    foreign = sorted(id_ for id_, record in first.items() if record.get("contentHash") is None)
    for id_ in _ended_foreign(store, scope, label, foreign) if foreign else ():
        first.pop(id_, None)
    kept = {record.id for record in first.values()}
    return [record for record in records if record.id in kept]


def _rank(record: Record) -> tuple[bool, str, str]:
    content = record.get("contentHash")
    return content is None, str(content or ""), record.id  # ours before anybody else's


def _ended_foreign(store: Store, scope: Scope, label: str, ids: Sequence[str]) -> set[str]:
    marked = store.find(MARK, {"target": {"$in": list(ids)}, "scopeKey": {"$in": [scope.key, _EVERYWHERE]}})
    ours = store.find(label, {**scope.fields(), ID[label]: {"$in": list(ids)}, "contentHash": {"$exists": True}})
    return {str(r.get("target")) for r in marked.records} | {str(r.get(ID[label])) for r in ours.records}
