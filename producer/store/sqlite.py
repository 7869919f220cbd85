"""The store port on one SQLite file: the embedded default of one machine.

Safe between threads and processes. Every write is one transaction, synced to disk before the call returns; so two
upserts of one key never make two records, and a call that raised wrote nothing (unless the commit itself failed:
`outcome_unknown`). Searches are exact: the where first, then bm25 over FTS5 or the cosine of every vector that is left.
"""

# ruff: noqa: S608  (only fixed words and numbers are put into SQL; names and values are bound)

from __future__ import annotations

import json
import math
import operator
import os
import re
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from producer import errors
from producer.store import where as wheres
from producer.store import words
from producer.store.port import (
    FIND_LIMIT,
    UPSERT_ROWS,
    Capabilities,
    Edge,
    IndexSpec,
    LinkSpec,
    Page,
    Record,
    Value,
    Where,
)
from producer.store.sqlite_file import SqliteFile
from producer.store.sqlite_query import Cell, bindable, cell, condition_sql, order_sql, rows_of

__all__ = ["SqliteStore"]

RRF_K = 60  # reciprocal rank fusion, RushDB's constant
FUSION_DEPTH = 200  # of each ranking, how much is fused

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CAPABILITIES = Capabilities(name="sqlite", keyword_search=True, vector_search=True, embeds=False)


