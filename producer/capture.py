"""From a completed turn, a fact or an order to the plain form that the journal holds. Standard library only.

A text goes through these steps, in this order, because each would undo the work of a later one:

    decode and make Unicode   bytes with replacement, NULs removed, lone surrogates become U+FFFD
    strip                     whole blocks of recalled memory that we put there ourselves
    redact                    secrets and local paths, before a cut can split one
    bound                     the contract's `bounded_text`; never in the middle of a character

What a caller gets wrong is refused here (`errors.ContractViolation`, naming the field), before anything is durable: the
worker would only dead-letter it. The same checks, and the published schema, stand again in `producer.contract`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from producer import errors, identity, keys, redaction
from producer import scope as scopes
from producer.recall import formatting

__all__ = [
    "Captured",
    "build_entity_order",
    "build_episode",
    "build_fact",
    "build_forget_order",
    "build_link_order",
    "build_retract_order",
    "clean_text",
    "latest_pair",
    "order_id",
    "safe_name",
    "safe_text",
    "session_id_of",
]

MAX_UNITS = 6000
MAX_NAME_UNITS = 512  # kind, subjectKey, provenance, originClass: names, not texts
MAX_PROPERTIES = 32  # of an ENTITY, TASK or ARTIFACT
MAX_TURN_INDEX = 2**53 - 1
_GIANT = 1 << 16  # characters looked at; a text is cut there first, so that a giant one costs bounded time,
_SEAM = 1 << 13  # at a space no further back than this, or that far: a cut within a word could split a secret

_TOOL_ROLES = frozenset({"tool", "function", "toolResult"})
_TOOL_RESULTS = frozenset({"tool_result", "toolResult", "function_call_output"})
_TOOL_CALLS = frozenset({"tool_use", "toolCall", "tool_call", "function_call"})
_BROKEN_OFF = frozenset({"error", "aborted", "cancelled", "canceled", "interrupted"})

_THINGS = ("ENTITY", "TASK", "ARTIFACT")
_THING_KEYS = ("entityKey", "taskKey", "artifactKey")
_KEY = re.compile(r"[0-9a-f]{64}\Z")
_OWN_LINKS = ("IN_SESSION", "FROM_EPISODE", "SUPERSEDES")

_CHOICES = {
    "runtime": scopes.RUNTIMES,
    "conversationKind": ("direct", "local", "shared"),
    "visibility": ("participant", "profile", "shared"),
    "trustClass": ("trusted", "mixed", "untrusted"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """A plain event, and how much of which kind was redacted in it."""

    event: dict[str, Any]
    redactions: dict[str, int]

    @property
    def id(self) -> str:
        """eventId or factId."""
        return str(self.event["eventId"] if self.event["eventType"] == "episode" else self.event["factId"])


def clean_text(text: str | bytes) -> str:
    """Unicode text without NULs: bytes decoded as UTF-8, what is broken replaced by U+FFFD."""
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text).decode("utf-8", "replace")
    return identity.well_formed(text.replace("\0", ""))


def safe_text(text: str | bytes, *, max_units: int = MAX_UNITS) -> tuple[str, dict[str, int]]:
    """The text as an event may hold it, and the count of redactions by kind; see the module for the steps.

    What is kept between two hooks (a prompt waiting for its answer) is made by this, and made again it stays as it is.
    """
    cleaned = formatting.strip_recalled(clean_text(text)).strip(identity.JS_SPACE)
    redacted, counts = redaction.redact(_head(cleaned, max(_GIANT, 8 * max_units)))
    return _bounded(redacted, max_units), counts


def safe_name(name: str) -> str:
    """A name (kind, name of a thing) as orders hold it. Raises `errors.ContractViolation`."""
    return _name("name", name, {})


def latest_pair(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The last user text and the final assistant text after it; None when the last turn is not completed: it has no
    answer, ends in a tool call or a tool's result, or in an answer that its host calls failed or broken off.

    Messages are `role` and `content` (text, or blocks of which those with `type: text` count). System and developer
    messages, tool calls and tool results are passed over.
    """
    answer = ""
    for message in reversed(messages):
        role, content = str(message.get("role")), message.get("content")
        text = _text_of(content)
        if role == "assistant":
            if not answer and (_calls_tools(message) or _was_broken_off(message)):
                return None
            answer = answer or text
        elif role in _TOOL_ROLES or _has_block(content, _TOOL_RESULTS):
            if not answer:
                return None
        elif role == "user" and text:
            return (text, answer) if answer else None
    return None


