"""AgentMemoryEvent v1 as pydantic models, and validation at a worker's door.

`validate` accepts exactly what the published schema (`producer/schema/`) accepts, and beyond it refuses what no store
of ours could keep, or what would mean something else in another language:

    eventId, factId         is not the id of this content (it is computed again, so that none can be forged)
    times                   not a calendar time with an offset
    schemaVersion, turnIndex, confidence    a whole number written with a fraction; more than 2**53 - 1; NaN
    agentId, profileId      blank, or with control characters (see `producer.scope`)
    any text                not Unicode: a lone surrogate has no UTF-8 form
    supersedesFactId        the fact itself
    the event as a whole    as long as a journal line may be, or longer

Nothing is coerced. `errors.ContractViolation` names the field and a stable reason, and quotes no value.
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from producer import errors, identity, scope
from producer.journal import line

__all__ = ["AgentMemoryEvent", "Episode", "Fact", "check_schema", "published_schema", "validate"]

SCHEMA_FILE = Path(__file__).with_name("schema") / "agent-memory-event.v1.schema.json"
LINE_OVERHEAD_BYTES = 4096  # what a journal line holds beside its event

_Hash = Annotated[str, Field(pattern=r"^[a-f0-9]{64}$")]
_NonEmpty = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
_Share = Annotated[int | float, Field(ge=0, le=1, allow_inf_nan=False)]


class AgentMemoryEvent(pydantic.BaseModel):
    """What episodes and facts share. Fields are the contract's, in Python's spelling; `plain` gives them back."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
    )

    schema_version: Literal[1]
    event_type: Literal["episode", "fact"]
    runtime: Literal["openclaw", "hermes", "custom"]
    agent_id: _NonEmpty
    profile_id: _NonEmpty
    privacy_scope: Literal["private", "shared"]
    participant_scope_hash: _Hash
    sandbox_eligible: bool

    def __repr__(self) -> str:
        """Without the texts: an event may end up in a log."""
        return f"{type(self).__name__}({self.id})"

    __str__ = __repr__

    @property
    @abc.abstractmethod
    def id(self) -> str:
        """eventId or factId."""

    @property
    def scope(self) -> scope.Scope:
        """The five fields as one value."""
        return scope.Scope.of_fields(self.plain())

    def plain(self) -> dict[str, Any]:
        """The plain event: the names and values that were validated, and no others."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class Episode(AgentMemoryEvent):
    """A completed turn."""

    event_type: Literal["episode"]
    external_session_id: _NonEmpty
    source_event_id: str = ""
    turn_index: _Count
    user_text: str
    assistant_text: str
    summary: _NonEmpty
    conversation_kind: Literal["direct", "local", "shared"]
    channel_id_hash: _Hash | None = None
    visibility: Literal["participant", "profile", "shared"]
    trust_class: Literal["trusted", "mixed", "untrusted"]
    origin_class: str
    observed_at: str
    provenance: str
    event_id: _Hash

    @property
    def id(self) -> str:
        return self.event_id


class Fact(AgentMemoryEvent):
    """A derived unit: a fact, a preference, a rule."""

    event_type: Literal["fact"]
    text: _NonEmpty
    kind: _NonEmpty
    subject_key: _NonEmpty
    confidence: _Share
    active: bool
    source_event_id: _NonEmpty
    valid_from: str
    visibility: Literal["participant", "profile", "shared"]
    trust_class: Literal["trusted", "mixed", "untrusted"]
    provenance: str
    valid_until: str | None = None
    fact_id: _Hash
    supersedes_fact_id: str | None = None

    @property
    def id(self) -> str:
        return self.fact_id


_MODELS: dict[str, type[AgentMemoryEvent]] = {"episode": Episode, "fact": Fact}
_OPTIONAL = ("channelIdHash", "validUntil", "supersedesFactId")  # may be missing, may not be null
_TIMES = ("observedAt", "validFrom", "validUntil")
# pydantic's error types, in words of ours that stay when pydantic's change.
_REASONS = {
    "missing": "is missing",
    "extra_forbidden": "is not a field of this event",
    "string_type": "is not text",
    "bool_type": "is not true or false",
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "string_too_short": "is empty",
    "string_pattern_mismatch": "is not 64 hex digits",
    "literal_error": "is not one of the allowed values",
    "greater_than_equal": "is too small",
    "less_than_equal": "is too large",
}


def validate(event: Mapping[str, Any]) -> AgentMemoryEvent:
    """The event as a model. Raises `errors.ContractViolation`: permanent, a dead letter."""
    if not isinstance(event, Mapping):
        raise errors.ContractViolation("is not an object", field="event")
    version, event_type = event.get("schemaVersion"), event.get("eventType")
    if isinstance(version, bool) or not isinstance(version, int) or version != identity.SCHEMA_VERSION:
        raise errors.ContractViolation("is not a version that this software knows", field="schemaVersion")
    model = _MODELS.get(event_type) if isinstance(event_type, str) else None
    if model is None:
        raise errors.ContractViolation("is not episode or fact", field="eventType")
    _check_text(event)
    try:
        valid = model.model_validate(dict(event))
    except pydantic.ValidationError as problem:
        raise _violation(problem) from None  # the cause would hold the input
    _check_beyond_schema(valid, event)
    return valid


def check_schema(event: Mapping[str, Any]) -> None:
    """Hold the event against the published schema alone. Raises `errors.ContractViolation`. Needs `jsonschema`."""
    event_type = event.get("eventType")
    found = _validator(event_type if isinstance(event_type, str) else "").iter_errors(event)
    problem = min(found, key=lambda error: [str(part) for part in error.absolute_path], default=None)
    if problem is None:
        return
    field = ".".join(map(str, problem.absolute_path)) or "event"
    raise errors.ContractViolation(f"breaks the schema's {problem.validator}", field=field)


@cache
def published_schema() -> dict[str, Any]:
    """The published JSON Schema, as it is shipped."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text("utf-8"))
    return schema