class SqliteStore:
    """`producer.store.port.Store` on one file, made (0600) by the first call that needs it.

    `timeout_s` bounds every call, waiting for other writers included. `clock` tells the wall time that record ids begin
    with. A forked child may not use its parent's store: connections do not survive a fork; start children by spawn.
    """

    def __init__(self, path: Path | str, *, timeout_s: float = 20.0, clock: Callable[[], float] = time.time) -> None:
        self._file = SqliteFile(Path(path), timeout_s)
        self._clock = clock

    # -- records -----------------------------------------------------------------------------------------------------

    def upsert(
        self, label: str, rows: Sequence[Mapping[str, Value]], merge_by: Sequence[str], *, wake: bool = False
    ) -> Sequence[Record]:
        _check_label(label)
        if not merge_by:
            raise errors.StoreRefused("an upsert needs at least one merge key")
        if wake and len(rows) != 1:
            raise errors.StoreRefused("an upsert with `wake` takes one row")
        if len(rows) > UPSERT_ROWS:
            raise errors.StoreRefused(f"an upsert takes at most {UPSERT_ROWS} rows")
        cells = [_cells(row) for row in rows]
        if any(name not in row for row in cells for name in merge_by):
            raise errors.StoreRefused("a row of an upsert lacks a merge key")
        if len({tuple(row[name] for name in merge_by) for row in cells}) != len(rows):
            raise errors.StoreRefused("two rows of an upsert have the same merge keys")
        with self._file.write() as connection:
            texts = _text_indexes(connection, label)
            return [
                self._upsert_row(connection, label, row, values, merge_by, texts)
                for row, values in zip(rows, cells, strict=True)
            ]

    def create(self, label: str, rows: Sequence[Mapping[str, Value]]) -> Sequence[Record]:
        """Beside the port: new records whatever is there, all or none."""
        _check_label(label)
        cells = [_cells(row) for row in rows]
        with self._file.write() as connection:
            texts = _text_indexes(connection, label)
            return [
                self._create_row(connection, label, row, values, texts) for row, values in zip(rows, cells, strict=True)
            ]

    def get(self, record_id: str) -> Record | None:
        """Beside the port: the record with this id, of any label."""
        with self._file.read() as connection:
            found = connection.execute("SELECT seq FROM records WHERE id = ?", (bindable(record_id),)).fetchall()
            return next(_records(connection, [seq for (seq,) in found]), None)

    def count(self, label: str | None = None) -> int:
        """Beside the port: how many records there are, of one label or of all."""
        with self._file.read() as connection:
            sql = "SELECT count(*) FROM records" + ("" if label is None else " WHERE label = ?")
            return int(connection.execute(sql, () if label is None else (label,)).fetchone()[0])

    def find(
        self,
        label: str,
        where: Where,
        *,
        limit: int = FIND_LIMIT,
        skip: int = 0,
        order_by: Sequence[tuple[str, str]] = (("__id", "asc"),),
    ) -> Page:
        _check_label(label)
        _check_limit(limit)
        if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
            raise errors.StoreRefused("skip must be a whole number of at least 0")
        order, names = order_sql(order_by)
        condition = wheres.parse(where)
        with self._file.read() as connection:
            rows = rows_of(connection, label, condition)
            # All of them in one pass: counting and cutting apart would test every record twice.
            found = connection.execute(f"SELECT r.seq {rows.sql} ORDER BY {order}", (*rows.values, *names)).fetchall()
            records = tuple(_records(connection, [seq for (seq,) in found[skip : skip + limit]]))
        return Page(records=records, total=len(found))

    def delete(self, label: str, record_id: str) -> None:
        _check_label(label)
        with self._file.write() as connection:
            found = connection.execute(
                "SELECT seq FROM records WHERE id = ? AND label = ?", (bindable(record_id), label)
            ).fetchone()
            if found is None:
                return
            (seq,) = found
            for index, _ in _text_indexes(connection, label):
                connection.execute(f"DELETE FROM words_{index:d} WHERE rowid = ?", (seq,))
            connection.execute("DELETE FROM vectors WHERE record = ?", (seq,))
            connection.execute("DELETE FROM edges WHERE source = ?", (seq,))
            connection.execute("DELETE FROM edges WHERE target = ?", (seq,))
            connection.execute("DELETE FROM cells WHERE record = ?", (seq,))
            connection.execute("DELETE FROM records WHERE seq = ?", (seq,))

    def _upsert_row(
        self,
        connection: sqlite3.Connection,
        label: str,
        row: Mapping[str, Value],
        cells: Mapping[str, Cell],
        merge_by: Sequence[str],
        texts: Sequence[tuple[int, str]],
    ) -> Record:
        first, *others = dict.fromkeys(merge_by)
        sql = (
            "SELECT r.seq, r.id, r.properties FROM cells AS c JOIN records AS r ON r.seq = c.record"
            " WHERE c.label = ? AND c.name = ? AND c.value = ?"
            + " AND EXISTS (SELECT 1 FROM cells WHERE record = c.record AND name = ? AND value = ?)" * len(others)
            + " ORDER BY r.id"
        )
        values = [label, first, cells[first], *chain.from_iterable((name, cells[name]) for name in others)]
        found = connection.execute(sql, values).fetchall()
        if not found:
            return self._create_row(connection, label, row, cells, texts)
        merged = []
        for seq, record_id, properties in found:
            old = json.loads(properties)
            new = {**old, **row}
            if (text := _json(new)) != properties:
                connection.execute("UPDATE records SET properties = ? WHERE seq = ?", (text, seq))
                _put_cells(connection, seq, label, cells)
                for index, name in texts:
                    if name in row and new[name] != old.get(name):
                        connection.execute(f"DELETE FROM words_{index:d} WHERE rowid = ?", (seq,))
                        _put_words(connection, index, seq, new[name])
            merged.append(Record(id=record_id, label=label, properties=new))
        return merged[0]

    def _create_row(
        self,
        connection: sqlite3.Connection,
        label: str,
        row: Mapping[str, Value],
        cells: Mapping[str, Cell],
        texts: Sequence[tuple[int, str]],
    ) -> Record:
        newest = connection.execute("SELECT max(id) FROM records").fetchone()[0]
        record_id = _next_id(newest, self._clock())
        seq = connection.execute(
            "INSERT INTO records (id, label, properties) VALUES (?, ?, ?)", (record_id, label, _json(row))
        ).lastrowid
        assert seq is not None
        _put_cells(connection, seq, label, cells)
        for index, name in texts:
            if name in row:
                _put_words(connection, index, seq, row[name])
        return Record(id=record_id, label=label, properties=dict(row))

    # -- search ------------------------------------------------------------------------------------------------------

    def search(
        self,
        label: str,
        property: str,
        where: Where,
        *,
        text: str | None = None,
        vector: Sequence[float] | None = None,
        limit: int = 20,
    ) -> Sequence[Record]:
        _check_label(label)
        _check_limit(limit)
        if not where:
            raise errors.StoreRefused("a search needs a where")
        if text is None and vector is None:
            raise errors.StoreRefused("a search needs a text or a vector")
        condition = wheres.parse(where)
        unit = None if vector is None else _unit(vector)
        depth = limit if text is None or unit is None else max(limit, FUSION_DEPTH)
        with self._file.read() as connection:
            rankings = []
            if text is not None:
                rankings.append(_by_words(connection, label, property, condition, text, depth))
            if unit is not None:
                rankings.append(_by_vector(connection, label, property, condition, unit, depth))
            best = rankings[0] if len(rankings) == 1 else _fused(rankings)
            best = best[:limit]
            records = _records(connection, [seq for _, seq in best])
            return [replace(record, score=score) for record, (score, _) in zip(records, best, strict=True)]

    def set_vectors(self, label: str, property: str, vectors: Mapping[str, Sequence[float]]) -> None:
        _check_label(label)
        units = {record_id: _unit(vector) for record_id, vector in vectors.items()}
        with self._file.write() as connection:
            for record_id, unit in units.items():
                index = _vector_index(connection, label, property, len(unit))
                found = connection.execute(
                    "SELECT seq FROM records WHERE id = ? AND label = ?", (bindable(record_id), label)
                ).fetchone()
                if found is None:
                    raise errors.StoreRefused("a vector for a record that is not there")
                connection.execute(
                    "INSERT OR REPLACE INTO vectors (record, vector_index, vector) VALUES (?, ?, ?)",
                    (found[0], index, struct.pack(f"<{len(unit)}f", *unit)),
                )

    def with_vectors(self, label: str, property: str, record_ids: Sequence[str]) -> frozenset[str]:
        _check_label(label)
        sql = (
            "SELECT 1 FROM records AS r JOIN vectors AS v ON v.record = r.seq"
            " JOIN vector_indexes AS i ON i.id = v.vector_index"
            " WHERE r.id = ? AND i.label = ? AND i.property = ? LIMIT 1"
        )
        with self._file.read() as connection:
            return frozenset(
                record_id
                for record_id in record_ids
                if connection.execute(sql, (bindable(record_id), label, property)).fetchone()
            )

    # -- edges -------------------------------------------------------------------------------------------------------

    def link(self, spec: LinkSpec) -> None:
        for label in (spec.source_label, spec.target_label, spec.type):
            _check_label(label)
        _check_name(spec.source_key)
        _check_name(spec.target_key)
        source_condition, target_condition = wheres.parse(spec.source_where), wheres.parse(spec.target_where)
        with self._file.write() as connection:
            sources = rows_of(connection, spec.source_label, source_condition)
            target_sql, target_values = condition_sql(target_condition)
            connection.execute(
                # CROSS JOIN keeps the order: the sources lead, each looks its targets up by value.
                f"INSERT OR IGNORE INTO edges (source, type, target) SELECT s.record, ?, r.seq FROM cells AS s"
                f" CROSS JOIN cells AS t ON t.label = ? AND t.name = ? AND t.value = s.value"
                f" CROSS JOIN records AS r ON r.seq = t.record"
                f" WHERE s.record IN (SELECT r.seq {sources.sql}) AND s.name = ? AND {target_sql}",
                (
                    spec.type,
                    spec.target_label,
                    spec.target_key,
                    *sources.values,
                    spec.source_key,
                    *target_values,
                ),
            )

    def edges(self, label: str, where: Where) -> Sequence[Edge]:
        return self._edges(label, where, "source")

    def edges_into(self, label: str, where: Where) -> Sequence[Edge]:
        return self._edges(label, where, "target")

    def _edges(self, label: str, where: Where, end: str) -> Sequence[Edge]:
        _check_label(label)
        condition = wheres.parse(where)
        with self._file.read() as connection:
            found = rows_of(connection, label, condition)
            rows = connection.execute(
                f"SELECT e.type, s.id, t.id, s.label, t.label FROM edges AS e"
                f" JOIN records AS s ON s.seq = e.source JOIN records AS t ON t.seq = e.target"
                f" WHERE e.{end} IN (SELECT r.seq {found.sql}) ORDER BY s.id, e.type, t.id",
                found.values,
            ).fetchall()
        return tuple(
            Edge(type=type_, source_id=source, target_id=target, source_label=source_label, target_label=target_label)
            for type_, source, target, source_label, target_label in rows
        )

    # -- indexes -----------------------------------------------------------------------------------------------------

    def ensure_indexes(self, specs: Sequence[IndexSpec]) -> Capabilities:
        for spec in specs:
            _check_label(spec.label)
            _check_name(spec.property)
            if spec.dimensions is not None and spec.dimensions < 1:
                raise errors.StoreRefused("an index needs at least one dimension")
        with self._file.read() as connection:
            missing = [spec for spec in specs if not _is_indexed(connection, spec)]
        if missing:
            with self._file.write() as connection:
                for spec in missing:
                    _ensure_index(connection, spec)
        return _CAPABILITIES

    def capabilities(self) -> Capabilities:
        self._file.check_usable()
        return _CAPABILITIES

    def ping(self) -> None:
        with self._file.read() as connection:
            connection.execute("SELECT id FROM records LIMIT 1").fetchone()

    def close(self) -> None:
        self._file.close()


