"""Where to SQL: which rows of the SQLite store a where means, with every value bound.

A property is looked at through its *cell*, the form in which values of different sorts never equal each other: numbers
are REAL, booleans TEXT, strings BLOB. SQL's NULL stands where a where is neither true nor false; its logic is the
same.
"""

# ruff: noqa: S608  (only fixed words and numbers are put into SQL; names and values are bound)

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from producer import errors
from producer.store import where as wheres
from producer.store.port import Value

__all__ = ["CELL_BYTES", "Cell", "Rows", "cell", "condition_sql", "order_sql", "rows_of"]

CELL_BYTES = 240
PROBE_ROWS = 500  # how far the candidates for the index that leads a find are counted

Cell = float | str | bytes


def cell(value: Value) -> Cell:
    """What equals within the store. A string of more than `CELL_BYTES` is cut and followed by its sha256."""
    sort, comparable = wheres.key(value)
    if sort == "number":
        return comparable
    if sort == "boolean":
        return "true" if comparable else "false"
    data = comparable.encode("utf-8", "surrogatepass")
    if len(data) <= CELL_BYTES:
        return data
    # 0xff is in no UTF-8 text: a cut string never equals a whole one.
    return data[:CELL_BYTES] + b"\xff" + hashlib.sha256(data).digest()


@dataclass(frozen=True, slots=True)
class Rows:
    """`FROM records AS r WHERE ...`, and what to bind."""

    sql: str
    values: Sequence[Any]


def rows_of(connection: sqlite3.Connection, label: str, condition: wheres.Condition) -> Rows:
    """The records of `label` under `condition`, found through the equality that the fewest records have."""
    sql, values = condition_sql(condition)
    lead = _lead(connection, label, condition)
    if lead is None:
        return Rows(f"FROM records AS r WHERE r.label = ? AND {sql}", (label, *values))
    # The plus keeps SQLite from walking through the whole label instead.
    return Rows(
        f"FROM records AS r WHERE r.seq IN ({lead.sql}) AND +r.label = ? AND {sql}", (*lead.values, label, *values)
    )


def condition_sql(condition: wheres.Condition) -> tuple[str, list[Any]]:
    """A test of `records AS r`, and what to bind."""
    match condition:
        case wheres.All(()):
            return "1", []
        case wheres.All(parts):
            return _joined(" AND ", parts)
        case wheres.Either(parts):
            return _joined(" OR ", parts)
        case wheres.Not(part):
            sql, values = condition_sql(part)
            return f"NOT ({sql})", values
        case wheres.Ids(ids):
            return f"r.id IN ({_marks(ids)})", list(map(bindable, ids))
        case wheres.Exists(name, wanted):
            exists = "EXISTS" if wanted else "NOT EXISTS"
            return f"{exists} (SELECT 1 FROM cells WHERE record = r.seq AND name = ?)", [bindable(name)]
        case wheres.Among(name, operands, negated):
            cells = list(map(cell, operands))
            return _tested(name, f"value {'NOT IN' if negated else 'IN'} ({_marks(cells)})", cells)
        case wheres.Compare(name, comparison, operand):
            given = cell(operand)
            if comparison in _EQUALITIES:
                return _tested(name, f"value {_EQUALITIES[comparison]} ?", [given])
            return _tested(name, f"CASE WHEN {_same_sort(given)} THEN value {_RANGES[comparison]} ? END", [given])
    raise AssertionError(condition)  # every sort of condition is handled above


def order_sql(order_by: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """ORDER BY terms, and what to bind. As in RushDB records that lack a property come last, downwards first."""
    terms, names = [], []
    for name, direction in [*order_by, ("__id", "asc")]:
        if direction not in ("asc", "desc"):
            raise errors.StoreRefused("an order is asc or desc")
        if name == "__id":
            terms.append(f"r.id {direction}")
            break
        nulls = "LAST" if direction == "asc" else "FIRST"
        terms.append(f"(SELECT value FROM cells WHERE record = r.seq AND name = ?) {direction} NULLS {nulls}")
        names.append(bindable(name))
    return ", ".join(terms), names


def bindable(text: object) -> str:
    """A name or id as SQLite can bind it; what it cannot is no name of ours and finds nothing."""
    return text if isinstance(text, str) and text.isprintable() else ""


_EQUALITIES = {"$eq": "=", "$ne": "<>"}
_RANGES = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_TIME_GLOB = re.sub(r"\d", "[0-9]", "0000-00-00T00:00:00.000Z")


def _tested(name: str, test: str, cells: Sequence[Cell]) -> tuple[str, list[Any]]:
    """NULL when the record has no such property."""
    return f"(SELECT {test} FROM cells WHERE record = r.seq AND name = ?)", [*cells, bindable(name)]


def _same_sort(wanted: Cell) -> str:
    if isinstance(wanted, float):
        return "typeof(value) = 'real'"
    return f"typeof(value) = 'blob' AND CAST(value AS TEXT) GLOB '{_TIME_GLOB}'"


def _joined(word: str, parts: Iterable[wheres.Condition]) -> tuple[str, list[Any]]:
    compiled = list(map(condition_sql, parts))
    return "(" + word.join(sql for sql, _ in compiled) + ")", [value for _, values in compiled for value in values]


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))


@dataclass(frozen=True, slots=True)
class _Lead:
    """A query for the seqs of all records that can match, and about how many they are (up to `PROBE_ROWS`)."""

    rows: int
    sql: str
    values: Sequence[Any]


def _lead(connection: sqlite3.Connection, label: str, condition: wheres.Condition) -> _Lead | None:
    """None: only a walk through the label finds them."""
    match condition:
        case wheres.Compare(name, "$eq", value):
            return _cells_lead(connection, label, name, [cell(value)])
        case wheres.Among(name, values, False):
            return _cells_lead(connection, label, name, list(map(cell, values)))
        case wheres.Ids(ids):
            return _Lead(len(ids), f"SELECT seq FROM records WHERE id IN ({_marks(ids)})", list(map(bindable, ids)))
        case wheres.All(parts):
            leads = [lead for part in parts if (lead := _lead(connection, label, part)) is not None]
            return min(leads, key=lambda lead: lead.rows, default=None)
        case wheres.Either(parts):
            leads = [lead for part in parts if (lead := _lead(connection, label, part)) is not None]
            if len(leads) == len(parts):
                rows = sum(lead.rows for lead in leads)
                bound = [value for lead in leads for value in lead.values]
                return _Lead(rows, " UNION ALL ".join(lead.sql for lead in leads), bound)
    return None


def _cells_lead(connection: sqlite3.Connection, label: str, name: str, cells: Sequence[Cell]) -> _Lead:
    source = f"FROM cells WHERE label = ? AND name = ? AND value IN ({_marks(cells)})"
    values = (label, bindable(name), *cells)
    probe = f"SELECT count(*) FROM (SELECT 1 {source} LIMIT {PROBE_ROWS})"
    return _Lead(connection.execute(probe, values).fetchone()[0], f"SELECT record {source}", values)
