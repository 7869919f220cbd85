"""What is in a message, once its signature was checked: its items, opened and checked one by one.

A line is opened as far as it can be. What makes it undeliverable becomes a stable code, which its receipt and the
listing of dead letters carry; no code quotes a value:

    damaged_line               the bytes are not one whole journal line
    later_version              a whole line of a later version: not dead, a worker of that version can store it
    kind_not_deliverable       a line that journals keep for themselves
    contract:<field>:<reason>  the event breaks AgentMemoryEvent v1, a forged id included
    id_differs                 the line says another id than its event or order has
    scope:<reason>             the order names no whole scope
    scope_not_allowed          the key may not write for this agent or profile
    everywhere_not_allowed     only an operator's key may order forgetting in every scope
    poison                     it killed too many workers' children
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_tasks import tenants
from producer import contract, errors, identity, message
from producer.convergence import delivery, forget
from producer.journal import line as lines

__all__ = ["LATER_VERSION", "Entry", "Message", "code_of", "open_item", "unopened"]

LATER_VERSION = "later_version"
_ID = re.compile(r"[a-f0-9]{64}")  # an eventId, a factId or one of our keys
_JOURNAL_ID = re.compile(r"[0-9a-f]{32}")
_CODE = re.compile(r"[A-Za-z0-9_:.-]{0,160}")
_ID_OF_LINE = re.compile(r'\{"v":\d+,"kind":"[a-z]+","id":"([0-9a-f]{64})"')
# A field that the contract does not know is text of the event, and stands in no code.
_FIELDS = frozenset(
    f.alias for model in (contract.Episode, contract.Fact) for f in model.model_fields.values() if f.alias
) | {"order", "order.group", "order.target"}
_NOT_IN_CODES = re.compile(r"[^a-z0-9]+")
_BEFORE_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message whose signature was checked. `received_s` is on the delivery clock."""

    items: Sequence[message.Item]
    tries: int
    unsure_until: float | None  # set on a later look; compared with no clock, see producer.message
    redelivered: bool
    received_s: float

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, redelivered: bool, received_s: float) -> Message:
        """The message with these keyword arguments. Raises `errors.SignatureRefused`: `malformed` for other forms,
        `no_journal` for items that name no journal: nobody would keep what this worker cannot store."""
        batch: Any = arguments.get("batch")
        tries: Any = arguments.get("tries")
        until: Any = arguments.get("unsureUntil")
        if (
            set(arguments) != {"batch", "tries", "unsureUntil"}
            or not isinstance(batch, list)
            or not 1 <= len(batch) <= message.CHUNK_LINES
            or not _is_count(tries)
            or not (until is None or (isinstance(until, int | float) and not isinstance(until, bool)))
        ):
            raise errors.SignatureRefused("malformed")
        return cls(
            items=tuple(_item(one) for one in batch),
            tries=tries,
            unsure_until=until,
            redelivered=redelivered,
            received_s=received_s,
        )

    @property
    def is_look(self) -> bool:
        return self.unsure_until is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One item, opened: a delivery, or the code of its refusal."""

    item: message.Item
    line_hash: str  # empty: the text has none, and no receipt can name it
    id: str = ""  # empty: it could not be read, or nobody looked
    delivery: delivery.Delivery | None = None
    refusal: str = ""


def open_item(item: message.Item, grant: tenants.Grant, *, poison_deaths: int, received_s: float) -> Entry:
    """Parse and check one line for a key with this grant."""
    if not item.line.isascii():
        return Entry(item=item, line_hash="", refusal="damaged_line")
    line_hash = lines.line_hash(item.line)
    try:
        line = lines.parse(item.line)
    except errors.DamagedLine:
        if lines.is_later(item.line.encode("ascii")):
            return dataclasses.replace(unopened(item), refusal=LATER_VERSION)
        return Entry(item=item, line_hash=line_hash, refusal="damaged_line")
    try:
        checked, refusal = _checked(line, grant)
    except errors.Permanent as problem:
        return Entry(item=item, line_hash=line_hash, id=line.id, refusal=code_of(problem))
    if not refusal and item.deaths >= poison_deaths:
        refusal = "poison"
    if refusal:
        return Entry(item=item, line_hash=line_hash, id=line.id, refusal=refusal)
    opened = delivery.Delivery(
        line_hash=line_hash,
        id=line.id,
        kind=line.kind,
        event=checked,
        appended_at=line.appended_at,
        line_key=_text_or_none(line.body.get("lineKey")),
        session_key=_text_or_none(line.body.get("sessionKey")),
        received=received_s,
    )
    return Entry(item=item, line_hash=line_hash, id=line.id, delivery=opened)


def unopened(item: message.Item) -> Entry:
    """An item as far as it is known without opening it: nothing of it is parsed or checked."""
    if not item.line.isascii():
        return Entry(item=item, line_hash="")
    found = _ID_OF_LINE.match(item.line)
    return Entry(item=item, line_hash=lines.line_hash(item.line), id=found[1] if found else "")


def code_of(problem: errors.IngestError) -> str:
    """A stable code for an error: class, place and status; never a value."""
    match problem:
        case errors.ContractViolation():
            field = problem.field if problem.field in _FIELDS else "event"
            return f"contract:{field}:{_NOT_IN_CODES.sub('_', problem.reason.lower()).strip('_')[:64]}"
        case errors.ScopeRefused():
            return f"scope:{problem.reason}"
    name = _BEFORE_CAPITAL.sub("_", type(problem).__name__).lower()
    status = getattr(problem, "status", None)
    return f"{name}:{status}" if status is not None else name


def _checked(line: lines.Line, grant: tenants.Grant) -> tuple[Mapping[str, Any], str]:
    """The event or order of a line, and the code of its refusal if there is one."""
    if line.kind == "event":
        return _checked_event(line, grant)
    if line.kind == "order":
        return _checked_order(line, grant)
    return {}, "kind_not_deliverable"


def _checked_event(line: lines.Line, grant: tenants.Grant) -> tuple[Mapping[str, Any], str]:
    given = line.body.get("event")
    if not isinstance(given, Mapping):
        raise errors.ContractViolation("is not an object", field="event")
    event = contract.validate(given).plain()
    if line.id != (event.get("eventId") or event.get("factId")):
        return event, "id_differs"
    if not grant.allows(event["agentId"], event["profileId"]):
        return event, "scope_not_allowed"
    return event, ""


def _checked_order(line: lines.Line, grant: tenants.Grant) -> tuple[Mapping[str, Any], str]:
    order = line.body.get("order")
    if not isinstance(order, Mapping):
        raise errors.ContractViolation("is not an object", field="order")
    if line.id != identity.sha256_hex(identity.canonical_json(order)):
        return order, "id_differs"
    group = order.get("group")
    named = group if isinstance(group, Mapping) else {}
    for name, value in (("target", order.get("target")), *((n, named.get(n)) for n in ("session", "participant"))):
        # Other text would be looked for in vain: RushDB 2.11 loses some words ("constructor") on the way back.
        if value is not None and not (isinstance(value, str) and _ID.fullmatch(value)):
            raise errors.ContractViolation(f"{name} is no id", field="order")
    if order.get("everywhere") is True:
        return order, "" if grant.operator else "everywhere_not_allowed"
    scope = forget.scope_of(order)
    return order, "" if grant.allows(scope.agent_id, scope.profile_id) else "scope_not_allowed"


def _item(one: Any) -> message.Item:
    if not isinstance(one, Mapping) or not isinstance(one.get("line"), str):
        raise errors.SignatureRefused("malformed")
    journal_id: Any = one.get("journalId")
    if not isinstance(journal_id, str) or not _JOURNAL_ID.fullmatch(journal_id):
        raise errors.SignatureRefused("no_journal")
    check, reason = one.get("check", False), one.get("reason", "")
    if (
        not isinstance(one.get("unsure"), bool)
        or not _is_count(one.get("deaths"))
        or not isinstance(check, bool)
        or not isinstance(reason, str)
        or not _CODE.fullmatch(reason)
    ):
        raise errors.SignatureRefused("malformed")
    return message.Item(
        line=one["line"],
        journal_id=journal_id,
        unsure=one["unsure"],
        deaths=one["deaths"],
        check=check,
        reason=reason if check else "",
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1_000_000


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
