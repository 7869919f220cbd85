"""A where: RushDB's filter form, the subset that `port` lists, parsed into a small tree. Standard library only.

Whatever is not in the subset is refused with `errors.Unsupported`, which names the operator and never a value. A tree
is evaluated to true, false or neither, as RushDB does: a comparison with a property that the record lacks is neither,
so is a range over a value of another sort, and both stay so under `$not`. Only what is true matches.

Values are of three sorts that never equal each other: strings, numbers and booleans. Numbers are doubles, as in RushDB
(1 equals 1.0; whole numbers beyond 2**53 lose their last digits when compared). Strings are compared by their UTF-16
text. A range compares numbers, or times in the form `2026-12-01T12:00:00.000Z`; a string in any other form is in no
range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from producer import errors
from producer.store.port import Record, Value, Where

__all__ = ["All", "Among", "Compare", "Condition", "Either", "Exists", "Ids", "Not", "key", "matches", "parse"]

MAX_DEPTH = 20
MAX_VALUES = 20_000  # values in one where; SQLite binds 32,766

COMPARISONS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)

Key = tuple[str, Any]  # the sort of a value, and what equals within it


@dataclass(frozen=True, slots=True)
class Compare:
    """`operator` is one of `COMPARISONS`."""

    name: str
    operator: str
    value: Value


@dataclass(frozen=True, slots=True)
class Among:
    """`$in`, or `$nin` when `negated`."""

    name: str
    values: tuple[Value, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Exists:
    name: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Ids:
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class All:
    """True when every part is; the empty where is `All(())`."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


Condition = Compare | Among | Exists | Ids | All | Either | Not


def key(value: Value) -> Key:
    """What `value` is compared by: equal keys, equal values. Refuses what is no `Value` (also NaN and infinities)."""
    if isinstance(value, str):
        return "string", utf16(value)
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return "number", number
        raise errors.Unsupported("a number in a where must be finite")
    raise errors.Unsupported(
        f"a {type(value).__name__} is no value of a where or a record: use string, number or boolean"
    )


def utf16(text: str) -> str:
    """`text` as JSON brings it back: two surrogates that make a pair become the character they stand for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def parse(where: Where) -> Condition:
    """The tree of a where, or `errors.Unsupported`."""
    condition = _object(where, MAX_DEPTH)
    if _size(condition) > MAX_VALUES:
        raise errors.Unsupported(f"a where of more than {MAX_VALUES:,} values: ask in several finds")
    return condition


def matches(where: Where | Condition, record: Record) -> bool:
    """Whether a store would return `record` under `where`."""
    condition = parse(where) if isinstance(where, Mapping) else where
    return _truth(condition, record) is True


# -- parsing -----------------------------------------------------------------------------------------------------------


def _object(where: object, depth: int) -> Condition:
    if not isinstance(where, Mapping):
        raise errors.Unsupported(f"a where must be an object, not {type(where).__name__}")
    if depth == 0:
        raise errors.Unsupported(f"a where of more than {MAX_DEPTH} levels")
    parts = [_member(name, operand, depth) for name, operand in where.items()]
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _member(name: object, operand: object, depth: int) -> Condition:
    match name:
        case "$and" | "$or":
            if not isinstance(operand, (list, tuple)) or not operand:
                raise errors.Unsupported(f"{name} takes a list of at least one object")
            parts = tuple(_filled(name, part, depth - 1) for part in operand)
            return All(parts) if name == "$and" else Either(parts)
        case "$not":
            return Not(_filled(name, operand, depth - 1))
        case "$id":
            return _ids(operand)
        case str() if name and not name.startswith(("$", "__")):
            return _property(name, operand)
        case str():
            raise errors.Unsupported(f"{name!r} is no operator and no property name of a where")
    raise errors.Unsupported(f"a {type(name).__name__} is no property name of a where")


def _filled(operator: str, where: object, depth: int) -> Condition:
    condition = _object(where, depth)
    if condition == All(()):
        raise errors.Unsupported(f"{operator} over an empty object")
    return condition


def _ids(operand: object) -> Condition:
    match operand:
        case str():
            return Ids((operand,))
        case {"$in": [_, *_] as ids, **others} if not others and all(isinstance(one, str) for one in ids):
            return Ids(tuple(ids))
    raise errors.Unsupported('$id takes a string, or {"$in": [..]} with at least one string')


def _property(name: str, operand: object) -> Condition:
    if not isinstance(operand, Mapping):
        return _test(name, "$eq", operand)
    if not operand:
        raise errors.Unsupported("a property with an empty object")
    parts = [_test(name, operator, value) for operator, value in operand.items()]
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _test(name: str, operator: object, operand: Any) -> Condition:
    match operator:
        case "$eq" | "$ne":
            key(operand)
            return Compare(name, operator, operand)
        case "$gt" | "$gte" | "$lt" | "$lte":
            sort, value = key(operand)
            if sort == "boolean" or (sort == "string" and not TIME.fullmatch(value)):
                raise errors.Unsupported(f"{operator} takes a number, or a time as YYYY-MM-DDTHH:MM:SS.mmmZ")
            return Compare(name, operator, operand)
        case "$in" | "$nin":
            if not isinstance(operand, (list, tuple)) or not operand or len({key(value)[0] for value in operand}) != 1:
                raise errors.Unsupported(f"{operator} takes a list of at least one value, all of one type")
            return Among(name, tuple(operand), operator == "$nin")
        case "$exists":
            if not isinstance(operand, bool):
                raise errors.Unsupported("$exists takes true or false")
            return Exists(name, operand)
    raise errors.Unsupported(f"{operator!r} is no operator of a where")


def _size(condition: Condition) -> int:
    match condition:
        case All(parts) | Either(parts):
            return sum(map(_size, parts))
        case Not(part):
            return _size(part)
        case Among(values=values) | Ids(ids=values):
            return len(values) + 1
    return 2


# -- evaluating --------------------------------------------------------------------------------------------------------


def _truth(condition: Condition, record: Record) -> bool | None:
    """None: neither true nor false."""
    match condition:
        case All(parts):
            truths = [_truth(part, record) for part in parts]
            return False if False in truths else None if None in truths else True
        case Either(parts):
            truths = [_truth(part, record) for part in parts]
            return True if True in truths else None if None in truths else False
        case Not(part):
            truth = _truth(part, record)
            return None if truth is None else not truth
        case Ids(ids):
            return record.id in ids
        case Exists(name, wanted):
            return (name in record.properties) is wanted
        case Among(name, values, negated):
            if name not in record.properties:
                return None
            return (key(record.properties[name]) in set(map(key, values))) is not negated
        case Compare(name, operator, value):
            if name not in record.properties:
                return None
            return _compare(key(record.properties[name]), operator, key(value))
    raise AssertionError(condition)  # every sort of condition is handled above


def _compare(have: Key, operator: str, wanted: Key) -> bool | None:
    if operator == "$eq":
        return have == wanted
    if operator == "$ne":
        return have != wanted
    if have[0] != wanted[0] or (have[0] == "string" and not TIME.fullmatch(have[1])):
        return None
    match operator:
        case "$gt":
            return have[1] > wanted[1]
        case "$gte":
            return have[1] >= wanted[1]
        case "$lt":
            return have[1] < wanted[1]
    return have[1] <= wanted[1]
