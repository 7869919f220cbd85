"""Scope comes from host metadata alone and fails closed, each refusal with a stable reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer import errors, identity, keys, scope
from producer.scope import HostContext, Scope, scope_of

DIRECT = HostContext(
    runtime="hermes",
    platform="telegram",
    account="bot-1",
    agent_id="hermes",
    profile_id="default",
    session_id="agent:main:telegram:dm:42",
    user="42",
    chat_type="dm",
    sandboxed=False,
)
FACTS = {**dict.fromkeys(keys.SCOPE_FIELDS, "a"), "privacyScope": "private", "participantScopeHash": "0" * 64}
FACTS["sandboxEligible"] = False  # type: ignore[assignment]


def _reason(context: HostContext, *, salt: str = "salt", required: bool = True) -> str:
    with pytest.raises(errors.ScopeRefused) as refused:
        scope_of(context, salt=salt, salt_required=required)
    assert refused.value.reason in scope.REASONS
    return refused.value.reason


def test_a_conversation_of_one_person_has_a_scope() -> None:
    found = scope_of(DIRECT, salt="salt", salt_required=True)
    assert found.fields() == {
        "agentId": "hermes",
        "profileId": "default",
        "privacyScope": "private",
        "participantScopeHash": identity.scope_hash(("telegram", "bot-1", "42"), "salt"),
        "sandboxEligible": False,
    }
    assert tuple(found.fields()) == keys.SCOPE_FIELDS
    assert Scope.of_fields(found.fields()) == found
    assert found.key == keys.scope_key(found.fields())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"runtime": "claude"}, "runtime_unknown"),
        ({"platform": None}, "platform_missing"),
        ({"platform": "cron"}, "cron"),
        ({"platform": "webhook"}, "hook"),
        ({"agent_id": None}, "agent_missing"),
        ({"agent_id": " \ufeff"}, "agent_missing"),
        ({"profile_id": ""}, "profile_missing"),
        ({"user": None}, "participant_missing"),
        ({"user": "  "}, "participant_missing"),
        ({"account": " "}, "blank_part"),
        ({"user": 42}, "not_text"),
        ({"user": "4\x1f2"}, "control_character"),
        ({"agent_id": "a\nb"}, "control_character"),
        ({"account": "a\x00"}, "control_character"),
        ({"user": "4\x85"}, "control_character"),
        ({"user": "x" * 513}, "too_long"),
        ({"agent_id": "🚀" * 257}, "too_long"),
        ({"session_id": None}, "session_missing"),
        ({"session_id": "\t"}, "control_character"),
        ({"session_id": "unknown"}, "session_ambiguous"),
        ({"session_id": "Global"}, "session_ambiguous"),
        ({"session_id": "agent:main"}, "session_ambiguous"),
        ({"session_id": "agent:main:unknown"}, "session_ambiguous"),
        ({"session_id": "agent:main:telegram:group:-100"}, "group_talk"),
        ({"session_id": "agent:main:discord:channel:7:thread:8"}, "group_talk"),
        ({"session_id": "agent:main:cron:nightly"}, "cron"),
        ({"session_id": "agent:main:hook:gmail"}, "hook"),
        ({"session_id": "agent:main:main:heartbeat"}, "automation"),
        ({"session_id": "agent:main:dreaming-narrative-1"}, "automation"),
        ({"session_id": "agent:main:acp:1"}, "automation"),
        ({"session_id": "agent:main:subagent:x"}, "subagent"),
        ({"session_id": "agent:main:dashboard:incognito-1"}, "incognito"),
        ({"user": "webchat", "platform": "webchat"}, "participant_ambiguous"),
        ({"user": "telegram"}, "participant_ambiguous"),
        ({"user": "Unknown"}, "participant_ambiguous"),
        ({"user": "system:handoff"}, "participant_bot"),
        ({"bot": True}, "participant_bot"),
        ({"chat_type": None}, "chat_type_missing"),
        ({"chat_type": " "}, "chat_type_missing"),
        ({"chat_type": "group"}, "group_talk"),
        ({"chat_type": "Channel"}, "group_talk"),
        ({"chat_type": "hologram"}, "chat_type_unknown"),
        ({"sandboxed": None}, "sandbox_unknown"),
        ({"sandboxed": True}, "sandboxed"),
        ({"agent_id": "sk-ant-api03-abcdefghijklmnop-QRST"}, "secret_in_scope"),
        ({"profile_id": "/home/alice/work"}, "secret_in_scope"),
    ],
)
def test_what_is_missing_shared_or_unknown_is_refused(change: dict[str, Any], reason: str) -> None:
    assert _reason(dataclasses.replace(DIRECT, **change)) == reason


@pytest.mark.parametrize("flag", ["automation", "cron", "hook", "subagent", "incognito"])
@pytest.mark.parametrize("value", [True, None])
def test_nobodys_turns_are_refused_and_a_flag_that_is_unknown_counts_as_set(flag: str, value: Any) -> None:
    assert _reason(dataclasses.replace(DIRECT, **{flag: value})) == flag


def test_a_missing_salt_is_refused_where_it_is_required_and_only_there() -> None:
    assert _reason(DIRECT, salt="") == "salt_missing"
    assert scope_of(DIRECT, salt="", salt_required=False).participant_scope_hash


def test_parts_that_would_join_to_the_same_text_are_different_participants() -> None:
    one = dataclasses.replace(DIRECT, account="a:b", user="c")
    two = dataclasses.replace(DIRECT, account="a", user="b:c")
    hashes = {scope_of(c, salt="s", salt_required=True).participant_scope_hash for c in (one, two)}
    assert len(hashes) == 2


def test_scope_hash_never_refuses_what_scope_of_refuses() -> None:
    for parts in ([], [None], ["", " "], ["a\x1fb"], ["\ud800"], ["x" * 10_000]):
        assert len(identity.scope_hash(parts)) == 64


def test_bad_text_in_a_scope_becomes_unicode() -> None:
    found = scope_of(dataclasses.replace(DIRECT, agent_id="a\ud83d", user="u\udc00"), salt="s", salt_required=True)
    assert found.agent_id == "a\ufffd"
    assert scope.clean_session_id("s\ud83d ") == "s\ufffd"


@pytest.mark.parametrize(
    ("platform", "chat_type", "kind"),
    [("cli", None, "local"), ("local", None, "local"), ("telegram", "DM", "direct"), ("webchat", "direct", "direct")],
)
def test_the_kind_of_conversation_follows_from_chat_type_and_platform(
    platform: str, chat_type: str | None, kind: str
) -> None:
    context = dataclasses.replace(DIRECT, platform=platform, chat_type=chat_type)
    assert scope.conversation_kind(context) == kind


@pytest.mark.parametrize("session_id", ["agent:main:main", "agent:main:telegram:direct:7", "s-1", "2b7e-uuid", "a:b:c"])
def test_ordinary_session_ids_are_accepted(session_id: str) -> None:
    assert scope.clean_session_id(session_id) == session_id


@pytest.mark.parametrize(
    "change",
    [
        {"participantScopeHash": "A" * 64},
        {"participantScopeHash": "0" * 63},
        {"participantScopeHash": "0" * 64 + "\n"},
        {"participantScopeHash": None},
        {"privacyScope": "public"},
        {"sandboxEligible": 0},
        {"agentId": "\ud800"},
        {"agentId": ""},
        {"profileId": "a\x1f"},
    ],
)
def test_fields_that_no_scope_has_make_no_scope(change: dict[str, Any]) -> None:
    with pytest.raises(errors.ScopeRefused) as refused:
        Scope.of_fields({**FACTS, **change})
    assert refused.value.reason in scope.REASONS


@pytest.mark.parametrize("field", keys.SCOPE_FIELDS)
def test_a_missing_field_makes_no_scope(field: str) -> None:
    with pytest.raises(errors.ScopeRefused, match=field):
        Scope.of_fields({name: value for name, value in FACTS.items() if name != field})


def test_neither_a_context_nor_a_refusal_shows_a_raw_participant() -> None:
    context = dataclasses.replace(DIRECT, user="alice@example.com\n")
    with pytest.raises(errors.ScopeRefused) as refused:
        scope_of(context, salt="s", salt_required=True)
    assert "alice" not in repr(context) + str(refused.value)


@given(st.builds(dataclasses.replace, st.just(DIRECT), user=st.text(), account=st.none() | st.text()))
def test_any_participant_is_either_hashed_or_refused_with_a_known_reason(context: HostContext) -> None:
    try:
        found = scope_of(context, salt="s", salt_required=True)
    except errors.ScopeRefused as refused:
        assert refused.reason in scope.REASONS
    else:
        assert found.participant_scope_hash == identity.scope_hash(
            (context.platform, context.account, context.user), "s"
        )


def test_the_module_documents_every_reason() -> None:
    assert all(reason in (scope.__doc__ or "") for reason in scope.REASONS)
    assert list(scope.REASONS) == sorted(set(scope.REASONS))
    assert all(hasattr(scope, name) for name in scope.__all__)
