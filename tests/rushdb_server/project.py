"""One RushDB project: what its records do, whichever wire form asks. A skin over the SQLite adapter.

The adapter speaks the store port; a project adds what RushDB knows beyond it: lists, value types, merge keys that a row
may lack, rows that meet in one batch, rewriting, a caller's own record ids, finds over several labels, related records.
For that, records carry properties of ours (`_ID`, `_TYPES`, `_LINK`) and the file holds records of ours (`OUR_LABELS`),
neither of which a client ever sees.

Stricter than RushDB 2.11 where its weakness is a race: an upsert is one transaction, and what was answered is on disk.
Duplicates and lost commits come from fault switches only, so that a test decides when they happen.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from producer.store import port, sqlite

from . import values
from .answers import Refusal, database_error, invalid, not_served
from .wheres import NOTHING, translate

FIND_LIMIT_DEFAULT = 100
OUR_LABELS = frozenset({"RUSHDB_SERVER_LABEL", "RUSHDB_SERVER_INDEX"})

_ID = "rs~id"  # the record id that clients know, where it is not the store's
_TYPES = "rs~types"  # JSON of the types that do not follow from the values
_LINK = "rs~link"  # a value that two records share so that the port, which links by key, can link just these
_OUR_PROPERTIES = frozenset({_ID, _TYPES, _LINK})


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A record as clients know it."""

    id: str
    label: str
    properties: Mapping[str, Any]
    types: Mapping[str, str]
    score: float | None = None


