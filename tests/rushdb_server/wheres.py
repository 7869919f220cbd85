"""The filter form of RushDB 2.11 in terms of the store port's where, with the errors that 2.11 was recorded with.

What 2.11 takes and the port does not (null, lists, `$nor`, related records) is rewritten; the rest of its operators is
not served. Whatever RushDB itself refuses, or quietly finds nothing by, does so here too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any

from .answers import Refusal, database_error, invalid, not_served
from .values import as_datetime

NOTHING: Mapping[str, Any] = {"rs~nothing": {"$exists": True}}  # no record has it

_RANGES = frozenset({"$gt", "$gte", "$lt", "$lte"})
_NOT_SERVED = frozenset({"$xor", "$type", "$startsWith", "$endsWith"})

Related = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def translate(where: Any, *, internal: Callable[[str], str], related: Related) -> dict[str, Any]:
    """`where` for the port. `internal` gives the store's record id for a public one; `related(label, clause)` gives the
    where of the records that are related to those of `label` under `clause`."""
    if where is None:
        return {}
    if not isinstance(where, Mapping):
        raise invalid('"where" Expected object')

    def inner(clause: Any) -> dict[str, Any]:
        return translate(clause, internal=internal, related=related)

    parts: list[dict[str, Any]] = []
    plain: dict[str, Any] = {}
    for name, operand in where.items():
        if name in ("$and", "$or", "$nor", "$not"):
            clauses = [inner(clause) for clause in (operand if isinstance(operand, list) else [operand])]
            if name != "$and" and {} in clauses:
                raise not_served(f"{name} over an empty object")
            clauses = [clause for clause in clauses if clause]
            if name == "$and":
                parts.extend(clauses)
            elif name == "$or":
                parts.append({"$or": clauses})
            else:
                parts.append(
                    {"$not": clauses[0] if len(clauses) == 1 else {("$or" if name == "$nor" else "$and"): clauses}}
                )
        elif name == "$id":
            parts.append(_ids(operand, internal))
        elif name.startswith("__"):
            parts.append(dict(NOTHING))  # no property of a record: it silently finds nothing
        elif isinstance(operand, Mapping):
            if operand and all(operator in _OPERATORS for operator in operand):
                parts.extend(_test(name, operator, value) for operator, value in operand.items())
            else:
                parts.append(dict(related(name, operand)))
        elif operand is None:
            parts.append({name: {"$exists": False}})
        elif isinstance(operand, list):
            parts.extend({name: value} for value in operand)
        else:
            plain[name] = operand
    if not parts:
        return plain
    return {"$and": [*([plain] if plain else []), *parts]} if plain or len(parts) > 1 else parts[0]


_OPERATORS = _RANGES | {"$eq", "$ne", "$in", "$nin", "$exists", "$contains"} | _NOT_SERVED


def _ids(operand: Any, internal: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(operand, str):
        return {"$id": internal(operand)}
    ids = operand.get("$in") if isinstance(operand, Mapping) and len(operand) == 1 else None
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise not_served("this operand of $id")
    if not ids:
        raise _bad_operand("$in", ids)
    return {"$id": {"$in": [internal(one) for one in ids]}}


def _test(name: str, operator: str, value: Any) -> dict[str, Any]:
    if operator in _NOT_SERVED:
        raise not_served(f"{operator} in a where")
    if operator == "$contains":
        if isinstance(value, str) and '"' in value:
            raise database_error()
        raise not_served("$contains in a where")
    if operator in ("$in", "$nin"):
        if not isinstance(value, list) or not value or len({_sort(item) for item in value}) > 1:
            raise _bad_operand(operator, value)
        if _sort(value[0]) == "object":
            raise not_served("this set")
    elif operator == "$exists":
        if not isinstance(value, bool):
            raise _bad_operand(operator, value)
    elif operator in _RANGES:
        instant = as_datetime(value) if isinstance(value, str) else None
        if isinstance(value, bool) or not (isinstance(value, (int, float)) or instant):
            raise _bad_operand(operator, value)
        if instant:
            value = f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{instant.microsecond // 1000:03d}Z"
    elif value is None or isinstance(value, (list, dict)):
        if value is None and operator == "$eq":
            return {name: {"$exists": False}}
        raise not_served(f"this operand of {operator}")
    return {name: {operator: value}}


def _bad_operand(operator: str, value: Any) -> Refusal:
    return Refusal(
        400, f"Value {json.dumps(value)} of type {_sort(value)} couldn't be used with '{operator}' operator."
    )


def _sort(value: Any) -> str:
    """JavaScript's `typeof`."""
    return {str: "string", bool: "boolean", int: "number", float: "number"}.get(type(value), "object")