# -- values ----------------------------------------------------------------------------------------------------------


def _cells(row: Mapping[str, Value]) -> dict[str, Cell]:
    """The row's properties, checked, as cells."""
    cells: dict[str, Cell] = {}
    for name, value in row.items():
        _check_name(name)
        try:
            cells[name] = cell(value)
        except errors.Unsupported as error:
            raise errors.StoreRefused("a property is neither a string, nor a finite number, nor a boolean") from error
    return cells


def _put_cells(connection: sqlite3.Connection, seq: int, label: str, cells: Mapping[str, Cell]) -> None:
    connection.executemany(
        "INSERT INTO cells (record, name, label, value) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (record, name) DO UPDATE SET value = excluded.value WHERE value IS NOT excluded.value",
        [(seq, name, label, value) for name, value in cells.items()],
    )


def _json(row: Mapping[str, Value]) -> str:
    return json.dumps(dict(row), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _records(connection: sqlite3.Connection, seqs: Iterable[int]) -> Iterator[Record]:
    """In the order of `seqs`, which are there."""
    for seq in seqs:
        record_id, label, properties = connection.execute(
            "SELECT id, label, properties FROM records WHERE seq = ?", (seq,)
        ).fetchone()
        yield Record(id=record_id, label=label, properties=json.loads(properties))


def _next_id(newest: str | None, now: float) -> str:
    """A UUIDv7 that is greater than the newest one, whatever the clock says."""
    number = (int(now * 1000) << 74) | (int.from_bytes(os.urandom(10)) >> 6)
    if newest is not None:
        hexes = int(newest.replace("-", ""), 16)
        last = ((hexes >> 80) << 74) | (((hexes >> 64) & 0xFFF) << 62) | (hexes & ((1 << 62) - 1))
        # A random step: the id of a deleted record is not given out again.
        number = max(number, last + 1 + int.from_bytes(os.urandom(4)))
    hexes = (
        ((number >> 74) << 80) | (7 << 76) | (((number >> 62) & 0xFFF) << 64) | (2 << 62) | (number & ((1 << 62) - 1))
    )
    text = f"{hexes:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _unit(vector: Sequence[float]) -> list[float]:
    """`vector` at length 1, so that a product is a cosine."""
    length = math.hypot(*vector)
    if not length or not math.isfinite(length):
        raise errors.StoreRefused("a vector must be finite and not zero")
    return [component / length for component in vector]


def _check_label(label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise errors.StoreRefused("a label or type must be letters, digits and underscores, and not begin with a digit")


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or name.startswith(("$", "__")) or not name.isprintable():
        raise errors.StoreRefused("a property name must be printable text that does not begin with $ or __")


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= FIND_LIMIT:
        raise errors.StoreRefused(f"limit must be a whole number from 1 to {FIND_LIMIT}")


# -- indexes and rankings --------------------------------------------------------------------------------------------

_Ranking = list[tuple[float, int]]  # score and seq, best first


def _text_indexes(connection: sqlite3.Connection, label: str) -> list[tuple[int, str]]:
    return connection.execute("SELECT id, property FROM text_indexes WHERE label = ?", (label,)).fetchall()


def _text_index(connection: sqlite3.Connection, label: str, name: str) -> int | None:
    found = connection.execute("SELECT id FROM text_indexes WHERE label = ? AND property = ?", (label, name)).fetchone()
    return found and found[0]


def _vector_index(connection: sqlite3.Connection, label: str, name: str, dimensions: int) -> int:
    found = connection.execute(
        "SELECT id FROM vector_indexes WHERE label = ? AND property = ? AND dimensions = ?", (label, name, dimensions)
    ).fetchone()
    if found is None:
        raise errors.StoreRefused(f"no vector index of {dimensions} dimensions on that property: ensure it first")
    return found[0]


def _is_indexed(connection: sqlite3.Connection, spec: IndexSpec) -> bool:
    if _text_index(connection, spec.label, spec.property) is None:
        return False
    return spec.dimensions is None or bool(
        connection.execute(
            "SELECT 1 FROM vector_indexes WHERE label = ? AND property = ? AND dimensions = ?",
            (spec.label, spec.property, spec.dimensions),
        ).fetchone()
    )


def _ensure_index(connection: sqlite3.Connection, spec: IndexSpec) -> None:
    """Every index serves keyword search; one with dimensions serves vectors too."""
    if spec.dimensions is not None:
        connection.execute(
            "INSERT OR IGNORE INTO vector_indexes (label, property, dimensions) VALUES (?, ?, ?)",
            (spec.label, spec.property, spec.dimensions),
        )
    if _text_index(connection, spec.label, spec.property) is not None:
        return
    index = connection.execute(
        "INSERT INTO text_indexes (label, property) VALUES (?, ?)", (spec.label, spec.property)
    ).lastrowid
    assert index is not None
    connection.execute(f"CREATE VIRTUAL TABLE words_{index:d} USING fts5(body, tokenize='{words.TOKENIZE}')")
    for seq, properties in connection.execute("SELECT seq, properties FROM records WHERE label = ?", (spec.label,)):
        row = json.loads(properties)
        if spec.property in row:
            _put_words(connection, index, seq, row[spec.property])


def _put_words(connection: sqlite3.Connection, index: int, seq: int, text: Value) -> None:
    if isinstance(text, str):
        connection.execute(f"INSERT INTO words_{index:d} (rowid, body) VALUES (?, ?)", (seq, words.document(text)))


def _by_words(
    connection: sqlite3.Connection, label: str, name: str, condition: wheres.Condition, text: str, limit: int
) -> _Ranking:
    index = _text_index(connection, label, name)
    if index is None:
        raise errors.StoreRefused("no text index on that property: ensure it first")
    match = words.query(text)
    if not match:
        return []
    sql, values = condition_sql(condition)
    table = f"words_{index:d}"
    rows = connection.execute(
        f"SELECT bm25({table}) AS rank, r.seq FROM {table} CROSS JOIN records AS r ON r.seq = {table}.rowid"
        f" WHERE {table} MATCH ? AND {sql} ORDER BY rank, r.id LIMIT ?",
        (match, *values, limit),
    )
    # bm25 is negative, better further down; s / (1 + s) keeps the order and lies between 0 and 1.
    return [(-rank / (1 - rank), seq) for rank, seq in rows]


def _by_vector(
    connection: sqlite3.Connection,
    label: str,
    name: str,
    condition: wheres.Condition,
    unit: Sequence[float],
    limit: int,
) -> _Ranking:
    """Every vector under the where is compared: exact, and linear in what the where leaves."""
    index = _vector_index(connection, label, name, len(unit))
    source = rows_of(connection, label, condition)
    rows = connection.execute(
        f"SELECT v.record, v.vector FROM vectors AS v"
        f" WHERE v.record IN (SELECT r.seq {source.sql}) AND v.vector_index = ?",
        (*source.values, index),
    )
    unpack = struct.Struct(f"<{len(unit)}f").unpack
    ranking = [(_similarity(unit, unpack(vector)), seq) for seq, vector in rows]
    ranking.sort(key=lambda scored: (-scored[0], scored[1]))
    return ranking[:limit]


def _similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """(1 + cosine) / 2, RushDB's scale: 1 the same, 0.5 orthogonal, 0 opposite."""
    cosine = sum(map(operator.mul, one, other))
    return (1 + max(-1.0, min(1.0, cosine))) / 2


def _fused(rankings: Iterable[_Ranking]) -> _Ranking:
    scores: dict[int, float] = {}
    for ranking in rankings:
        for place, (_, seq) in enumerate(ranking, start=1):
            scores[seq] = scores.get(seq, 0.0) + 1 / (RRF_K + place)
    return sorted(((score, seq) for seq, score in scores.items()), key=lambda scored: (-scored[0], scored[1]))
