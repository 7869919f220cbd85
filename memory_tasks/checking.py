"""Asking whether dead lines were forgotten meanwhile: marks are read, and nothing is written.

A dead line may break the contract or lack a scope, so what it says of itself is taken as far as it goes: marks on its
id and on the groups that it names. Without a whole scope only an operator's marks count, which count in every scope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_tasks import tenants
from producer import errors, keys, message
from producer.convergence import forget, marks
from producer.journal import line as lines
from producer.scope import Scope
from producer.store import port

__all__ = ["Question", "forgotten", "question_of"]

_TARGETS = 300  # measured: a find of three hundred keys costs the same as of one
_NO_SCOPE = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a dead line could be forgotten by."""

    id: str
    groups: tuple[str, ...]
    scope_key: str  # empty: it names no whole scope
    appended_at: str


def question_of(item: message.Item, grant: tenants.Grant) -> Question | None:
    """The question of a line; None when nobody can forget it: an order, damage, or a scope the key may not ask for."""
    if not item.line.isascii():
        return None
    try:
        line = lines.parse(item.line)
    except errors.DamagedLine:
        return None
    event = line.body.get("event")
    if line.kind != "event" or not isinstance(event, Mapping):
        return None
    try:
        scope_key = Scope.of_fields({name: event.get(name) for name in keys.SCOPE_FIELDS}).key
    except errors.ScopeRefused:
        return Question(id=line.id, groups=(), scope_key=_NO_SCOPE, appended_at=line.appended_at)
    if not grant.allows(event["agentId"], event["profileId"]):
        return None
    groups = forget.groups_of(event, _session_key(line, event))
    return Question(id=line.id, groups=groups, scope_key=scope_key, appended_at=line.appended_at)


def forgotten(store: port.Store, asked: Sequence[Question], *, margin_s: float) -> list[bool]:
    """The answer to each. Raises what the store raises."""
    targets = sorted({target for question in asked for target in (question.id, *question.groups)})
    found: dict[str, list[marks.Mark]] = {}
    for start in range(0, len(targets), _TARGETS):
        for mark in marks.read(_marks(store, targets[start : start + _TARGETS])):
            found.setdefault(mark.target, []).append(mark)
    return [_is_forgotten(question, found, margin_s) for question in asked]


def _marks(store: port.Store, targets: Sequence[str]) -> list[port.Record]:
    where = {"what": marks.FORGOTTEN, "target": {"$in": list(targets)}}
    page = store.find(marks.MARK, where)
    if page.total <= len(page.records):
        return list(page.records)
    if len(targets) > 1:  # more than one answer holds
        middle = len(targets) // 2
        return _marks(store, targets[:middle]) + _marks(store, targets[middle:])
    records = list(page.records)
    while page.records and len(records) < page.total:
        page = store.find(marks.MARK, where, skip=len(records))
        records += page.records
    return records


def _is_forgotten(question: Question, found: Mapping[str, Sequence[marks.Mark]], margin_s: float) -> bool:
    if marks.forgotten(found.get(question.id, ()), question.scope_key):
        return True
    watched = [mark for group in question.groups for mark in found.get(group, ())]
    try:
        return forget.covering(watched, question.scope_key, question.appended_at, margin_s) is not None
    except errors.ContractViolation:  # no time that anybody could compare
        return False


def _session_key(line: lines.Line, event: Mapping[str, Any]) -> str:
    runtime, session = event.get("runtime"), event.get("externalSessionId")
    if event.get("eventType") == "episode" and isinstance(runtime, str) and isinstance(session, str):
        return keys.session_key(runtime=runtime, external_session_id=session, scope=event)
    given = line.body.get("sessionKey")
    return given if isinstance(given, str) else ""