class Project:
    """Safe to share between threads. `effect` of the writing calls is a fault's: `now`, `never` (the answer is worked
    out, nothing is written) or `double` (an upsert creates records beside those that it found or made)."""

    def __init__(self, store: sqlite.SqliteStore) -> None:
        self.store = store
        self._lock = threading.RLock()  # over calls that need several calls of the store
        self._labels = {str(record.properties["name"]): None for record in self._all("RUSHDB_SERVER_LABEL", {})}
        self._internal_ids = {
            str(record.properties[_ID]): record.id
            for label in self._labels
            for record in self._all(label, {_ID: {"$exists": True}})
        }
        self._public_ids = {internal: public for public, internal in self._internal_ids.items()}

    @property
    def labels(self) -> Sequence[str]:
        with self._lock:
            return list(self._labels)

    # -- writing -----------------------------------------------------------------------------------------------------

    def create(self, label: str, rows: Sequence[Mapping[str, Any]], *, stringify: bool, effect: str) -> list[Row]:
        stored = [_stored(row, stringify=stringify) for row in rows]
        if effect == "never":
            return [self.row(_unstored(label, row)) for row in stored]
        self._know(label)
        return list(map(self.row, self.store.create(label, stored)))

    def create_as(
        self, label: str, record_id: str, row: Mapping[str, Any], merge_by: Sequence[str], effect: str
    ) -> Row:
        """The upsert in the typed form: if it creates, then under the caller's id, which no other record may have."""
        with self._lock:
            if self._matches(label, row, merge_by):
                return self.upsert(label, [row], merge_by, stringify=False, rewrite=False, effect=effect)[0]
            if self.get(record_id) is not None:
                raise database_error()
            return self._create_under(record_id, label, _stored(row, stringify=False), effect)

    def upsert(
        self,
        label: str,
        rows: Sequence[Mapping[str, Any]],
        merge_by: Sequence[str],
        *,
        stringify: bool,
        rewrite: bool,
        effect: str,
    ) -> list[Row]:
        """One row of the answer per row, or per key where an existing record takes several rows of the batch."""
        with self._lock:
            rows, creates = self._sorted_out(label, rows, merge_by)
            answer: dict[int, Row] = {}
            for place, found in zip(
                creates, self.create(label, [rows[i] for i in creates], stringify=stringify, effect=effect), strict=True
            ):
                answer[place] = found
            upserts = [place for place in range(len(rows)) if place not in answer]
            if rewrite:
                for place in upserts:
                    answer[place] = self._rewrite(label, rows[place], merge_by, stringify, effect)
            else:
                for names, places in _by_names(rows, upserts, merge_by):
                    found_rows = self._append(label, [rows[i] for i in places], names, stringify, effect)
                    answer.update(zip(places, found_rows, strict=True))
            if effect == "double":
                self.create(label, [rows[i] for i in upserts], stringify=stringify, effect="now")
        return [answer[place] for place in sorted(answer)]

    def replace(
        self, record_id: str, label: str | None, properties: Mapping[str, Any], *, merge: bool, effect: str
    ) -> Row:
        """PUT, or PATCH when `merge`: the whole record anew under its id, without its vectors."""
        with self._lock:
            record = self._stored_record(record_id)
            if record is None:
                message = f"Record with id '{record_id}' not found"
                raise Refusal(404, message)
            stored = {**(_own(record.properties) if merge else {}), **_stored(properties, stringify=False)}
            if label not in (None, record.label):
                raise not_served("another label for a record")
            return self._replace_stored(record, stored, effect)

    def delete(self, record_id: str, *, effect: str) -> None:
        record = self._stored_record(record_id)
        if record is not None and effect != "never":
            self.store.delete(record.label, record.id)

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, record_id: str) -> Row | None:
        record = self._stored_record(record_id)
        return None if record is None else self.row(record)

    def find(
        self, labels: Sequence[str], where: Any, *, order: Any = None, limit: int = FIND_LIMIT_DEFAULT, skip: int = 0
    ) -> tuple[list[Row], int]:
        """The rows of one page, and how many match in all. No labels: every label."""
        stored_where = self.where(where)
        order_by = _order(order)
        wanted = self._existing(labels)
        if len(wanted) == 1:
            page = self.store.find(wanted[0], stored_where, order_by=order_by, limit=limit, skip=skip)
            return list(map(self.row, page.records)), page.total
        if skip + limit > port.FIND_LIMIT:
            raise not_served(f"a page beyond {port.FIND_LIMIT} records over several labels")
        pages = [self.store.find(label, stored_where, order_by=order_by, limit=skip + limit) for label in wanted]
        records = [record for page in pages for record in page.records]
        for name, direction in reversed(order_by):
            records.sort(
                key=lambda record: record.id if name == "__id" else _sort_key(record.get(name)),
                reverse=direction == "desc",
            )
        return list(map(self.row, records[skip : skip + limit])), sum(page.total for page in pages)

    def related_to(self, record_id: str) -> dict[str, Any]:
        """The where (as clients send it) of the records that have any edge with this one."""
        record = self._stored_record(record_id)
        if record is None:
            return {"__nothing": True}
        here = {"$id": record.id}
        ids = {edge.target_id for edge in self.store.edges(record.label, here)}
        ids |= {edge.source_id for edge in self.store.edges_into(record.label, here)}
        return {"$id": {"$in": sorted(map(self.public_id, ids))}} if ids else {"__nothing": True}

    def where(self, where: Any) -> dict[str, Any]:
        """A client's where as the store takes it."""
        return translate(where, internal=self.internal_id, related=self._related)

    def count(self, label: str, where: Any) -> int:
        return self.store.find(label, self.where(where), limit=1).total

    # -- edges -------------------------------------------------------------------------------------------------------

    def link_many(self, spec: port.LinkSpec, *, effect: str) -> None:
        if effect != "never":
            self.store.link(spec)

    def attach(self, source_id: str, target_ids: Iterable[str], kind: str, *, effect: str) -> None:
        """Edges from one record to others; ids that are not there are skipped in silence."""
        with self._lock:
            source = self._stored_record(source_id)
            for target_id in target_ids:
                target = self._stored_record(target_id)
                if source is None or target is None or effect == "never":
                    continue
                shared = uuid.uuid4().hex
                for record in (source, target):
                    names = [name for name in record.properties if name != _LINK]
                    self.store.upsert(record.label, [{**record.properties, _LINK: shared}], names)
                self.store.link(
                    port.LinkSpec(
                        type=kind,
                        source_label=source.label,
                        source_key=_LINK,
                        source_where={"$id": source.id},
                        target_label=target.label,
                        target_key=_LINK,
                        target_where={"$id": target.id},
                    )
                )

    def edges(
        self, *, source: tuple[Any, Sequence[str]], target: tuple[Any, Sequence[str]], kind: str | None = None
    ) -> list[port.Edge]:
        """Edges by the where and the labels of their two ends, by source, type and target."""
        (source_where, source_labels), (target_where, target_labels) = source, target
        if target_where and not source_where and not source_labels:
            found = [
                edge
                for label in self._existing(target_labels)
                for edge in self.store.edges_into(label, self.where(target_where))
            ]
        else:
            found = [
                edge
                for label in self._existing(source_labels)
                for edge in self.store.edges(label, self.where(source_where))
            ]
            if target_where:
                allowed = {
                    (edge.source_id, edge.type, edge.target_id) for edge in self.edges(source=({}, []), target=target)
                }
                found = [
                    edge
                    for edge in found
                    if (self.public_id(edge.source_id), edge.type, self.public_id(edge.target_id)) in allowed
                ]
        found = [
            edge
            for edge in found
            if kind in (None, edge.type) and (not target_labels or edge.target_label in target_labels)
        ]
        return sorted(
            (self._public_edge(edge) for edge in found), key=lambda edge: (edge.source_id, edge.type, edge.target_id)
        )

    # -- ids ---------------------------------------------------------------------------------------------------------

    def internal_id(self, record_id: str) -> str:
        return self._internal_ids.get(record_id, record_id)

    def public_id(self, record_id: str) -> str:
        return self._public_ids.get(record_id, record_id)

    def _public_edge(self, edge: port.Edge) -> port.Edge:
        if not self._public_ids:
            return edge
        return port.Edge(
            type=edge.type,
            source_id=self.public_id(edge.source_id),
            target_id=self.public_id(edge.target_id),
            source_label=edge.source_label,
            target_label=edge.target_label,
        )

    # -- the parts of an upsert --------------------------------------------------------------------------------------

    def _sorted_out(
        self, label: str, rows: Sequence[Mapping[str, Any]], merge_by: Sequence[str]
    ) -> tuple[list[Mapping[str, Any]], list[int]]:
        """The rows to write, and the places of those that no record can match. Rows of one key are merged when a record
        has it already, and are created one by one when none has."""
        keys = [key_of(row, merge_by) for row in rows]
        places: dict[Any, list[int]] = {}
        for place, key in enumerate(keys):
            if key is not None:
                places.setdefault(key, []).append(place)
        creates = {place for place, key in enumerate(keys) if key is None}
        merged: dict[int, Mapping[str, Any]] = {}
        gone: set[int] = set()
        for same in places.values():
            if len(same) > 1:
                if self._matches(label, rows[same[0]], merge_by):
                    merged[same[0]] = {name: value for place in same for name, value in rows[place].items()}
                    gone.update(same[1:])
                else:
                    creates.update(same)
        kept = [place for place in range(len(rows)) if place not in gone]
        return [merged.get(place, rows[place]) for place in kept], [
            i for i, place in enumerate(kept) if place in creates
        ]

    def _append(
        self, label: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str], stringify: bool, effect: str
    ) -> list[Row]:
        if effect == "never":
            return [self._pretended(label, row, names, stringify) for row in rows]
        self._know(label)
        stored = [_stored(row, stringify=stringify) for row in rows]
        found: list[Row] = []
        for start in range(0, len(stored), port.UPSERT_ROWS):
            batch = stored[start : start + port.UPSERT_ROWS]
            found.extend(map(self.row, self.store.upsert(label, batch, names)))
        return found

    def _pretended(self, label: str, row: Mapping[str, Any], merge_by: Sequence[str], stringify: bool) -> Row:
        """What the upsert would have answered."""
        stored = _stored(row, stringify=stringify)
        for record in self._matches(label, row, merge_by):
            return self.row(port.Record(id=record.id, label=label, properties={**record.properties, **stored}))
        return self.row(_unstored(label, stored))

    def _rewrite(
        self, label: str, row: Mapping[str, Any], merge_by: Sequence[str], stringify: bool, effect: str
    ) -> Row:
        found = self._matches(label, row, merge_by)
        if not found:
            return self.create(label, [row], stringify=stringify, effect=effect)[0]
        rewritten = [self._replace_stored(record, _stored(row, stringify=stringify), effect) for record in found]
        return rewritten[0]

    def _replace_stored(self, record: port.Record, stored: Mapping[str, Any], effect: str) -> Row:
        if self.store.edges(record.label, {"$id": record.id}) or self.store.edges_into(
            record.label, {"$id": record.id}
        ):
            raise not_served("rewriting a record that has edges: the test server would lose them")
        if effect != "never":
            self.store.delete(record.label, record.id)
        return self._create_under(self.public_id(record.id), record.label, stored, effect)

    def _create_under(self, record_id: str, label: str, stored: Mapping[str, Any], effect: str) -> Row:
        stored = {**stored, _ID: record_id}
        if effect == "never":
            return self.row(_unstored(label, stored))
        self._know(label)
        record = self.store.create(label, [stored])[0]
        self._internal_ids[record_id] = record.id
        self._public_ids[record.id] = record_id
        return self.row(record)

    def _matches(self, label: str, row: Mapping[str, Any], merge_by: Sequence[str]) -> Sequence[port.Record]:
        names = merge_by or list(row)
        if not names or any(name not in row for name in names):
            return ()
        return self.store.find(label, {name: values.to_store(row[name]) for name in names}).records

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _know(self, label: str) -> None:
        if label in self._labels:
            return
        with self._lock:
            self.store.upsert("RUSHDB_SERVER_LABEL", [{"name": label}], ["name"])
            self._labels[label] = None

    def _existing(self, labels: Sequence[str]) -> list[str]:
        return [label for label in dict.fromkeys(labels) if label not in OUR_LABELS] if labels else list(self.labels)

    def _stored_record(self, record_id: str) -> port.Record | None:
        record = self.store.get(self.internal_id(record_id))
        return None if record is None or record.label in OUR_LABELS else record

    def _related(self, label: str, clause: Mapping[str, Any]) -> Mapping[str, Any]:
        """The where of the records with an edge to one of `label` under the clause's conditions."""
        relation = clause.get("$relation") or {}
        if not isinstance(relation, Mapping) or not {"type", "direction"}.issuperset(relation):
            raise not_served("this $relation")
        if label.startswith("$") or label not in self._labels:
            return NOTHING  # an operator that 2.11 does not know is a label that no record has
        rest = self.where({name: value for name, value in clause.items() if name != "$relation"})
        direction = relation.get("direction")
        edges: list[tuple[str, port.Edge]] = []
        if direction != "in":
            edges += [(edge.source_id, edge) for edge in self.store.edges_into(label, rest)]
        if direction != "out":
            edges += [(edge.target_id, edge) for edge in self.store.edges(label, rest)]
        ids = {record_id for record_id, edge in edges if relation.get("type") in (None, edge.type)}
        return {"$id": {"$in": sorted(ids)}} if ids else NOTHING

    def _all(self, label: str, where: Mapping[str, Any]) -> list[port.Record]:
        return list(pages_of(lambda skip: self.store.find(label, where, skip=skip)))

    def row(self, record: port.Record) -> Row:
        properties, types = {}, {}
        for name, value in record.properties.items():
            if name in _OUR_PROPERTIES:
                continue
            value = values.from_store(value)
            properties[name] = value
            types[name] = values.type_of(value)
        told = record.properties.get(_TYPES)
        if told is not None:
            types.update(json.loads(str(told)))
        public = str(record.properties.get(_ID, record.id))
        return Row(id=public, label=record.label, properties=properties, types=types, score=record.score)


