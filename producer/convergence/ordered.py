"""What an order, or a mark, ends: the rules of `deliver` and `forget`, as a host applies them to its own lines.

    retract or forget of an id    that id in the order's scope, whenever it is delivered
    forget of a group             what the store holds of it once the order is settled, and every line of it that was
                                  appended up to `MARGIN_S` after the order

An operator's order has scopeKey "*" and counts in every scope.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from producer import errors, identity, keys
from producer.convergence import content, forget, marks, objects
from producer.convergence.content import EPISODE, ID
from producer.journal.line import Line

__all__ = ["Named", "Order", "by_key", "named_of", "named_of_line", "of_body", "of_mark"]

_GROUPED_BY = ("runtime", "externalSessionId", "sessionKey", *content.OBJECT_KEY.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """What an order may name a line or a record by."""

    id: str
    groups: frozenset[str]
    scope_key: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.id, *self.groups)


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """An order to retract or forget. `key` is an id or a group's key."""

    key: str
    scope_key: str
    forgets: bool
    at: str  # "" when it is no time

    def names(self, named: Named) -> bool:
        """Whether this is the id, or of the group, that it names."""
        is_in_scope = self.scope_key in (named.scope_key, marks.EVERYWHERE)
        return is_in_scope and (self.key == named.id or (self.forgets and self.key in named.groups))

    def covers(self, named: Named, appended_at: str) -> bool:
        """Whether it ends a line that was appended then."""
        return self.names(named) and (self.key == named.id or self._is_in_time(appended_at))

    def _is_in_time(self, appended_at: str) -> bool:
        mark = marks.Mark(what=marks.FORGOTTEN, target=self.key, by="", scope_key=self.scope_key, at=self.at)
        try:
            return forget.covering([mark], self.scope_key, appended_at, forget.MARGIN_S) is not None
        except errors.ContractViolation:
            return False


def by_key(orders: Iterable[Order]) -> dict[str, list[Order]]:
    """The orders by what they name: of thousands only those that bear on a line are looked at."""
    found: dict[str, list[Order]] = {}
    for order in orders:
        found.setdefault(order.key, []).append(order)
    return found


def of_body(order: Mapping[str, Any]) -> Order | None:
    """The order of a journal line; None for one that ends nothing, or that every worker refuses."""
    what = order.get("what")
    try:
        if what == "forget":
            target = forget.target_of(order)
            at = identity.normal_time(order.get("at", "")) if target.where else ""
            return Order(key=target.key, scope_key=target.scope_key, forgets=True, at=at)
        target_id = order.get("target")
        if what == "retract" and isinstance(target_id, str):
            return Order(key=target_id, scope_key=forget.scope_of(order).key, forgets=False, at="")
    except errors.IngestError:
        pass
    return None


def of_mark(mark: marks.Mark) -> Order | None:
    """The same of a mark that was found; None for one that ends nothing."""
    if mark.what not in marks.ENDING:
        return None
    return Order(key=mark.target, scope_key=mark.scope_key, forgets=mark.what == marks.FORGOTTEN, at=mark.at)


def named_of(label: str, properties: Mapping[str, Any]) -> Named | None:
    """What names this record, or this event with its sessionKey; None when it has no id or no whole scope."""
    id_ = properties.get(content.id_name(label))
    five = tuple(properties.get(name) for name in keys.SCOPE_FIELDS)
    told = tuple(value if isinstance(value := properties.get(name), str) else "" for name in _GROUPED_BY)
    if not isinstance(id_, str) or not id_ or not all(isinstance(value, str | bool) for value in five):
        return None
    try:
        scope_key, groups = _keys_of(label == EPISODE, *five, *told)
    except errors.ScopeRefused:
        return None
    return Named(id=id_, groups=groups, scope_key=scope_key)


@functools.lru_cache(maxsize=1024, typed=True)  # few conversations among many lines, and each recall asks again
def _keys_of(is_episode: bool, *said: Any) -> tuple[str, frozenset[str]]:
    """The scopeKey and the groups of what says this. Raises `errors.ScopeRefused`."""
    fields = dict(zip((*keys.SCOPE_FIELDS, *_GROUPED_BY), said, strict=True))
    scope = forget.scope_of({"scope": fields})
    session_key = fields["sessionKey"]
    if is_episode and fields["runtime"] and fields["externalSessionId"]:  # it follows from the event
        session_key = keys.session_key(
            runtime=fields["runtime"], external_session_id=fields["externalSessionId"], scope=scope
        )
    groups = forget.groups_of({name: value for name, value in fields.items() if value != ""}, session_key)
    return scope.key, frozenset(groups)


def named_of_line(line: Line) -> Named | None:
    """What names this line's event or thing; None for lines that hold neither."""
    if line.kind == "event" and isinstance(event := line.body.get("event"), Mapping):
        label = next((label for label, name in ID.items() if name in event), EPISODE)
        return named_of(label, {**event, "sessionKey": line.body.get("sessionKey")})
    if line.kind == "order" and isinstance(order := line.body.get("order"), Mapping) and order.get("what") == "entity":
        try:
            return named_of(*objects.row_of(order))
        except errors.IngestError:
            return None
    return None
