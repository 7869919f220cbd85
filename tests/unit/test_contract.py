"""The models accept what the published schema accepts, apart from a listed few, and every refusal names its field."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer import capture, contract, errors, identity
from producer.scope import Scope

GOLDEN = Path(__file__).parent.parent / "golden"
VECTORS = json.loads((GOLDEN / "vectors.v1.json").read_text("utf-8"))

EPISODE: dict[str, Any] = {
    **VECTORS["episodes"][0]["input"],
    "schemaVersion": 1,
    "eventType": "episode",
    "eventId": VECTORS["episodes"][0]["eventId"],
}
FACT: dict[str, Any] = {
    **VECTORS["facts"][0]["input"],
    "schemaVersion": 1,
    "eventType": "fact",
    "factId": VECTORS["facts"][0]["factId"],
}
SCOPE = Scope.of_fields(EPISODE)
EVENTS = [pytest.param(EPISODE, id="episode"), pytest.param(FACT, id="fact")]


def _with_id(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("eventType") == "episode":
        return {**event, "eventId": identity.episode_event_id(event)}
    return {**event, "factId": identity.fact_id(event)}


def _refusal(event: Any) -> errors.ContractViolation:
    with pytest.raises(errors.ContractViolation) as refused:
        contract.validate(event)
    return refused.value


@pytest.mark.parametrize("name", ["episodes", "facts"])
def test_every_vector_that_is_unicode_is_a_valid_event_and_comes_back_as_it_was(name: str) -> None:
    event_type, id_field = {"episodes": ("episode", "eventId"), "facts": ("fact", "factId")}[name]
    for vector in VECTORS[name]:
        event = {**vector["input"], "schemaVersion": 1, "eventType": event_type, id_field: vector[id_field]}
        contract.check_schema(event)
        if json.dumps(event, ensure_ascii=False).isascii() or vector["name"] not in (
            "lone_high",
            "lone_low",
            "swapped",
        ):
            assert contract.validate(event).plain() == event
        else:
            assert "Unicode" in _refusal(event).reason


def test_the_plain_form_has_the_bytes_that_capture_wrote() -> None:
    episode = capture.build_episode(
        scope=SCOPE,
        runtime="custom",
        external_session_id="s",
        source_event_id="e",
        turn_index=3,
        user_text="hello 🚀",
        assistant_text="world",
        observed_at="2026-08-18T02:00:00+02:00",
        conversation_kind="local",
        visibility="participant",
        trust_class="mixed",
        origin_class="conversation",
        provenance="test",
    )
    fact = capture.build_fact(
        scope=SCOPE,
        runtime="custom",
        text="Prefers tea",
        kind="preference",
        subject_key="user:drink",
        source_event_id=None,
        valid_from="2026-08-18T00:00:00Z",
        valid_until="2027-08-18T00:00:00Z",
        supersedes_fact_id="0" * 64,
        confidence=1,
        visibility="participant",
        trust_class="trusted",
        provenance="test",
    )
    for captured in (episode, fact):
        contract.check_schema(captured.event)
        valid = contract.validate(captured.event)
        assert json.dumps(valid.plain()) == json.dumps(captured.event)
        assert valid.id == captured.id
        assert valid.scope == SCOPE


@pytest.mark.parametrize("event", EVENTS)
def test_a_forged_id_is_refused(event: dict[str, Any]) -> None:
    field = "eventId" if event["eventType"] == "episode" else "factId"
    for forged in ({field: "0" * 64}, {"agentId": "other"}):
        assert _refusal({**event, **forged}).field == field


@pytest.mark.parametrize(
    ("event", "change", "field"),
    [
        (EPISODE, {"schemaVersion": 2}, "schemaVersion"),
        (EPISODE, {"schemaVersion": True}, "schemaVersion"),
        (EPISODE, {"schemaVersion": "1"}, "schemaVersion"),
        (EPISODE, {"schemaVersion": 1.0}, "schemaVersion"),
        (EPISODE, {"eventType": "Episode"}, "eventType"),
        (EPISODE, {"eventType": ["episode"]}, "eventType"),
        (EPISODE, {"runtime": "claude"}, "runtime"),
        (EPISODE, {"turnIndex": "7"}, "turnIndex"),
        (EPISODE, {"turnIndex": 7.0}, "turnIndex"),
        (EPISODE, {"turnIndex": True}, "turnIndex"),
        (EPISODE, {"turnIndex": -1}, "turnIndex"),
        (EPISODE, {"turnIndex": 2**53}, "turnIndex"),
        (EPISODE, {"userText": ["x"]}, "userText"),
        (EPISODE, {"userText": "\ud83d"}, "userText"),
        (EPISODE, {"sandboxEligible": "false"}, "sandboxEligible"),
        (EPISODE, {"summary": ""}, "summary"),
        (EPISODE, {"externalSessionId": ""}, "externalSessionId"),
        (EPISODE, {"participantScopeHash": "F" * 64}, "participantScopeHash"),
        (EPISODE, {"channelIdHash": None}, "channelIdHash"),
        (EPISODE, {"channelIdHash": "x"}, "channelIdHash"),
        (EPISODE, {"observedAt": "yesterday"}, "observedAt"),
        (EPISODE, {"observedAt": "2026-08-18T00:00:00"}, "observedAt"),
        (EPISODE, {"text": "x"}, "text"),
        (EPISODE, {"agentId": " "}, "agentId"),
        (EPISODE, {"profileId": "a\x1fb"}, "agentId"),
        (FACT, {"confidence": 1.1}, "confidence"),
        (FACT, {"confidence": float("nan")}, "confidence"),
        (FACT, {"confidence": True}, "confidence"),
        (FACT, {"confidence": "1"}, "confidence"),
        (FACT, {"active": 1}, "active"),
        (FACT, {"text": ""}, "text"),
        (FACT, {"sourceEventId": ""}, "sourceEventId"),
        (FACT, {"supersedesFactId": FACT["factId"]}, "supersedesFactId"),
        (FACT, {"supersedesFactId": None}, "supersedesFactId"),
        (FACT, {"validUntil": None}, "validUntil"),
        (FACT, {"validUntil": "2026-02-30T00:00:00Z"}, "validUntil"),
        (FACT, {"turnIndex": 1}, "turnIndex"),
        (FACT, {"trustClass": "TRUSTED"}, "trustClass"),
    ],
)
def test_a_wrong_field_is_refused_by_name(event: dict[str, Any], change: dict[str, Any], field: str) -> None:
    refused = _refusal(_with_id({**event, **change}) if "eventType" not in change else {**event, **change})
    assert refused.field == field
    assert refused.reason


@pytest.mark.parametrize("event", EVENTS)
def test_every_required_field_is_missed_by_name(event: dict[str, Any]) -> None:
    required = set(event) - {"sourceEventId" if event["eventType"] == "episode" else ""}
    for name in required:
        refused = _refusal({key: value for key, value in event.items() if key != name})
        assert refused.field == name


@pytest.mark.parametrize("value", [None, [], "event", 5, b"{}"])
def test_what_is_no_object_is_refused(value: Any) -> None:
    assert _refusal(value).field == "event"


def test_an_event_longer_than_a_journal_line_is_refused() -> None:
    assert _refusal(_with_id({**EPISODE, "userText": "x" * (1 << 20)})).reason == "is too long"


SECRET = "hunter2secretvalue"


@pytest.mark.parametrize(
    "event",
    [
        _with_id({**EPISODE, "runtime": SECRET}),
        _with_id({**EPISODE, "turnIndex": SECRET}),
        {**EPISODE, f"{SECRET}-{SECRET}": 1},
        {**EPISODE, "eventId": SECRET},
        {**EPISODE, "userText": f"{SECRET}\ud83d"},
        {**EPISODE, "observedAt": SECRET},
        {**EPISODE, "schemaVersion": SECRET},
        {**EPISODE, "eventType": SECRET},
    ],
)
def test_no_refusal_quotes_a_value(event: dict[str, Any]) -> None:
    refused = _refusal(event)
    seen: list[BaseException | None] = [refused, refused.__cause__]
    assert all(SECRET not in str(problem) + repr(problem) for problem in seen)


def test_a_model_does_not_show_its_texts() -> None:
    assert "plain" not in f"{contract.validate(EPISODE)!r} {contract.validate(EPISODE)}"


def test_the_shipped_schema_is_the_published_one_with_its_notice() -> None:
    schema = contract.published_schema()
    assert schema["title"] == "RushDB AgentMemoryEvent v1"
    assert "Apache License" in (contract.SCHEMA_FILE.parent / "NOTICE").read_text("utf-8")
    for model, name in ((contract.Episode, "episode"), (contract.Fact, "fact")):
        published = schema["$defs"][name]["allOf"][1]
        scope = schema["$defs"]["scope"]["required"]
        aliases = {field.alias for field in model.model_fields.values()}
        assert aliases == set(published["properties"])
        required = {field.alias for field in model.model_fields.values() if field.is_required()}
        assert required == {*published["required"], *scope}


# Where our models refuse more than the schema; each stands in the module's docstring.
STRICTER = {
    "schemaVersion": lambda value: isinstance(value, float),
    "turnIndex": lambda value: isinstance(value, float) or (isinstance(value, int) and value > 2**53 - 1),
    "confidence": lambda value: value != value,
    "agentId": lambda value: isinstance(value, str) and not value.strip(identity.JS_SPACE),
    "profileId": lambda value: isinstance(value, str) and not value.strip(identity.JS_SPACE),
    "observedAt": lambda value: isinstance(value, str),
    "validFrom": lambda value: isinstance(value, str),
    "validUntil": lambda value: isinstance(value, str),
    "supersedesFactId": lambda value: False,
}
ODD_VALUES = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        7,
        1.0,
        0.5,
        7.0,
        1e300,
        2**60,
        float("nan"),
        "",
        " ",
        "x",
        "1",
        "private",
        "shared",
        "direct",
        "trusted",
        "participant",
        "hermes",
        "custom",
        "episode",
        "fact",
        "0" * 64,
        "F" * 64,
        "0" * 65,
        "2026-08-18T00:00:00Z",
        [],
        ["x"],
        {},
        {"a": 1},
    ]
)
FIELDS = sorted({*EPISODE, *FACT, "channelIdHash", "validUntil", "supersedesFactId", "unknown"})


@given(
    st.sampled_from([EPISODE, FACT]),
    st.dictionaries(st.sampled_from(FIELDS), ODD_VALUES, max_size=2),
    st.sets(st.sampled_from(FIELDS), max_size=1),
)
def test_models_and_published_schema_accept_the_same_events(
    base: dict[str, Any], changes: dict[str, Any], gone: set[str]
) -> None:
    event = {name: value for name, value in {**copy.deepcopy(base), **changes}.items() if name not in gone}
    for name, recompute in (("eventId", identity.episode_event_id), ("factId", identity.fact_id)):
        if name in event and name not in changes and base[name if name in base else "eventId"]:
            event[name] = recompute(event)
    by_schema = _accepts(contract.check_schema, event)
    by_models = _accepts(contract.validate, event)
    if any(test(event[name]) for name, test in STRICTER.items() if name in event and name in changes):
        assert by_schema or not by_models
    elif any(name in changes and name in event for name in ("eventId", "factId")) and by_schema:
        assert not by_models, "an id that was made up is never accepted"
    else:
        assert by_schema == by_models


def _accepts(check: Any, event: dict[str, Any]) -> bool:
    try:
        check(event)
    except errors.ContractViolation as refused:
        assert refused.field and refused.reason
        return False
    return True


def test_all_names_that_are_exported_exist() -> None:
    assert all(hasattr(contract, name) for name in contract.__all__)