def session_id_of(external_session_id: str) -> str:
    """externalSessionId as events carry it: session keys and "not this session" at recall are made of this form.

    Raises `errors.ScopeRefused` for an id that names no conversation of one person.
    """
    return _id(scopes.clean_session_id(external_session_id))


def build_episode(
    *,
    scope: scopes.Scope,
    runtime: str,
    external_session_id: str,
    source_event_id: str | None,
    turn_index: int,
    user_text: str | bytes,
    assistant_text: str | bytes,
    observed_at: str,
    conversation_kind: str,
    visibility: str,
    trust_class: str,
    origin_class: str,
    provenance: str,
    max_units: int = MAX_UNITS,
) -> Captured:
    """The event of a completed turn. Without a `source_event_id` of the host it gets one of its own, never used before.

    Raises `errors.ContractViolation` or `errors.ScopeRefused`.
    """
    counts: dict[str, int] = {}
    user = _text("userText", user_text, max_units, counts)
    assistant = _text("assistantText", assistant_text, max_units, counts)
    if isinstance(turn_index, bool) or not isinstance(turn_index, int) or not 0 <= turn_index <= MAX_TURN_INDEX:
        raise errors.ContractViolation("is not a whole number of 0 or more", field="turnIndex")
    event: dict[str, Any] = {
        "schemaVersion": identity.SCHEMA_VERSION,
        "eventType": "episode",
        "runtime": _choice("runtime", runtime),
        **scope.fields(),
        "externalSessionId": session_id_of(external_session_id),
        "sourceEventId": _source_id("sourceEventId", source_event_id),
        "turnIndex": turn_index,
        "userText": user,
        "assistantText": assistant,
        "summary": _summary(user, assistant, max_units),
        "conversationKind": _choice("conversationKind", conversation_kind),
        "visibility": _choice("visibility", visibility),
        "trustClass": _choice("trustClass", trust_class),
        "originClass": _name("originClass", origin_class, counts),
        "observedAt": _time("observedAt", observed_at),
        "provenance": _name("provenance", provenance, counts),
    }
    event["eventId"] = identity.episode_event_id(event)
    return Captured(event=event, redactions=counts)


def build_fact(
    *,
    scope: scopes.Scope,
    runtime: str,
    text: str | bytes,
    kind: str,
    subject_key: str,
    source_event_id: str | None,
    valid_from: str,
    visibility: str,
    trust_class: str,
    provenance: str,
    confidence: float = 1.0,
    active: bool = True,
    supersedes_fact_id: str | None = None,
    valid_until: str | None = None,
    max_units: int = MAX_UNITS,
) -> Captured:
    """The event of a fact. Without a `source_event_id` it gets one of its own: a value said again is a new fact.

    Raises `errors.ContractViolation` or `errors.ScopeRefused`.
    """
    counts: dict[str, int] = {}
    if isinstance(confidence, bool) or not isinstance(confidence, (int, float)) or not 0 <= confidence <= 1:
        raise errors.ContractViolation("is not a number from 0 to 1", field="confidence")
    if not isinstance(active, bool):
        raise errors.ContractViolation("is not true or false", field="active")
    event: dict[str, Any] = {
        "schemaVersion": identity.SCHEMA_VERSION,
        "eventType": "fact",
        "runtime": _choice("runtime", runtime),
        **scope.fields(),
        "text": _text("text", text, max_units, counts, names=(kind, subject_key)),
        "kind": _name("kind", kind, counts),
        "subjectKey": _name("subjectKey", subject_key, counts),
        "confidence": confidence,
        "active": active,
        "sourceEventId": _source_id("sourceEventId", source_event_id),
        "validFrom": _time("validFrom", valid_from),
        "visibility": _choice("visibility", visibility),
        "trustClass": _choice("trustClass", trust_class),
        "provenance": _name("provenance", provenance, counts),
    }
    if valid_until is not None:
        event["validUntil"] = _time("validUntil", valid_until)
    event["factId"] = identity.fact_id(event)
    if supersedes_fact_id is not None:
        event["supersedesFactId"] = _target("supersedesFactId", supersedes_fact_id)
        if supersedes_fact_id == event["factId"]:
            raise errors.ContractViolation("is the fact itself", field="supersedesFactId")
    return Captured(event=event, redactions=counts)


