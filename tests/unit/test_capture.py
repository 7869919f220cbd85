"""What is captured is Unicode, redacted, bounded and complete, or refused by field."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer import capture, errors, identity, recall
from producer.journal import line
from producer.scope import HostContext, Scope, scope_of

CONTEXT = HostContext(
    runtime="custom",
    platform="local",
    agent_id="coder",
    profile_id="default",
    session_id="s",
    user="alice",
    sandboxed=False,
)
SCOPE = scope_of(CONTEXT, salt="salt", salt_required=True)
TURN: dict[str, Any] = {
    "scope": SCOPE,
    "runtime": "custom",
    "external_session_id": "session-1",
    "source_event_id": "turn-1",
    "turn_index": 0,
    "user_text": "Prefer TypeScript.",
    "assistant_text": "I will.",
    "observed_at": "2026-08-18T02:00:00+02:00",
    "conversation_kind": "local",
    "visibility": "participant",
    "trust_class": "mixed",
    "origin_class": "conversation",
    "provenance": "test:turn",
}
WRITE: dict[str, Any] = {
    "scope": SCOPE,
    "runtime": "custom",
    "text": "Prefers tea",
    "kind": "preference",
    "subject_key": "user:drink",
    "source_event_id": "write-1",
    "valid_from": "2026-08-18T00:00:00Z",
    "visibility": "participant",
    "trust_class": "trusted",
    "provenance": "test:fact",
}
AT = "2026-08-18T00:00:00Z"


def _episode(**changes: Any) -> capture.Captured:
    return capture.build_episode(**{**TURN, **changes})


def _fact(**changes: Any) -> capture.Captured:
    return capture.build_fact(**{**WRITE, **changes})


def _line(event: dict[str, Any]) -> line.Line:
    return line.parse(line.encode(kind="event", id="0" * 64, appended_at=AT, body={"event": event}))


def test_a_turn_becomes_an_episode() -> None:
    captured = _episode()
    assert captured.event == {
        "schemaVersion": 1,
        "eventType": "episode",
        "runtime": "custom",
        **SCOPE.fields(),
        "externalSessionId": "session-1",
        "sourceEventId": "turn-1",
        "turnIndex": 0,
        "userText": "Prefer TypeScript.",
        "assistantText": "I will.",
        "summary": "User: Prefer TypeScript.\nAssistant: I will.",
        "conversationKind": "local",
        "visibility": "participant",
        "trustClass": "mixed",
        "originClass": "conversation",
        "observedAt": "2026-08-18T00:00:00.000Z",
        "provenance": "test:turn",
        "eventId": identity.episode_event_id(captured.event),
    }
    assert captured.id == captured.event["eventId"]
    assert captured.redactions == {}


def test_a_write_becomes_a_fact() -> None:
    captured = _fact(supersedes_fact_id="a" * 64, valid_until="2027-01-01T00:00:00Z", confidence=0.5, active=False)
    assert captured.event["supersedesFactId"] == "a" * 64
    assert captured.event["validUntil"] == "2027-01-01T00:00:00.000Z"
    assert (captured.event["confidence"], captured.event["active"]) == (0.5, False)
    assert captured.id == identity.fact_id(captured.event)
    assert "supersedesFactId" not in _fact().event and "validUntil" not in _fact().event


def test_the_same_turn_is_the_same_event_and_a_value_said_again_is_a_new_one() -> None:
    assert _episode().id == _episode(observed_at=AT).id
    assert _fact().id == _fact().id
    assert _fact(source_event_id=None).id != _fact(source_event_id=None).id
    assert _episode(source_event_id="").id != _episode(source_event_id="").id


BAD_TEXTS = {
    "high": "\ud83d",
    "low": "\udc00x",
    "swapped": "\udc00\ud83d",
    "nul": "a\0b",
    "nul_in_pair": "\ud83d\0\ude80",
    "line_separator": "a\u2028b",
    "emoji_at_bound": "x" * 5999 + "🚀🚀",
    "bytes": b"\xff\xfe",
    "bytes_cut": "🚀".encode()[:3],
    "bom": "\ufeffhi",
}


@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_bad_text_is_captured_as_unicode_in_one_journal_line(text: str | bytes) -> None:
    name = text if isinstance(text, str) and len(text) < 500 else "name"
    name = name.replace("\0", "").replace("\u2028", "")
    context = HostContext(
        runtime="custom",
        platform="local",
        agent_id=f"a{name}",
        profile_id="p",
        session_id="s",
        user=name,
        sandboxed=False,
    )
    scope = scope_of(context, salt="s", salt_required=True)
    captured = _episode(user_text=text, assistant_text=text, external_session_id=f"s{name}", scope=scope)
    json.dumps(captured.event, ensure_ascii=False).encode("utf-8")
    parsed = _line(captured.event)
    assert "\n" not in parsed.text and parsed.body["event"] == captured.event
    assert identity.episode_event_id(parsed.body["event"]) == captured.id
    assert "\0" not in captured.event["userText"]


@given(st.text(st.one_of(st.characters(), st.characters(categories=["Cs"]), st.just("\0")), min_size=1))
def test_any_text_is_captured_as_unicode_or_is_blank(text: str) -> None:
    try:
        captured = _episode(user_text=text, max_units=20)
    except errors.ContractViolation as refused:
        assert refused.field == "userText" and not capture.safe_text(text)[0]
        return
    captured.event["userText"].encode("utf-8")
    assert identity.utf16_length(captured.event["userText"]) <= 21


def test_a_cut_never_splits_a_character() -> None:
    user = _episode(user_text="x" * 5999 + "🚀🚀").event["userText"]
    assert user == "x" * 5999 + "…"
    assert _episode(user_text="x" * 5998 + "🚀🚀").event["userText"] == "x" * 5998 + "🚀…"


@pytest.mark.parametrize("text", ["x" * 20_000, "🚀" * 5000, "a 🚀" * 3000, "secret: hunter2abc " * 900])
def test_a_safe_text_made_again_stays_as_it_is(text: str) -> None:
    once, _ = capture.safe_text(text)
    assert capture.safe_text(once)[0] == once


KEY = "sk-proj-Ab3dEf6hIj9kLmN0pQrStUvWxYz1234567890_abcDEF"


@pytest.mark.parametrize("offset", range(-len(KEY) - 1, 2, 7))
def test_a_secret_that_the_bound_would_split_leaks_no_piece(offset: int) -> None:
    text = "x " * 3000
    captured = _episode(user_text=f"{text[: 6000 + offset]} {KEY} tail")
    held = json.dumps(captured.event)
    assert "sk-proj" not in held and KEY[8:20] not in held


@pytest.mark.parametrize("offset", range(-len(KEY) - 1, 2, 7))
@pytest.mark.parametrize("space", [" ", "\n", "/"])
def test_a_secret_at_the_seam_of_a_giant_text_leaks_no_piece(offset: int, space: str) -> None:
    block = f"-----BEGIN PRIVATE KEY-----\n{'A' * 15_000}\n-----END PRIVATE KEY-----\n"  # shrinks to one placeholder
    text = (block * 4 + f"{space}x" * 9000)[: (1 << 16) + offset]
    captured = _episode(user_text=f"{text}{space}{KEY} {'y' * 100_000}")
    assert captured.event["userText"].startswith("[redacted:private_key]\n[redacted:private_key]")
    assert "Ab3dEf" not in json.dumps(captured.event) and "AAAA" not in json.dumps(captured.event)


def test_secrets_are_redacted_and_counted_in_every_field_that_is_stored() -> None:
    captured = _episode(
        user_text=f"key {KEY}",
        assistant_text="see /home/alice/x",
        provenance=f"tool:{KEY}",
        origin_class="postgres://u:p@h/db",
        source_event_id=f"/home/alice/{KEY}",
        external_session_id="/home/alice/session.jsonl",
    )
    held = json.dumps(captured.event)
    assert KEY not in held and "alice" not in held and "u:p@" not in held
    assert captured.redactions == {"openai_key": 2, "path": 1, "url_password": 1}
    fact = _fact(text=f"key {KEY}", subject_key=f"k:{KEY}", kind="AKIAIOSFODNN7EXAMPLE")
    assert KEY not in json.dumps(fact.event) and "AKIA" not in json.dumps(fact.event)


@pytest.mark.parametrize(("kind", "subject"), [("password", "wifi"), ("note", "wifi password"), ("apiKey", "s")])
def test_a_word_under_the_name_of_a_secret_is_one(kind: str, subject: str) -> None:
    value = "Tr0ubadour88heron"
    captured = _fact(text=value, kind=kind, subject_key=subject)
    assert captured.event["text"] in ("[redacted:password]", "[redacted:secret]") and len(captured.redactions) == 1
    assert _fact(text=value).event["text"] == value
    assert _fact(text="Mondays", kind=kind, subject_key=subject).event["text"] == "Mondays"
    order = capture.build_entity_order(
        scope=SCOPE,
        runtime="custom",
        label="ENTITY",
        kind="server",
        name="db",
        properties={"dbPassword": value, "host": value, "note": f"{value} is a word"},
        source_event_id="e",
        trust_class="trusted",
        provenance="test",
        at=AT,
    )
    assert order["properties"] == {"dbPassword": "[redacted:password]", "host": value, "note": f"{value} is a word"}


def test_an_id_that_holds_a_path_or_is_too_long_stays_one_id() -> None:
    session_id = capture.session_id_of("/home/alice/s.jsonl")
    assert session_id == capture.session_id_of("/home/alice/s.jsonl") == capture.session_id_of(session_id)
    assert session_id.startswith("sha256-")
    assert capture.session_id_of("/home/alice/a") != capture.session_id_of("/home/alice/b")
    long_source = _episode(source_event_id="y" * 5000).event["sourceEventId"]
    assert long_source.startswith("sha256-") and len(long_source) == 71


def test_recalled_text_is_not_captured_again_and_own_words_are() -> None:
    memory = {"label": "EPISODE", "text": "old words", "score": 1.0}
    for block in (recall.format_context([memory]), recall.format_recalled_memories([memory])):
        captured = _episode(user_text=f"{block}\n\nmy own words", assistant_text=f"fine {block}")
        assert captured.event["userText"] == "my own words"
        assert captured.event["assistantText"] == "fine"
        assert "old words" not in json.dumps(captured.event)


def test_a_turn_of_recalled_text_alone_is_blank() -> None:
    block = recall.format_context([{"label": "EPISODE", "text": "old words"}])
    with pytest.raises(errors.ContractViolation, match="userText: is blank"):
        _episode(user_text=block)


@pytest.mark.parametrize(
    ("user", "assistant"), [(20_000, 20_000), (20_000, 100), (100, 20_000), (2_900, 9_000), (10, 10)]
)
@pytest.mark.parametrize("character", ["x", "🚀"])
def test_both_sides_of_a_turn_are_searchable_in_its_summary(user: int, assistant: int, character: str) -> None:
    captured = _episode(user_text="U" + character * user, assistant_text="A" + character * assistant)
    summary = captured.event["summary"]
    assert identity.utf16_length(summary) <= 6000
    first, second = summary.removeprefix("User: ").split("\nAssistant: ")
    units = [identity.utf16_length(part) for part in (first, second)]
    full = [identity.utf16_length(captured.event[name]) for name in ("userText", "assistantText")]
    assert all(part >= min(whole, 2980) for part, whole in zip(units, full, strict=True))
    if sum(full) > 6000:
        assert sum(units) > 5900, "the room that one side leaves is the other's"


@pytest.mark.parametrize("max_units", [0, 1, 2, 20, 60])
def test_tiny_bounds_still_give_a_valid_event(max_units: int) -> None:
    captured = _episode(user_text="🚀🚀🚀", assistant_text="🚀🚀🚀", max_units=max_units)
    assert captured.event["summary"]
    captured.event["summary"].encode("utf-8")


def test_a_giant_turn_is_cut_in_bounded_time() -> None:
    giant = "line of tool output with token: abc and /home/alice/x\n" * (20_000_000 // 55)
    began = time.process_time()
    captured = _episode(user_text="next", assistant_text=giant)
    assert time.process_time() - began < 5
    assert identity.utf16_length(captured.event["assistantText"]) == 6001


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"runtime": "claude"}, "runtime"),
        ({"user_text": " \0"}, "userText"),
        ({"user_text": None}, "userText"),
        ({"assistant_text": ""}, "assistantText"),
        ({"turn_index": -1}, "turnIndex"),
        ({"turn_index": True}, "turnIndex"),
        ({"turn_index": 1.0}, "turnIndex"),
        ({"turn_index": 2**53}, "turnIndex"),
        ({"source_event_id": 5}, "sourceEventId"),
        ({"conversation_kind": "group"}, "conversationKind"),
        ({"visibility": "all"}, "visibility"),
        ({"trust_class": "root"}, "trustClass"),
        ({"origin_class": ""}, "originClass"),
        ({"provenance": "x" * 513}, "provenance"),
        ({"observed_at": "now"}, "observedAt"),
        ({"observed_at": "2026-08-18T00:00:00"}, "observedAt"),
    ],
)
def test_a_wrong_turn_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(errors.ContractViolation) as refused:
        _episode(**changes)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"text": "\0"}, "text"),
        ({"kind": " "}, "kind"),
        ({"kind": 5}, "kind"),
        ({"subject_key": "x" * 600}, "subjectKey"),
        ({"confidence": 1.5}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"confidence": True}, "confidence"),
        ({"active": 1}, "active"),
        ({"valid_from": None}, "validFrom"),
        ({"valid_until": "later"}, "validUntil"),
        ({"supersedes_fact_id": "x"}, "supersedesFactId"),
        ({"supersedes_fact_id": _fact().id}, "supersedesFactId"),
    ],
)
def test_a_wrong_fact_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(errors.ContractViolation) as refused:
        _fact(**changes)
    assert refused.value.field == field


@pytest.mark.parametrize("session_id", ["", "unknown", "agent:main:cron:x", "a\nb", None])
def test_a_session_that_is_nobodys_is_refused(session_id: Any) -> None:
    with pytest.raises(errors.ScopeRefused):
        _episode(external_session_id=session_id)


def test_the_latest_pair_leaves_out_system_and_tools() -> None:
    messages = [
        {"role": "system", "content": "secret rules"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "second"}, {"type": "image", "source": "…"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "input": {}}, {"type": "text", "text": "let me look"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "raw output"}]},
        {"role": "tool", "content": "more output"},
        {"role": "assistant", "content": [{"type": "text", "text": "two"}]},
    ]
    assert capture.latest_pair(messages) == ("second", "two")
    assert capture.latest_pair(messages[:3]) == ("first", "one")


@pytest.mark.parametrize(
    "end",
    [
        [{"role": "assistant", "content": "let me look", "tool_calls": [{"id": "1"}]}],
        [{"role": "assistant", "content": [{"type": "text", "text": "let me look"}, {"type": "tool_use"}]}],
        [{"role": "assistant", "content": "let me look"}, {"role": "tool", "content": "raw output"}],
        [
            {"role": "assistant", "content": "let me look"},
            {"role": "user", "content": [{"type": "tool_result"}, {"type": "text", "text": "a reminder"}]},
        ],
        [{"role": "assistant", "content": "half of an ans", "stopReason": "aborted"}],
        [{"role": "assistant", "content": "half of an ans", "stop_reason": "error"}],
    ],
)
def test_a_turn_that_broke_off_or_still_calls_tools_is_no_pair(end: list) -> None:
    before = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "one"}]
    asked = {"role": "user", "content": "second"}
    assert capture.latest_pair([*before, asked, *end]) is None
    finished = {"role": "assistant", "content": "two", "stopReason": ["odd"]}
    assert capture.latest_pair([*before, asked, *end, finished]) == ("second", "two")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "x"}],
        [{"role": "assistant", "content": "x"}],
        [{}],
        [{"role": "user", "content": 5}],
    ],
)
def test_a_turn_without_question_or_answer_is_no_pair(messages: list) -> None:
    assert capture.latest_pair(messages) is None


def test_a_question_without_its_answer_does_not_take_the_answer_before() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "second"},
    ]
    assert capture.latest_pair(messages) is None


def test_a_retract_order_names_its_fact_and_scope() -> None:
    order = capture.build_retract_order(scope=SCOPE, runtime="custom", target="a" * 64, at="2026-08-18T02:00:00+02:00")
    assert {name: value for name, value in order.items() if name != "nonce"} == {
        "what": "retract",
        "scope": SCOPE.fields(),
        "target": "a" * 64,
        "at": "2026-08-18T00:00:00.000Z",
        "runtime": "custom",
    }
    again = capture.build_retract_order(scope=SCOPE, runtime="custom", target="a" * 64, at=AT)
    assert capture.order_id(order) != capture.order_id(again), "the nonce makes every order its own"
    assert capture.order_id(order) == identity.sha256_hex(identity.canonical_json(order))


@pytest.mark.parametrize(
    "group",
    [
        {"session": "f" * 64},
        {"participant": SCOPE.participant_scope_hash},
        {"agentId": "coder", "profileId": "default"},
    ],
)
def test_a_forget_order_names_a_group_of_its_own_scope(group: dict[str, str]) -> None:
    order = capture.build_forget_order(scope=SCOPE, runtime="custom", at=AT, group=group)
    assert order["group"] == group and order["scope"] == SCOPE.fields() and "everywhere" not in order


def test_an_operators_order_counts_everywhere() -> None:
    order = capture.build_forget_order(scope=None, runtime="custom", at=AT, group={"participant": "9" * 64})
    assert order["everywhere"] is True and "scope" not in order
    assert capture.build_forget_order(scope=None, runtime="custom", at=AT, target="b" * 64)["target"] == "b" * 64


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target": "a" * 64, "group": {"session": "f" * 64}},
        {"target": "A" * 64},
        {"group": {}},
        {"group": {"agentId": "coder"}},
        {"group": {"participant": "9" * 64}},
        {"group": {"agentId": "coder", "profileId": "other"}},
        {"group": {"session": ""}},
        {"group": {"session": "f", "participant": "9"}},
    ],
)
def test_a_forget_order_for_nothing_or_for_others_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(errors.ContractViolation):
        capture.build_forget_order(scope=SCOPE, runtime="custom", at=AT, **changes)


def test_scope_fields_stand_in_the_event_as_they_are() -> None:
    assert Scope.of_fields(_fact().event) == Scope.of_fields(_episode().event) == SCOPE


def test_all_names_that_are_exported_exist() -> None:
    assert all(hasattr(capture, name) for name in capture.__all__)