def public_records(store: sqlite.SqliteStore, label: str) -> list[port.Record]:
    """The records of a label as clients know them, by record id."""
    records = pages_of(lambda skip: store.find(label, {}, skip=skip))
    return [
        port.Record(
            id=str(record.get(_ID) or record.id),
            label=label,
            properties={name: values.from_store(value) for name, value in _own(record.properties).items()},
        )
        for record in records
    ]


def pages_of(find: Callable[[int], port.Page]) -> Iterable[port.Record]:
    """Every record of a find, page by page; `find` takes how many to skip."""
    seen = 0
    while True:
        page = find(seen)
        yield from page.records
        seen += len(page.records)
        if seen >= page.total or not page.records:
            return


def _own(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in _OUR_PROPERTIES}


def _stored(row: Mapping[str, Any], *, stringify: bool) -> dict[str, Any]:
    stored = {name: values.to_store(value) for name, value in row.items()}
    if stringify:
        told = {name: "string" for name, value in row.items() if values.type_of(value) != "string"}
        if told:
            stored[_TYPES] = json.dumps(told)
    return stored


def _unstored(label: str, stored: Mapping[str, Any]) -> port.Record:
    """A record that was never written, with an id that looks like one."""
    record_id = uuid.UUID(int=(int(time.time() * 1000) << 80) | (uuid.uuid4().int & ((1 << 80) - 1)))
    return port.Record(id=str(record_id), label=label, properties=stored)