def build_retract_order(*, scope: scopes.Scope, runtime: str, target: str, at: str) -> dict[str, Any]:
    """The order that a fact no longer holds. Its id is `order_id(order)`."""
    return {
        "what": "retract",
        "scope": scope.fields(),
        "target": _target("target", target),
        "at": _time("at", at),
        "nonce": os.urandom(16).hex(),
        "runtime": _choice("runtime", runtime),
    }


def build_forget_order(
    *,
    scope: scopes.Scope | None,
    runtime: str,
    at: str,
    target: str | None = None,
    group: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The order to forget one event or fact (`target`), or a group: `{"session": sessionKey}`,
    `{"participant": participantScopeHash}`, `{"agentId": …, "profileId": …}`, or all versions of a thing by its
    `{"entityKey": …}`, `{"taskKey": …}` or `{"artifactKey": …}`. Its id is `order_id(order)`.

    A host forgets within its own scope. `scope` None is an operator's order: it counts everywhere, and the worker wants
    a key with that right.
    """
    if (target is None) == (group is None):
        raise errors.ContractViolation("names either a target or a group", field="target")
    order: dict[str, Any] = {
        "what": "forget",
        **({"everywhere": True} if scope is None else {"scope": scope.fields()}),
        "at": _time("at", at),
        "nonce": os.urandom(16).hex(),
        "runtime": _choice("runtime", runtime),
    }
    if target is not None:
        order["target"] = _target("target", target)
    if group is not None:
        order["group"] = _group(group, scope)
    return order


def build_entity_order(
    *,
    scope: scopes.Scope,
    runtime: str,
    label: str,
    kind: str,
    name: str,
    properties: Mapping[str, Any],
    source_event_id: str | None,
    trust_class: str,
    provenance: str,
    at: str,
    max_units: int = MAX_UNITS,
) -> dict[str, Any]:
    """A version of an ENTITY, TASK or ARTIFACT: texts redacted and bounded as in events. Its id is `order_id(order)`;
    its key is `keys.object_key` of its label, scope, kind and name, as they stand in it."""
    if label not in _THINGS:
        raise errors.ContractViolation(f"is not one of {', '.join(_THINGS)}", field="label")
    counts: dict[str, int] = {}
    return {
        "what": "entity",
        "label": label,
        "kind": _name("kind", kind, counts),
        "name": _name("name", name, counts),
        "properties": _properties(properties, max_units, counts),
        "sourceEventId": _source_id("sourceEventId", source_event_id),
        "trustClass": _choice("trustClass", trust_class),
        "provenance": _name("provenance", provenance, counts),
        "scope": scope.fields(),
        "at": _time("at", at),
        "nonce": os.urandom(16).hex(),
        "runtime": _choice("runtime", runtime),
    }


def build_link_order(
    *, scope: scopes.Scope, runtime: str, type: str, source: tuple[str, str], target: tuple[str, str], at: str
) -> dict[str, Any]:
    """The order to link two records of this scope, each given as (label, key): an eventId, a factId, or the key of a
    thing. Its id is `order_id(order)`."""
    if not isinstance(type, str) or not re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", type) or type in _OWN_LINKS:
        raise errors.ContractViolation("is not an UPPER_CASE name, or one of ours", field="type")
    if source == target:
        raise errors.ContractViolation("links a record to itself", field="target")
    return {
        "what": "link",
        "type": type,
        "from": _end("source", source),
        "to": _end("target", target),
        "scope": scope.fields(),
        "at": _time("at", at),
        "nonce": os.urandom(16).hex(),
        "runtime": _choice("runtime", runtime),
    }


def order_id(order: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of the order; its nonce makes every order its own."""
    return identity.sha256_hex(identity.canonical_json(order))


def _text(field: str, text: str | bytes, max_units: int, counts: dict[str, int], *, names: Sequence[str] = ()) -> str:
    """The safe text. `names`: what it stands under, which may say that a text of one word is a secret."""
    if not isinstance(text, (str, bytes, bytearray)):
        raise errors.ContractViolation("is not text", field=field)
    safe, found = safe_text(text, max_units=max_units)
    if not safe:
        raise errors.ContractViolation("is blank", field=field)
    _add(counts, found)
    for name in names if not any(character.isspace() for character in safe) else ():
        told = f"{str(name)[:MAX_NAME_UNITS]}: "
        redacted, found = redaction.redact(told + safe)
        if found and redacted.startswith(told):
            _add(counts, found)
            return _bounded(redacted.removeprefix(told), max_units)
    return safe


def _name(field: str, name: str, counts: dict[str, int]) -> str:
    if not isinstance(name, str):
        raise errors.ContractViolation("is not text", field=field)
    if len(name) > 4 * MAX_NAME_UNITS:
        raise errors.ContractViolation("is too long", field=field)
    redacted, found = redaction.redact(clean_text(name).strip(identity.JS_SPACE))
    if not redacted:
        raise errors.ContractViolation("is blank", field=field)
    if identity.utf16_length(redacted) > MAX_NAME_UNITS:
        raise errors.ContractViolation("is too long", field=field)
    _add(counts, found)
    return redacted


def _source_id(field: str, source_id: str | None) -> str:
    if source_id is not None and not isinstance(source_id, str):
        raise errors.ContractViolation("is not text", field=field)
    cleaned = clean_text(source_id or "").strip(identity.JS_SPACE)
    return _id(cleaned) if cleaned else f"write-{os.urandom(16).hex()}"


def _id(text: str) -> str:
    """An id of the host's. One that is too long or holds a secret or a path is named by its hash: it stays one id."""
    if len(text) <= MAX_NAME_UNITS and not redaction.redact(text)[1]:
        return text
    return f"sha256-{identity.sha256_hex(text)}"


def _properties(given: Mapping[str, Any], max_units: int, counts: dict[str, int]) -> dict[str, Any]:
    if not isinstance(given, Mapping) or len(given) > MAX_PROPERTIES:
        raise errors.ContractViolation(f"is not a mapping of at most {MAX_PROPERTIES}", field="properties")
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][A-Za-z0-9]{0,63}", name):
            raise errors.ContractViolation("holds a name that is not camelCase", field="properties")
        if name in keys.OWN_PROPERTIES:
            raise errors.ContractViolation("holds a name that stored records use themselves", field="properties")
        if isinstance(value, str | bytes):
            kept[name] = _text("properties", value, min(max_units, MAX_UNITS), counts, names=(name,))
        elif isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max:  # and no int beyond it
            kept[name] = value
        else:
            raise errors.ContractViolation("holds a value that is not text, number or boolean", field="properties")
    return kept


