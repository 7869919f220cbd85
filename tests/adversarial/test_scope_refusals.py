"""Scope against hosts that say too little, too much, or something that looks right: refused, counted, visible."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import status
from memory_tasks.settings import Settings
from producer import config, errors, scope
from producer.memory import AgentMemory
from producer.scope import HostContext

HERMES = HostContext(
    runtime="hermes",
    platform="telegram",
    agent_id="hermes",
    profile_id="default",
    session_id="20261201_101500_ab12cd",
    user="4242",
    chat_type="dm",
    sandboxed=False,
)
OPENCLAW = dataclasses.replace(
    HERMES, runtime="openclaw", session_id="agent:main:telegram:direct:4242", chat_type="direct", account="desk"
)
CLAUDE_CODE = HostContext(
    runtime="custom",
    platform="local",
    agent_id="claude-code",
    profile_id="default",
    session_id="5a0f4f6e-7f0b-4f0e-9d54-1c2f1ad2f6ad",
    user="maya",
    sandboxed=False,
)
CUSTOM = dataclasses.replace(CLAUDE_CODE, platform="webshop", chat_type="private", session_id="cart-17")
HOSTS = {"hermes": HERMES, "openclaw": OPENCLAW, "claude code": CLAUDE_CODE, "custom": CUSTOM}

LONG = "x" * (scope.MAX_PART_UNITS + 1)
# Every reason, with what brings it about on any host.
REFUSALS: dict[str, Mapping[str, Any]] = {
    "agent_missing": {"agent_id": None},
    "automation": {"automation": True},
    "blank_part": {"account": " "},
    "chat_type_missing": {"chat_type": "", "platform": "telegram"},
    "chat_type_unknown": {"chat_type": "hologram"},
    "control_character": {"user": "a\x1fb"},
    "cron": {"cron": True},
    "group_talk": {"chat_type": "supergroup"},
    "hook": {"hook": True},
    "incognito": {"incognito": True},
    "not_text": {"user": 42},
    "participant_ambiguous": {"user": "anonymous"},
    "participant_bot": {"bot": True},
    "participant_missing": {"user": " \u3000"},
    "platform_missing": {"platform": ""},
    "profile_missing": {"profile_id": "\ufeff"},
    "runtime_unknown": {"runtime": "claude-code"},
    "sandbox_unknown": {"sandboxed": None},
    "sandboxed": {"sandboxed": True},
    "secret_in_scope": {"profile_id": "ghp_" + "a1B2" * 9},
    "session_ambiguous": {"session_id": "unknown"},
    "session_missing": {"session_id": None},
    "subagent": {"subagent": True},
    "too_long": {"agent_id": LONG},
}
NOT_BY_A_CONTEXT = {"salt_missing", "scope_invalid"}  # a missing setting; fields that came from elsewhere

# What OpenClaw's session keys look like beside the direct ones, and other hosts' likewise.
MACHINE_SESSIONS = {
    "agent:main:telegram:group:-100": "group_talk",
    "agent:main:discord:channel:7:thread:8": "group_talk",
    "agent:main:telegram:direct:1:thread:2": "group_talk",
    "agent:main:dashboard:incognito-77": "incognito",
    "agent:main:internal-session-effects:incognito-1": "automation",
    "agent:main:subagent:77": "subagent",
    "agent:main:cron:nightly:run:3": "cron",
    "agent:main:hook:gmail": "hook",
    "agent:main:acp:1": "automation",
    "agent:main:harness:1": "automation",
    "agent:main:boot:1": "automation",
    "agent:main:helper:1": "automation",
    "agent:main:voice:1": "session_ambiguous",
    "agent:main:slack:slash:U1": "session_ambiguous",
    "agent:main:main:heartbeat": "automation",
    "agent:main:dreaming-narrative-2": "automation",
    "agent:main:global": "session_ambiguous",
    "agent:main:unknown": "session_ambiguous",
    "agent:main": "session_ambiguous",
    "agent:main:telegram:": "session_ambiguous",
    "AGENT:Main:Telegram:GROUP:1": "group_talk",
    "agent:main: cron :1": "cron",
    "cron:nightly": "cron",
    "hook:gmail": "hook",
    "telegram:group:-100": "group_talk",
    "x:incognito:y": "incognito",
    "dashboard:incognito-9": "incognito",
    "global": "session_ambiguous",
    "Unknown": "session_ambiguous",
}
PROGRAMS_AND_CROWDS = {
    "bot": "participant_bot",
    "bot:17": "participant_bot",
    "system:handoff": "participant_bot",
    "service:billing": "participant_bot",
    "dependabot[bot]": "participant_bot",
    "webchat": "participant_ambiguous",
    "Guest": "participant_ambiguous",
    "visitor": "participant_ambiguous",
    "everyone": "participant_ambiguous",
    "*": "participant_ambiguous",
}


def refusal(context: HostContext) -> str:
    with pytest.raises(errors.ScopeRefused) as refused:
        scope.scope_of(context, salt="salt", salt_required=True)
    return refused.value.reason


@pytest.mark.parametrize("host", HOSTS)
def test_each_host_has_a_conversation_that_is_accepted(host: str) -> None:
    assert scope.scope_of(HOSTS[host], salt="salt", salt_required=True).privacy_scope == "private"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("reason", REFUSALS)
def test_every_reason_refuses_on_every_host(host: str, reason: str) -> None:
    assert refusal(dataclasses.replace(HOSTS[host], **REFUSALS[reason])) == reason


def test_no_reason_is_left_out() -> None:
    assert set(REFUSALS) | NOT_BY_A_CONTEXT == set(scope.REASONS)


@pytest.mark.parametrize("session_id", MACHINE_SESSIONS)
def test_a_session_of_a_machine_or_a_crowd_is_refused_whatever_else_the_host_says(session_id: str) -> None:
    assert refusal(dataclasses.replace(OPENCLAW, session_id=session_id)) == MACHINE_SESSIONS[session_id]


@pytest.mark.parametrize("user", PROGRAMS_AND_CROWDS)
def test_a_program_or_a_crowd_is_no_participant(user: str) -> None:
    assert refusal(dataclasses.replace(CUSTOM, user=user)) == PROGRAMS_AND_CROWDS[user]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(HostContext)])
def test_whatever_a_host_leaves_unsaid_never_widens_a_scope(name: str) -> None:
    """None in any place is refused, or (an account that the platform has not) makes another scope."""
    full = scope.scope_of(OPENCLAW, salt="s", salt_required=True)
    try:
        found = scope.scope_of(dataclasses.replace(OPENCLAW, **{name: None}), salt="s", salt_required=True)
    except errors.ScopeRefused:
        return
    assert name == "account" and found != full


# -- the salt ----------------------------------------------------------------------------------------------------------

FAR = [
    "redis://queue.example:6379/0",
    "redis://localhost.evil.example/0",
    "redis://127.0.0.1.nip.io/0",
    "redis://localhost@evil.example/0",
    "redis://u:p@localhost@evil.example/0",
    "redis://evil.example#@localhost/0",
    "redis://evil.example?@localhost/0",
    "redis://evil.example\\@localhost/0",
    "redis://[2001:db8::1]:6379/0",
    "redis://[::1.evil.example]/0",
    "redis://[::1/0",
    "redis://127.1/0",
    "redis://0.0.0.0/0",
    "rediss://queue.example:6380/0",
    "amqp://localhost,queue.example//",
    "amqps://u:p@queue.example:5671//",
    "sentinel://localhost:26379;sentinel://queue.example:26379",
    "rushdb+https://api.example",
    "rushdb+https://localhost.example",
]
NEAR = [
    "redis://localhost:6379/0",
    "redis://:a%2Fb@127.0.0.1:6379/0",
    "redis://[::1]:6379/0",
    "redis://LOCALHOST/0",
    "redis+socket:///run/redis.sock",
    "amqp://u:p@localhost:5672//",
    "sentinel://localhost:26379;sentinel://127.0.0.1:26380",
    "sqlite:////var/lib/store.sqlite3",
    "rushdb+http://127.0.0.1:3000",
]


@pytest.mark.parametrize("url", FAR)
def test_no_url_that_leads_elsewhere_passes_for_this_machine(url: str) -> None:
    assert not config.is_local_url(url)


@pytest.mark.parametrize("url", NEAR)
def test_urls_of_this_machine_are_known(url: str) -> None:
    assert config.is_local_url(url)


# Refused for another reason, before anybody asks for a salt.
NOT_TAKEN = ("sentinel", "amqp", "redis://[", "redis://evil.example?", "redis://evil.example#")


@pytest.mark.parametrize("url", [url for url in FAR if not url.startswith(NOT_TAKEN)])
def test_a_missing_salt_is_refused_where_store_or_broker_is_not_on_this_machine(url: str, tmp_path: Path) -> None:
    setting = "MEMORY_STORE_URL" if url.startswith("rushdb") else "MEMORY_BROKER_URL"
    environ = {
        "MEMORY_STATE_DIR": str(tmp_path),
        setting: url,
        "MEMORY_STORE_TOKEN": "t",
        "MEMORY_PRODUCER_KEY": "p" * 32,
        "MEMORY_CACHE_KEY": "c" * 32,
    }
    with pytest.raises(errors.SettingsRefused, match="MEMORY_SCOPE_SALT"):
        config.load(environ)
    assert config.load({**environ, "MEMORY_SCOPE_SALT": "s" * 32}).scope_salt == "s" * 32
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # no salt was made up either


# -- counted and visible -----------------------------------------------------------------------------------------------


def test_refused_turns_are_counted_by_reason_and_shown_by_status(tmp_path: Path) -> None:
    environ = {"MEMORY_STATE_DIR": str(tmp_path)}
    memory = AgentMemory(config.load(environ), host="hermes", dispatches=False)
    said = {"session_id": "s", "user_text": "hello", "assistant_text": "hello"}
    with memory:
        for reason in ("group_talk", "cron", "sandboxed", "group_talk"):
            outcome = memory.capture_turn(**said, scope=dataclasses.replace(HERMES, **REFUSALS[reason]))
            assert not outcome and outcome.reason == reason
            assert memory.recall("hello", scope=dataclasses.replace(HERMES, **REFUSALS[reason])) == ""
        assert memory.capture_turn(**said, scope=HERMES)
        assert not memory.capture_turn(**said)  # nobody said whose it is
    turns = status.gather(Settings.load(environ))["turns"]["hermes"]
    assert (turns["seen"], turns["captured"]) == (6, 1)
    counted = {"group_talk": 2, "cron": 1, "sandboxed": 1}
    assert {name: n for name, n in turns.items() if name.startswith("refused.")} == {
        **{f"refused.{reason}": n for reason, n in counted.items()},
        "refused.scope_invalid": 1,
    }
    assert {name: n for name, n in turns.items() if name.startswith("recallRefused.")} == {
        f"recallRefused.{reason}": n for reason, n in counted.items()
    }
