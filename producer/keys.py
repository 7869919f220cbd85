"""The keys of stored records: each is the sha256 of the canonical JSON of an object with exactly the names given here.

    scopeKey     {agentId, profileId, privacyScope, participantScopeHash, sandboxEligible}
    sessionKey   {runtime, externalSessionId, and the five}
    markKey      {what, target, by, scopeKey, at}
    lineKey      {scopeKey, subjectKey, kind} of a subject, {sessionKey, sourceEventId} of a prompt
    entityKey, taskKey, artifactKey    {label, scopeKey, kind, name}
    a group to forget                  {session}, {participant}, {agentId, profileId}, or a thing's key by its name
    contentHash  the event, its times normalised, without observedAt, validFrom, active and confidence

Stored records carry them, also those of other programs on the same store: they never change. Golden vectors pin them.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from producer import identity

__all__ = [
    "OWN_PROPERTIES",
    "SCOPE_FIELDS",
    "content_hash",
    "group_object",
    "group_participant",
    "group_profile",
    "group_session",
    "line_key_of_prompt",
    "line_key_of_subject",
    "mark_key",
    "object_key",
    "scope_key",
    "session_key",
]

SCOPE_FIELDS = ("agentId", "profileId", "privacyScope", "participantScopeHash", "sandboxEligible")

# Property names of stored records, which a thing's own properties may not take.
OWN_PROPERTIES = frozenset(
    {
        *("contentHash", "scopeKey", "sessionKey", "lineKey", "markKey", "eventId", "factId", "schemaVersion"),
        *("entityKey", "taskKey", "artifactKey", "kind", "name", "runtime", "sourceEventId", "trustClass"),
        *("provenance", "validFrom", "active", "retractedAt", "supersededAt", "supersededByEventId"),
        *("supersededByFactId", "supersededByHash", *SCOPE_FIELDS),
    }
)

# The copy that is stored first decides these; a turn captured twice is one record, whatever the clock said.
_OUTSIDE_CONTENT = frozenset({"observedAt", "validFrom", "active", "confidence"})


class _HasFields(Protocol):
    def fields(self) -> Mapping[str, Any]: ...


def scope_key(fields: Mapping[str, Any] | _HasFields) -> str:
    """Key of a scope: a `scope.Scope`, its fields, or anything that carries the five (an event, a record)."""
    return _hash(_five(fields))


def session_key(*, runtime: str, external_session_id: str, scope: Mapping[str, Any] | _HasFields) -> str:
    """Key of a conversation within a scope."""
    return _hash({"runtime": runtime, "externalSessionId": external_session_id, **_five(scope)})


def mark_key(*, what: str, target: str, by: str, scope_key: str, at: str) -> str:
    """Key of a mark: saying the same thing twice is saying it once."""
    return _hash({"what": what, "target": target, "by": by, "scopeKey": scope_key, "at": at})


def line_key_of_subject(*, scope_key: str, subject_key: str, kind: str) -> str:
    """The line that facts of a single-valued kind about one subject stand on."""
    return _hash({"scopeKey": scope_key, "subjectKey": subject_key, "kind": kind})


def line_key_of_prompt(*, session_key: str, source_event_id: str) -> str:
    """The line that the captures of one prompt stand on."""
    return _hash({"sessionKey": session_key, "sourceEventId": source_event_id})


def object_key(*, label: str, scope_key: str, kind: str, name: str) -> str:
    """entityKey, taskKey or artifactKey of a named thing; `label` is ENTITY, TASK or ARTIFACT."""
    return _hash({"label": label, "scopeKey": scope_key, "kind": kind, "name": name})


def group_session(session_key: str) -> str:
    """The group of all records of one conversation."""
    return _hash({"session": session_key})


def group_participant(participant_scope_hash: str) -> str:
    """The group of all records of one participant."""
    return _hash({"participant": participant_scope_hash})


def group_profile(agent_id: str, profile_id: str) -> str:
    """The group of all records of one profile of an agent."""
    return _hash({"agentId": agent_id, "profileId": profile_id})


def group_object(name: str, key: str) -> str:
    """The group of all versions of one thing; `name` is entityKey, taskKey or artifactKey."""
    return _hash({name: key})


def content_hash(event: Mapping[str, Any]) -> str:
    """Hash of what an event says. Raises `errors.ContractViolation` when `validUntil` is no time."""
    content = {name: value for name, value in event.items() if name not in _OUTSIDE_CONTENT}
    if content.get("validUntil") is not None:
        content["validUntil"] = identity.normal_time(content["validUntil"])
    return _hash(content)


def _five(scope: Mapping[str, Any] | _HasFields) -> dict[str, Any]:
    fields = scope if isinstance(scope, Mapping) else scope.fields()
    return {name: fields[name] for name in SCOPE_FIELDS}


def _hash(value: Mapping[str, Any]) -> str:
    return identity.sha256_hex(identity.canonical_json(value))
