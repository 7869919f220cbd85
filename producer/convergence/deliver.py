"""The rules of one delivery: an event (episode or fact) or an order (retract, forget, entity, link), as generators.

    event, entity   mark what it supersedes ─▶ settle that ─▶ compete ─▶ write content, unless forgotten ─▶ settle ─▶
                    compete
    order           mark ─▶ settle

Every mark is found again before the next step. What is there and settled is found by the first look and needs no write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from producer import errors, identity, keys
from producer.convergence import content, forget, graph, links, marks, objects, rivals, settle
from producer.convergence.content import EPISODE, FACT, SESSION
from producer.convergence.delivery import Delivery, Settled
from producer.convergence.requests import CacheDrop, CachePut, Find, Request, Steps, Upsert
from producer.receipt import State
from producer.store import port

__all__ = ["Incoming", "deliver"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Incoming:
    """Content on its way in, of an event or of a thing, with the keys that follow from it."""

    label: str
    id: str
    row: Mapping[str, port.Value]
    scope_key: str
    at: str
    over: str  # what it supersedes: an id or a line; "" when nothing
    names: bool  # whether `over` is an id that the event names
    retracted: bool
    groups: tuple[str, ...]
    appended_at: str
    linked_as: str = ""  # the key that links name, where it is not the id

    @property
    def watch(self) -> tuple[str, ...]:
        return (*self.groups, self.linked_as) if self.linked_as else self.groups

    def cover(self, seen: settle.Seen, margin_s: float) -> marks.Mark | None:
        """The group mark that covers it, if any."""
        watched = [mark for mark in seen.watched if mark.target in self.groups]
        return forget.covering(watched, self.scope_key, self.appended_at, margin_s)


def deliver(delivery: Delivery, *, forget_margin_s: float = forget.MARGIN_S) -> Steps[Settled]:
    """Return what became of this delivery. Raises `errors.ContractViolation`, `errors.ScopeRefused`,
    `errors.Unsupported` for what no retry will mend."""
    if delivery.kind == "order":
        return (yield from _order(delivery, forget_margin_s))
    incoming = _incoming(delivery)
    if incoming.over == incoming.id:
        return Settled(state=State.DEAD, reason="supersedes_itself")
    return (yield from _event(incoming, forget_margin_s))


def _event(new: Incoming, margin_s: float) -> Steps[Settled]:
    yield from _before(new)
    if new.retracted:
        mark = marks.Mark(what=marks.RETRACTED, target=new.id, by=new.id, scope_key=new.scope_key, at=new.at)
        yield from marks.write(mark)
    seen = yield from _content(new, margin_s)
    yield from _after(new)
    if marks.forgotten(seen.marks, new.scope_key):
        return Settled(state=State.FORGOTTEN)
    return Settled(state=State.STORED, conflict=_is_conflict(new, seen))


def _before(new: Incoming) -> Steps[None]:
    """What must hold before a superseder's content is there."""
    if new.over:
        yield from _supersede(new)
        yield from _compete_before(new)


def _after(new: Incoming) -> Steps[None]:
    if new.over:
        yield from rivals.compete(new.label, new.over, new.scope_key)


def _supersede(new: Incoming) -> Steps[None]:
    mark = marks.Mark(what=marks.SUPERSEDED, target=new.over, by=new.id, scope_key=new.scope_key, at=new.at)
    yield from marks.write(mark, cached=new.names)
    if new.names:  # a line has no content
        yield from settle.settle(new.label, new.over)


def _compete_before(new: Incoming) -> Steps[None]:
    yield from rivals.compete(new.label, new.over, new.scope_key)


def _content(new: Incoming, margin_s: float) -> Steps[settle.Seen]:
    """Return the last look at this event: its content is there and settled, or it is forgotten and gone."""
    while True:
        seen = yield from settle.look(new.label, new.id, new.watch)
        cover = new.cover(seen, margin_s)
        if marks.forgotten(seen.marks, new.scope_key):
            yield from _ended(new, cover)
            break
        if cover is not None:
            yield from marks.write(
                marks.Mark(what=marks.FORGOTTEN, target=new.id, by=cover.by, scope_key=new.scope_key, at=cover.at)
            )
            continue
        first: settle.Seen | None = seen
        if not seen.holds(new.row):
            yield from _write(new, seen)
            first = None
        seen = yield from settle.settle(new.label, new.id, new.watch, first)
        if seen.holds(new.row) and not marks.forgotten(seen.marks, new.scope_key) and new.cover(seen, margin_s) is None:
            break
    # Also what an earlier copy of this delivery put there, and died; or the delivery of other content under this id.
    if not _is_current(new, seen) or _is_conflict(new, seen):
        yield (CacheDrop(scope_key=new.scope_key, id=new.id),)
    return seen


