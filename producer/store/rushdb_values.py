"""What RushDB takes and what it gives: labels, names, wheres, rows and vectors in; records and edges out.

Checks raise before anything is sent: `errors.StoreRefused`, or `errors.Unsupported` for a where outside the port. The
readers raise `ValueError` or `LookupError` for what is no record or edge; `sdk.translated` makes it an error of ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rushdb

from producer import errors
from producer.store import where as wheres
from producer.store.port import FIND_LIMIT, UPSERT_ROWS, Edge, Record, Value, Where

__all__ = [
    "batch_of",
    "check_label",
    "check_name",
    "check_record_id",
    "checked_limit",
    "checked_vector",
    "checked_where",
    "edge_of",
    "is_spliceable",
    "order_of",
    "record_of",
    "words_of",
]

MIN_NORM = 1e-12
NAME_UNITS = 100
QUERY_WORDS = 512

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)  # the server puts labels and edge types into statements as is
_RECORD_ID = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_UNQUOTABLE = frozenset("`'\"\\")  # property names stand between backticks, and nothing in them is escaped
# The server takes these apart in an answer or a body, so that a property of that name is lost.
_TAKEN_NAMES = frozenset({"data", "total", "records", "label", "properties", "options", "vectors"})
_WORD = re.compile(r"\w+")
_SPLICEABLE = re.compile(r"""[^\x00-\x1f'"`\\\x7f-\U0010ffff]*""")  # printable ASCII without quotes and backslash


def check_label(label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise errors.StoreRefused("labels and edge types are of letters, digits and _")


def check_record_id(record_id: str) -> None:
    if not _RECORD_ID.fullmatch(record_id):
        raise errors.StoreRefused("this is no record id")


def check_name(name: str) -> None:
    if not _is_name(name) or name in _TAKEN_NAMES:
        raise errors.StoreRefused("a property name that RushDB cannot take")


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_UNITS or name.startswith(("$", "__")):
        return False
    return name.isprintable() and _UNQUOTABLE.isdisjoint(name)


def checked_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= FIND_LIMIT:
        raise errors.StoreRefused(f"limit must be 1 to {FIND_LIMIT}")
    return limit


def checked_where(where: Where) -> dict[str, Any]:
    """`where` as it is, once it is known to be of the port's subset."""
    _check_names(wheres.parse(where))
    return dict(where)


def _check_names(condition: wheres.Condition) -> None:
    match condition:
        case wheres.All(parts) | wheres.Either(parts):
            for part in parts:
                _check_names(part)
        case wheres.Not(part):
            _check_names(part)
        case wheres.Compare(name=name) | wheres.Among(name=name) | wheres.Exists(name=name):
            if not _is_name(name):
                raise errors.Unsupported("a where names a property that RushDB cannot take")


def is_spliceable(where: Where) -> bool:
    """Whether the server can put this where into a quoted statement as it is."""
    return all(_SPLICEABLE.fullmatch(text) for text in _strings(where))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _strings(part)


def order_of(order_by: Sequence[tuple[str, str]]) -> dict[str, str]:
    order: dict[str, str] = {}
    for name, direction in order_by:
        if name != "__id":
            check_name(name)
        if direction not in ("asc", "desc"):
            raise errors.StoreRefused('an order is "asc" or "desc"')
        order.setdefault(name, direction)
    order.setdefault("__id", "asc")
    return order


def batch_of(rows: Sequence[Mapping[str, Value]], merge_by: Sequence[str]) -> list[dict[str, Value]]:
    """The rows as they are sent: checked, and sorted by merge key, so that no two batches wait for one another."""
    if len(rows) > UPSERT_ROWS:
        raise errors.StoreRefused(f"at most {UPSERT_ROWS} rows per upsert")
    if not merge_by:
        raise errors.StoreRefused("an upsert needs merge keys: without any, RushDB matches by all properties")
    keyed: dict[tuple[wheres.Key, ...], dict[str, Value]] = {}
    for row in rows:
        for name, value in row.items():
            check_name(name)
            _check_value(name, value)
        if any(name not in row for name in merge_by):
            raise errors.StoreRefused("a row lacks a merge key: RushDB would make a new record each time")
        key = tuple(wheres.key(row[name]) for name in merge_by)
        if key in keyed:
            raise errors.StoreRefused("two rows of one upsert have the same merge key")
        keyed[key] = dict(row)
    return [keyed[key] for key in sorted(keyed)]


def _check_value(name: str, value: object) -> None:
    match value:
        case str() | bool():
            return
        case int() if abs(value) <= 1 << 53:
            return
        case float() if math.isfinite(value):
            return
    raise errors.StoreRefused(f"the value of {name} is no string, number (finite, whole ones up to 2**53) or boolean")


def words_of(text: str) -> str:
    """The words of `text`, each once. Lower case and nothing else, so that none is an operator of a query language."""
    return " ".join(list(dict.fromkeys(_WORD.findall(text.casefold())))[:QUERY_WORDS])


def checked_vector(vector: Sequence[float]) -> list[float]:
    numbers = [float(number) for number in vector]
    norm = math.hypot(*numbers)
    if not math.isfinite(norm) or norm < MIN_NORM:
        raise errors.StoreRefused("a vector must be of finite numbers and not be zero: it would fail every search")
    return numbers


# -- what comes back ---------------------------------------------------------------------------------------------------


def record_of(found: rushdb.Record) -> Record:
    """Raises `ValueError` or `LookupError` when this is no record; `translated` turns it into ours."""
    data = found.data
    record_id, label, score = data["__id"], data["__label"], data.get("__score")
    if not isinstance(record_id, str) or not isinstance(label, str):
        raise ValueError("no record")
    return Record(
        id=record_id,
        label=label,
        properties={
            name: value
            for name, value in data.items()
            if not name.startswith("__") and isinstance(value, str | int | float | bool)
        },
        score=None if score is None else float(score),
    )


def edge_of(row: Mapping[str, Any]) -> Edge:
    ends = (row["sourceId"], row["sourceLabel"]), (row["targetId"], row["targetLabel"])
    if row.get("direction") == "in":  # told from the other end
        ends = ends[1], ends[0]
    (source_id, source_label), (target_id, target_label) = ends
    return Edge(
        type=row["type"],
        source_id=source_id,
        target_id=target_id,
        source_label=source_label,
        target_label=target_label,
    )