@cache
def _validator(event_type: str) -> Any:
    import jsonschema

    whole = published_schema()
    if event_type in _MODELS:  # its own branch of the oneOf names the field, the whole would not
        whole = {"$schema": whole["$schema"], "$ref": f"#/$defs/{event_type}", "$defs": whole["$defs"]}
    return jsonschema.Draft202012Validator(whole)


def _check_text(event: Mapping[str, Any]) -> None:
    for name, value in event.items():
        for text in (name, value):
            if isinstance(text, str) and not text.isascii() and identity.well_formed(text) != text:
                raise errors.ContractViolation("is not Unicode text", field=_field(name))


def _check_beyond_schema(valid: AgentMemoryEvent, event: Mapping[str, Any]) -> None:
    for name in _OPTIONAL:
        if name in event and event[name] is None:
            raise errors.ContractViolation("is not text", field=name)
    for name in _TIMES:
        if name in event:
            try:
                identity.normal_time(event[name])
            except errors.ContractViolation as problem:
                raise errors.ContractViolation(problem.reason, field=name) from None
    try:
        scope.Scope.of_fields(event)
    except errors.ScopeRefused as problem:
        raise errors.ContractViolation(f"names no scope ({problem.reason})", field="agentId") from None
    if isinstance(valid, Fact):
        if valid.supersedes_fact_id == valid.fact_id:
            raise errors.ContractViolation("is the fact itself", field="supersedesFactId")
        if identity.fact_id(event) != valid.fact_id:
            raise errors.ContractViolation("is not the id of this content", field="factId")
    elif identity.episode_event_id(event) != valid.id:
        raise errors.ContractViolation("is not the id of this content", field="eventId")
    if len(json.dumps(event, separators=(",", ":"))) >= line.MAX_LINE_BYTES - LINE_OVERHEAD_BYTES:
        raise errors.ContractViolation("is too long", field="event")


def _violation(problem: pydantic.ValidationError) -> errors.ContractViolation:
    found = problem.errors(include_url=False, include_context=False, include_input=False)[0]
    name = found["loc"][0] if found["loc"] else "event"
    reason = _REASONS.get(found["type"], "is not valid")
    if len(found["loc"]) > 1 and found["type"] in ("int_type", "float_type"):  # neither of the two kinds of number
        reason = "is not a number"
    return errors.ContractViolation(reason, field=_field(name))


def _field(name: object) -> str:
    """A field's name, if it is one that somebody may have meant: an unknown one is a value as well."""
    return name if isinstance(name, str) and re.fullmatch(r"[A-Za-z]{1,40}", name) else "(unnamed)"
