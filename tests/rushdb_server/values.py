"""Property values as RushDB 2.11 takes, types and returns them.

Numbers are JavaScript doubles, nulls are dropped, dates are strings that it calls `datetime`, lists are of one type.
The store port is flat, so a list is kept as one marked string: it comes back as it went in, but a where does not look
into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .answers import Refusal, invalid, not_served

_LIST = "\ue000"  # private use: marks a string that holds a list

_DATETIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?)?",
    re.ASCII,
)

# A record's own words: refused anywhere in a written body, so that a record cannot be written back as it was read.
DISALLOWED_KEYS = """
    $and $or $xor $nor $not $eq $in $ne $nin $gte $gt $lte $lt $contains $startsWith $endsWith $exists $day $hour
    $microsecond $millisecond $minute $month $nanosecond $second $year $type __score __id __projectId __proptypes
    __label $relation $id $alias
""".split()  # noqa: SIM905 (a text of words reads better)
_DISALLOWED = frozenset(DISALLOWED_KEYS)

# Values that equal the name of a member of every JavaScript object vanish when 2.11 reads them.
_VANISHING = frozenset(
    {
        "constructor",
        "hasOwnProperty",
        "isPrototypeOf",
        "propertyIsEnumerable",
        "toLocaleString",
        "toString",
        "valueOf",
        "__defineGetter__",
        "__defineSetter__",
        "__lookupGetter__",
        "__lookupSetter__",
    }
)


def parse_body(body: bytes) -> Any:
    """The JSON of a request, or the 400 that 2.11 answers; NaN and infinities are no JSON."""
    if not body:
        return {}
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()):
            raise Refusal(400, "Unexpected end of JSON input") from error
        raise Refusal(400, f"Unexpected token in JSON at position {error.pos}") from error
    except UnicodeDecodeError as error:
        raise Refusal(400, "Unexpected token in JSON") from error


def _refuse_constant(name: str) -> Any:
    raise Refusal(400, f"Unexpected token {name[0]} in JSON")


def refuse_disallowed_keys(document: Any) -> None:
    if isinstance(document, Mapping):
        if not _DISALLOWED.isdisjoint(document):
            raise Refusal(
                400, f"Request body contains disallowed keys: {json.dumps(DISALLOWED_KEYS, separators=(',', ':'))}"
            )
        for value in document.values():
            if isinstance(value, (dict, list)):
                refuse_disallowed_keys(value)
    elif isinstance(document, list):
        for value in document:
            refuse_disallowed_keys(value)


def as_datetime(text: str) -> datetime | None:
    """The instant of a string that RushDB calls a datetime; None for any other string."""
    match = _DATETIME.fullmatch(text)
    if match is None:
        return None
    date, time, fraction, offset = match.groups()
    try:
        return datetime.fromisoformat(f"{date}T{time or '00:00:00'}.{(fraction or '0')[:6]:0<6}{offset or 'Z'}")
    except ValueError:
        return None


def type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, list):
        return type_of(value[0]) if value else "string"
    return "datetime" if as_datetime(value) else "string"


def strict_properties(data: Any, *, stringify: bool) -> dict[str, Any]:
    """`data` of `POST /records`: flat values and lists of one type, or 400."""
    if not isinstance(data, Mapping):
        raise invalid("value does not match any of the allowed types")
    properties = {}
    for name, value in data.items():
        if not 1 <= len(name) <= 100:
            raise invalid("value does not match any of the allowed types")
        if isinstance(value, dict):
            raise invalid("value does not match any of the allowed types")
        if isinstance(value, list):
            sorts = {type(item) for item in value}
            if value != [None] and (
                "" in value or len({float if sort is int else sort for sort in sorts}) > 1 or dict in sorts
            ):
                raise invalid(f'"data.{name}" Array must contain at most 0 element(s)')
        properties[name] = value
    return _clean(properties, stringify=stringify)


def imported_properties(row: Mapping[str, Any], *, stringify: bool) -> dict[str, Any]:
    """One row of an import: lists of several types become strings; what RushDB makes child records of is not served."""
    properties = {}
    for name, value in row.items():
        if name == "$vectors":
            continue
        if isinstance(value, dict) or (
            isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)
        ):
            raise not_served("nested values: RushDB makes child records of them, so rows must be flat")
        if isinstance(value, list):
            value = [item for item in value if item is not None]
            if len({type_of(item) for item in value}) > 1:
                value = [text_of(item) for item in value]
        properties[name] = value
    return _clean(properties, stringify=stringify)


def _clean(properties: Mapping[str, Any], *, stringify: bool) -> dict[str, Any]:
    """Without nulls, numbers as doubles, all as strings when the types are not to be told from the values."""
    cleaned = {}
    for name, value in properties.items():
        if value is None or value == [None]:
            continue
        value = _number_as_double(value)
        if stringify:
            value = [text_of(item) for item in value] if isinstance(value, list) else text_of(value)
        cleaned[name] = value
    return cleaned


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number_as_double(value: Any) -> Any:
    if isinstance(value, list):
        return [_number_as_double(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    double = float(value)
    return int(double) if double.is_integer() else double


def to_store(value: Any) -> Any:
    return _LIST + json.dumps(value) if isinstance(value, list) else value


def from_store(value: Any) -> Any:
    return json.loads(value[1:]) if isinstance(value, str) and value[:1] == _LIST else value


def vanishes(value: Any) -> bool:
    return isinstance(value, str) and value in _VANISHING