def key_of(row: Mapping[str, Any], merge_by: Sequence[str]) -> Any:
    """What rows that meet in one record have in common; None for a row that meets none."""
    names = merge_by or sorted(row)
    if not names or any(name not in row for name in names):
        return None
    return json.dumps([[name, row[name]] for name in names])


def _by_names(
    rows: Sequence[Mapping[str, Any]], places: Iterable[int], merge_by: Sequence[str]
) -> Iterable[tuple[list[str], list[int]]]:
    """The places, by the names that their rows are merged by (the row's own where the caller named none)."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place in places:
        groups.setdefault(tuple(merge_by or sorted(rows[place])), []).append(place)
    return [(list(names), group) for names, group in groups.items()]


def _order(order: Any) -> list[tuple[str, str]]:
    """RushDB's `orderBy`; newest first when there is none."""
    if order in (None, {}):
        return [("__id", "desc")]
    if isinstance(order, str):
        order = {"__id": order}
    if not isinstance(order, Mapping) or not all(direction in ("asc", "desc") for direction in order.values()):
        raise invalid("value does not match any of the allowed types")
    return list(order.items())


def _sort_key(value: Any) -> tuple[int, Any]:
    """Values of several sorts in one order; those that are missing come last."""
    if value is None:
        return 3, 0
    return (0, value) if isinstance(value, str) else (1, value) if isinstance(value, bool) else (2, value)
