"""Things that a host names on order, and their versions: ENTITY, TASK, ARTIFACT.

    order {what: "entity", label, kind, name, properties, sourceEventId, trustClass, provenance, scope, at, …}

A thing is known by {label, scopeKey, kind, name}: that is its entityKey, taskKey or artifactKey. Every order is a
version of it, on the line of its key: the greatest (at, contentHash) is current, in whatever order they arrive.
`contentHash` is the version's id; it holds the sourceEventId, so that a value that comes back later is a new version,
and the same order given twice under the same sourceEventId is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from producer import errors, identity, keys
from producer.convergence import content, forget
from producer.store import port

__all__ = ["row_of"]

_MAX_PROPERTIES = 32
_MAX_TEXT_UNITS = 6001  # a bounded text ends in an ellipsis
_MAX_NAME_UNITS = 512
_TRUST = ("trusted", "mixed", "untrusted")
_PROPERTY = re.compile(r"[a-z][A-Za-z0-9]{0,63}\Z")


def row_of(order: Mapping[str, Any]) -> tuple[str, dict[str, port.Value]]:
    """The label, and the content row of this version. Raises `errors.ContractViolation`, `errors.ScopeRefused`."""
    scope = forget.scope_of(order)
    label = order.get("label")
    if not isinstance(label, str) or label not in content.OBJECT_KEY:
        raise errors.ContractViolation("is not ENTITY, TASK or ARTIFACT", field="order.label")
    told = {name: _name(order, name) for name in ("kind", "name", "sourceEventId", "provenance", "runtime")}
    if order.get("trustClass") not in _TRUST:
        raise errors.ContractViolation(f"is not one of {', '.join(_TRUST)}", field="order.trustClass")
    told["trustClass"] = str(order["trustClass"])
    properties = _properties(order.get("properties"))
    key = keys.object_key(label=label, scope_key=scope.key, kind=told["kind"], name=told["name"])
    row: dict[str, port.Value] = {**properties, **told, **scope.fields()}
    row["contentHash"] = identity.sha256_hex(identity.canonical_json({"label": label, **row}))
    row |= {
        content.OBJECT_KEY[label]: key,
        "scopeKey": scope.key,
        "lineKey": key,
        "validFrom": identity.normal_time(order.get("at", "")),
    }
    return label, row


def _properties(given: Any) -> dict[str, port.Value]:
    if not isinstance(given, Mapping) or len(given) > _MAX_PROPERTIES:
        raise errors.ContractViolation(f"is not an object of at most {_MAX_PROPERTIES}", field="order.properties")
    for name, value in given.items():
        if not isinstance(name, str) or not _PROPERTY.match(name) or name in keys.OWN_PROPERTIES:
            raise errors.ContractViolation("holds a name that is not free", field="order.properties")
        if isinstance(value, str):
            if identity.utf16_length(value) > _MAX_TEXT_UNITS:
                raise errors.ContractViolation("holds a text that is too long", field="order.properties")
        elif not isinstance(value, bool | int | float) or not abs(value) <= sys.float_info.max:  # nor an int beyond it
            raise errors.ContractViolation("holds a value that is not flat", field="order.properties")
    return dict(given)


def _name(order: Mapping[str, Any], name: str) -> str:
    value = order.get(name)
    if not isinstance(value, str) or not value.strip() or identity.utf16_length(value) > _MAX_NAME_UNITS:
        raise errors.ContractViolation("is missing, or too long", field=f"order.{name}")
    return value
