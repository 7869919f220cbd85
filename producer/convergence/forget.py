"""Forgetting on order: an id, or a group (a conversation, a participant, a profile of an agent, a thing's versions).

A `forgotten` mark on an id removes its records for ever, whoever sees them. A group gets one mark of its own, then
every record that the store held in it gets one on its id, and its SESSIONs are deleted. The group's mark also covers
later deliveries that were appended up to `margin_s` after the order: who finds an event covered first writes
`forgotten` on its id, so that a later capture of the same turn stays out too.

Records that were made after the group's mark are left to their own deliveries, which looked at that mark: so an order
that is delivered again, a month later, takes nothing that was captured since. The store's own clock tells (record ids
carry it); within the margin, where ids and commits may disagree in order, the record's own time decides.

A host forgets within its own scope. An operator's order ("everywhere") has scopeKey "*".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from producer import errors, identity, keys
from producer.convergence import content, marks, settle
from producer.convergence.content import EPISODE, FACT, MARK, SESSION
from producer.convergence.requests import Delete, Edges, Find, Request, Scan, Steps, together
from producer.scope import Scope
from producer.store import port

__all__ = [
    "MARGIN_S",
    "Target",
    "clear_session",
    "covering",
    "forget",
    "groups_of",
    "holds",
    "is_newer",
    "made_ms",
    "scope_of",
    "sweeps",
    "target_of",
]

MARGIN_S = 60.0
_TOGETHER = 100  # records forgotten at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What an order forgets. Of an id `where` is empty; of a group it names the records it holds."""

    key: str  # the id, or the group's key
    scope_key: str  # "*" for an operator's order
    where: Mapping[str, port.Value]
    scope: Scope | None  # None for an operator's order
    session_key: str = ""


def target_of(order: Mapping[str, Any]) -> Target:
    """What this order names. Raises `errors.ContractViolation`, `errors.ScopeRefused`."""
    everywhere = order.get("everywhere") is True
    scope = None if everywhere else scope_of(order)
    scope_key = marks.EVERYWHERE if scope is None else scope.key
    target = order.get("target")
    if isinstance(target, str) and target:
        return Target(key=target, scope_key=scope_key, where={}, scope=scope)
    group = order.get("group")
    match group:
        case {"session": str(session_key), **others} if session_key and not others:
            key, where = keys.group_session(session_key), {"sessionKey": session_key}
        case {"participant": str(participant), **others} if participant and not others:
            key, where = keys.group_participant(participant), {"participantScopeHash": participant}
        case {"agentId": str(agent_id), "profileId": str(profile_id), **others} if (
            agent_id and profile_id and not others
        ):
            key, where = keys.group_profile(agent_id, profile_id), {"agentId": agent_id, "profileId": profile_id}
        case _ if (thing := _thing(group)) is not None:
            key, where = keys.group_object(*thing), dict([thing])
        case _:
            raise errors.ContractViolation("names neither a target nor a known group", field="order")
    own = scope.fields() if scope is not None else {}
    if any(own.get(name, value) != value for name, value in where.items()):
        raise errors.ContractViolation("is not within the order's own scope", field="order.group")
    return Target(
        key=key, scope_key=scope_key, where={**own, **where}, scope=scope, session_key=where.get("sessionKey", "")
    )


def _thing(group: Any) -> tuple[str, str] | None:
    """The name and value of a thing's key, when that is what a group names."""
    if not isinstance(group, Mapping) or len(group) != 1:
        return None
    ((name, key),) = group.items()
    return (name, key) if name in content.OBJECT_KEY.values() and isinstance(key, str) and key else None


def scope_of(order: Mapping[str, Any]) -> Scope:
    """The scope of a host's order. Raises `errors.ScopeRefused` when it names none."""
    fields = order.get("scope")
    return Scope.of_fields(fields if isinstance(fields, Mapping) else {})


def groups_of(event: Mapping[str, Any], session_key: str) -> tuple[str, ...]:
    """The groups that could be forgotten with this event, or with this version of a thing."""
    groups = (
        keys.group_participant(event["participantScopeHash"]),
        keys.group_profile(event["agentId"], event["profileId"]),
        *(keys.group_object(name, event[name]) for name in content.OBJECT_KEY.values() if name in event),
    )
    return (keys.group_session(session_key), *groups) if session_key else groups


def covering(watched: Iterable[marks.Mark], scope_key: str, appended_at: str, margin_s: float) -> marks.Mark | None:
    """The group mark that covers an event appended then, if any."""
    for mark in watched:
        if mark.what != marks.FORGOTTEN or not marks.counts(mark, scope_key):
            continue
        try:
            ordered_at = _time(mark.at)
        except errors.ContractViolation:  # another adapter's, and no event's fault
            continue
        if _time(appended_at) - ordered_at <= timedelta(seconds=margin_s):
            return mark
    return None


def forget(order_id: str, target: Target, at: str, *, margin_s: float) -> Steps[None]:
    """Return when nothing of the target is left in the store."""
    mark = marks.Mark(what=marks.FORGOTTEN, target=target.key, by=order_id, scope_key=target.scope_key, at=at)
    yield from marks.write(mark, cached=not target.where)
    if not target.where:
        yield from together(settle.settle(label, target.key) for label in (EPISODE, FACT, *content.OBJECT_KEY))
        return
    (found,) = yield (Find(label=MARK, key="target", value=target.key),)
    marked_ms = min((made_ms(r.id) for r in found if r.get("by") == order_id), default=0)
    for label, where in sweeps(target):
        yield from _sweep(label, where, target, mark, marked_ms, margin_s)
    yield from _clear_sessions(target)