def _end(field: str, end: tuple[str, str]) -> dict[str, str]:
    label, key = end
    if label not in ("EPISODE", "MEMORY_FACT", *_THINGS):
        raise errors.ContractViolation("is not the label of a record", field=field)
    return {"label": label, "key": _target(field, key)}


def _target(field: str, target: str) -> str:
    if not isinstance(target, str) or len(target) != 64 or not set(target) <= set("0123456789abcdef"):
        raise errors.ContractViolation("is not an eventId or factId", field=field)
    return target


def _group(group: Mapping[str, str], scope: scopes.Scope | None) -> dict[str, str]:
    own = {}
    if scope is not None:
        own = {
            "participant": scope.participant_scope_hash,
            "agentId": scope.agent_id,
            "profileId": scope.profile_id,
        }
    if set(group) not in ({"session"}, {"participant"}, {"agentId", "profileId"}, *({name} for name in _THING_KEYS)):
        raise errors.ContractViolation("is not a session, a participant, a profile or a thing", field="group")
    for name, value in group.items():
        if not isinstance(value, str) or not value:
            raise errors.ContractViolation("is not text", field=f"group.{name}")
        if own.get(name, value) != value:
            raise errors.ContractViolation("is not within the order's own scope", field=f"group.{name}")
        if name in _THING_KEYS and not _KEY.match(value):
            raise errors.ContractViolation("is not a thing's key of 64 hex digits", field=f"group.{name}")
    return dict(group)