def _write(new: Incoming, seen: settle.Seen) -> Steps[None]:
    """Write the content, with the links whose other end may be there, and into the recent writes."""
    writes: list[Request] = [Upsert(label=new.label, merge_by=content.merge_by(new.label), row=new.row)]
    if new.label == EPISODE:
        (sessions,) = yield (Find(label=SESSION, key="sessionKey", value=str(new.row["sessionKey"])),)
        if not sessions:
            writes.append(graph.session_upsert(new.row))
        writes.append(graph.in_session(new.id))
    elif new.label == FACT:
        if graph.is_event_id(new.row["sourceEventId"]):
            writes.append(graph.from_episode(new.id, new.scope_key))
        if new.names:
            writes.append(graph.supersedes(new.id, new.scope_key))
    said = marks.standing(seen.marks, new.scope_key)
    if new.label in content.ID and not said.claims and said.retracted_at is None:
        record = {**new.row, "active": True} if new.label == FACT else new.row
        writes.append(CachePut(scope_key=new.scope_key, entry={"id": new.id, "label": new.label, "record": record}))
    yield tuple(writes)


def _ended(new: Incoming, cover: marks.Mark | None) -> Steps[None]:
    """An event that turned out forgotten leaves nothing, whatever an earlier copy of this delivery wrote."""
    yield from settle.settle(new.label, new.id)
    yield (CacheDrop(scope_key=new.scope_key, id=new.id),)
    if new.label == EPISODE:
        session_key = str(new.row["sessionKey"])
        while True:
            (sessions,) = yield (Find(label=SESSION, key="sessionKey", value=session_key),)
            if not (yield from graph.fold_sessions(sessions)):
                break
        if cover is not None:
            yield from forget.clear_session(session_key)


def _is_current(new: Incoming, seen: settle.Seen) -> bool:
    said = marks.standing(seen.marks, new.scope_key)
    if said.forgotten or said.claims or said.retracted_at is not None:
        return False
    stands = content.standing(seen.records, new.label, new.scope_key)
    return bool(stands) and stands[0].get("contentHash") == new.row["contentHash"]


def _is_conflict(new: Incoming, seen: settle.Seen) -> bool:
    """Whether other content is there in this scope under this id."""
    hashes = {r.get("contentHash") for r in seen.records if content.is_ours(r) and r.get("scopeKey") == new.scope_key}
    return len(hashes) > 1


def _order(delivery: Delivery, margin_s: float) -> Steps[Settled]:
    order = delivery.event
    what = order.get("what")
    if what == "entity":
        return (yield from _event(_thing(delivery), margin_s))
    if what == "link":
        ends = links.ends_of(order, forget.scope_of(order).key)
        yield from links.write(ends, identity.normal_time(order.get("at", "")))
        while (yield from links.mend_pair(ends)):
            pass
    elif what == "forget":
        target = forget.target_of(order)
        yield from forget.forget(delivery.id, target, identity.normal_time(order.get("at", "")), margin_s=margin_s)
    elif what == "retract":
        target_id = order.get("target")
        if not isinstance(target_id, str) or not target_id:
            raise errors.ContractViolation("names no fact", field="order.target")
        mark = marks.Mark(
            what=marks.RETRACTED,
            target=target_id,
            by=delivery.id,
            scope_key=forget.scope_of(order).key,
            at=identity.normal_time(order.get("at", "")),
        )
        yield from marks.write(mark)
        yield from settle.settle(FACT, target_id)
    else:
        raise errors.Unsupported("this worker does not know this kind of order")
    return Settled(state=State.STORED)


def _incoming(delivery: Delivery) -> Incoming:
    event: Mapping[str, Any] = delivery.event
    label = content.label_of(event)
    scope_key = keys.scope_key(event)
    session_key, line_key = delivery.session_key or "", delivery.line_key or ""
    if label == EPISODE:  # it follows from the event, and no line may say otherwise
        session_key = keys.session_key(
            runtime=event["runtime"], external_session_id=event["externalSessionId"], scope=event
        )
    named = event.get("supersedesFactId") or ""
    return Incoming(
        label=label,
        id=event[content.ID[label]],
        row=content.row_of(event, scope_key=scope_key, session_key=session_key, line_key="" if named else line_key),
        scope_key=scope_key,
        at=content.time_of(event),
        over=named or line_key,
        names=bool(named),
        retracted=label == FACT and event.get("active") is False,
        groups=forget.groups_of(event, session_key),
        appended_at=identity.normal_time(delivery.appended_at),
    )


def _thing(delivery: Delivery) -> Incoming:
    label, row = objects.row_of(delivery.event)
    key = str(row[content.OBJECT_KEY[label]])
    return Incoming(
        label=label,
        id=str(row["contentHash"]),
        row=row,
        scope_key=str(row["scopeKey"]),
        at=str(row["validFrom"]),
        over=key,
        names=False,
        retracted=False,
        groups=forget.groups_of(row, ""),
        appended_at=identity.normal_time(delivery.appended_at),
        linked_as=key,
    )