def sweeps(target: Target) -> list[tuple[str, port.Where]]:
    """Where the records of a group are found, by label; `holds` says which of them are in it."""
    found: list[tuple[str, port.Where]] = [(label, target.where) for label in _held(target)]
    if target.session_key and target.scope is not None:
        # Other adapters' episodes carry no sessionKey: theirs is worked out from what they say.
        found.append((EPISODE, {**target.scope.fields(), "contentHash": {"$exists": False}}))
    return found


def _held(target: Target) -> tuple[str, ...]:
    """Labels of the records that a group may hold: things have no session, and a thing's group holds its versions."""
    if target.session_key:
        return (EPISODE, FACT)
    things = tuple(label for label, name in content.OBJECT_KEY.items() if name in target.where)
    return things or (EPISODE, FACT, *content.OBJECT_KEY)


def clear_session(session_key: str) -> Steps[None]:
    """Delete the SESSION unless an episode of it is left. One that was stored meanwhile gets it back, also when an
    earlier copy of this delivery took it and died."""
    while True:
        page, sessions = yield (
            Scan(label=EPISODE, where={"sessionKey": session_key}),
            Find(label=SESSION, key="sessionKey", value=session_key),
        )
        if page.records:
            yield from _keep_sessions(page.records, sessions)
            return
        if not sessions:
            return
        yield tuple(Delete(label=SESSION, record_id=record.id) for record in sessions)


def _keep_sessions(episodes: Sequence[port.Record], sessions: Sequence[port.Record]) -> Steps[None]:
    """Settle those of the episodes of a session that have no edge to it."""
    keep = content.smallest(sessions)
    if keep is not None:
        edges = yield tuple(Edges(label=EPISODE, record_id=record.id) for record in episodes)
        joined = [any(edge.target_id == keep.id for edge in out) for out in edges]
        episodes = [record for record, is_joined in zip(episodes, joined, strict=True) if not is_joined]
    ids = {str(record.get("eventId")): None for record in episodes}
    yield from together(settle.settle(EPISODE, id_) for id_ in ids)


def _sweep(
    label: str,
    where: port.Where,
    target: Target,
    mark: marks.Mark,
    marked_ms: int,
    margin_s: float,
) -> Steps[None]:
    kept = 0
    while True:
        (page,) = yield (Scan(label=label, where=where, skip=kept),)
        if not page.records:
            return
        found: dict[tuple[str, str], None] = {}
        nameless: list[Request] = []
        for record in page.records:
            if not holds(target, record) or is_newer(label, record, mark, marked_ms, margin_s):
                kept += 1
                continue
            id_, scope_key = record.get(content.id_name(label)), content.scope_of(record)
            if isinstance(id_, str) and id_ and scope_key is not None:
                found[(id_, scope_key)] = None
            else:  # another adapter's, without an id or a whole scope: no mark can name it
                nameless.append(Delete(label=label, record_id=record.id))
        if nameless:
            yield tuple(nameless)
        pairs = list(found)
        for start in range(0, len(pairs), _TOGETHER):
            yield from together(_forget_one(label, *pair, mark) for pair in pairs[start : start + _TOGETHER])


def _forget_one(label: str, id_: str, scope_key: str, group: marks.Mark) -> Steps[None]:
    yield from marks.write(marks.Mark(what=marks.FORGOTTEN, target=id_, by=group.by, scope_key=scope_key, at=group.at))
    yield from settle.settle(label, id_)


def _clear_sessions(target: Target) -> Steps[None]:
    skip = 0
    while True:
        (page,) = yield (Scan(label=SESSION, where=target.where, skip=skip),)
        if not page.records:
            return
        session_keys = {str(r.get("sessionKey")): None for r in page.records if r.get("sessionKey")}
        yield from together(clear_session(session_key) for session_key in session_keys)
        (again,) = yield (Scan(label=SESSION, where=target.where, skip=skip),)
        left = {record.id for record in again.records}
        skip += sum(record.id in left for record in page.records)


def holds(target: Target, record: port.Record) -> bool:
    """Whether a record of a sweep is in the group: all are, but the other adapters' that a session's sweep finds."""
    if not target.session_key or record.get("sessionKey") == target.session_key:
        return True
    runtime, external = record.get("runtime"), record.get("externalSessionId")
    if not runtime or not external or target.scope is None:
        return False
    return keys.session_key(runtime=runtime, external_session_id=external, scope=target.scope) == target.session_key


def is_newer(label: str, record: port.Record, mark: marks.Mark, marked_ms: int, margin_s: float) -> bool:
    """Whether a record was made after the group's mark, so that its own delivery has looked at that mark."""
    taken_ms = made_ms(record.id)
    if not marked_ms or taken_ms <= marked_ms:
        return False
    if taken_ms > marked_ms + margin_s * 1000:
        return True
    said = record.get("validFrom" if label == FACT else "observedAt")
    try:
        return _time(said or "") - _time(mark.at) > timedelta(seconds=margin_s)
    except errors.ContractViolation:  # another adapter's time
        return False


def made_ms(record_id: str) -> int:
    """The store's clock when it made this record (UUIDv7); 0 when the id does not tell."""
    digits = record_id.replace("-", "")
    if len(digits) != 32 or digits[12] != "7":
        return 0
    try:
        return int(digits[:12], 16)
    except ValueError:
        return 0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(identity.normal_time(text))