def _choice(field: str, value: str) -> str:
    if value not in _CHOICES[field]:
        raise errors.ContractViolation(f"is not one of {', '.join(_CHOICES[field])}", field=field)
    return value


def _time(field: str, text: str) -> str:
    try:
        return identity.normal_time(text)
    except errors.ContractViolation as problem:
        raise errors.ContractViolation(problem.reason, field=field) from None


def _head(text: str, length: int) -> str:
    """At most this many characters of the text, cut where no secret can be split."""
    if len(text) <= length:
        return text
    space = max(text.rfind(" ", length - _SEAM, length), text.rfind("\n", length - _SEAM, length))
    return text[: space if space >= 0 else length - _SEAM] + identity.ELLIPSIS


def _bounded(text: str, max_units: int) -> str:
    """The contract's bound, one unit shorter where it would split a character."""
    cut = identity.bounded_text(text, max_units)
    if len(cut) > 1 and "\ud800" <= cut[-2] <= "\udbff":  # the text had no lone surrogate: the cut made this one
        return identity.bounded_text(text, max_units - 1)
    return cut


def _summary(user: str, assistant: str, max_units: int) -> str:
    """Both sides, each with at least half of the room: this is the only text that search sees of a turn."""
    first, second = "User: ", "\nAssistant: "
    room = max(2, max_units - len(first) - len(second) - 2)  # 2: both cuts add an ellipsis
    half = room // 2
    user_units, assistant_units = identity.utf16_length(user), identity.utf16_length(assistant)
    user_room = max(half, room - assistant_units)
    assistant_room = max(half, room - min(user_units, user_room))
    return f"{first}{_bounded(user, user_room)}{second}{_bounded(assistant, assistant_room)}"


def _text_of(content: Any) -> str:
    if isinstance(content, (str, bytes)):
        return clean_text(content).strip(identity.JS_SPACE)
    if isinstance(content, Iterable):
        texts = [
            clean_text(block["text"])
            for block in content
            if isinstance(block, Mapping)
            and block.get("type") in ("text", "input_text", "output_text")
            and isinstance(block.get("text"), (str, bytes))
        ]
        return "\n".join(texts).strip(identity.JS_SPACE)
    return ""


def _has_block(content: Any, types: frozenset[str]) -> bool:
    return isinstance(content, (list, tuple)) and any(
        isinstance(block, Mapping) and str(block.get("type")) in types for block in content
    )


def _calls_tools(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls")) or _has_block(message.get("content"), _TOOL_CALLS)


def _was_broken_off(message: Mapping[str, Any]) -> bool:
    return any(str(message.get(name)) in _BROKEN_OFF for name in ("stopReason", "stop_reason", "finish_reason"))


def _add(counts: dict[str, int], found: Mapping[str, int]) -> None:
    for kind, number in found.items():
        counts[kind] = counts.get(kind, 0) + number
