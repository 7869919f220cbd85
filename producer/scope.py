"""Scope: whom a memory belongs to, proven by host metadata, or a refusal with its reason. Standard library only.

The five fields are authorization, not ranking. They come from what the host says about itself and about the person it
talks to, never from what a person or a model wrote. `scope_of` fails closed: whatever is missing, unknown or shared is
refused with one of `REASONS`, which are stable, counted and shown by status.

    runtime_unknown       not openclaw, hermes or custom
    agent_missing, profile_missing, platform_missing, session_missing, participant_missing, chat_type_missing
                          absent, or blank after trimming
    blank_part            the account is given and blank (None says that this platform has no accounts)
    not_text              a part is no string
    control_character     a part holds one: it could pass for the separator of parts
    too_long              a part has more than `MAX_PART_UNITS` UTF-16 units
    secret_in_scope       agent or profile, which are stored as they are, hold a secret or a local path
    session_ambiguous     the session id names no one conversation ("unknown", "global", a voice or slash session)
    participant_ambiguous the participant is a placeholder that several people share
    participant_bot       the other side is a program
    group_talk            a group, channel or thread: other people's words
    chat_type_unknown     a kind of chat we do not know to be between two
    cron, hook, automation, subagent, incognito        nobody asked for this turn, or somebody asked to forget it
    sandbox_unknown, sandboxed                         the host did not say, or said so
    salt_missing          participants may not be hashed without a salt here
    scope_invalid         scope fields from elsewhere (an event, a file) that no scope has
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from producer import errors, identity, keys, redaction

__all__ = ["MAX_PART_UNITS", "REASONS", "HostContext", "Scope", "clean_session_id", "conversation_kind", "scope_of"]

REASONS = (
    "agent_missing",
    "automation",
    "blank_part",
    "chat_type_missing",
    "chat_type_unknown",
    "control_character",
    "cron",
    "group_talk",
    "hook",
    "incognito",
    "not_text",
    "participant_ambiguous",
    "participant_bot",
    "participant_missing",
    "platform_missing",
    "profile_missing",
    "runtime_unknown",
    "salt_missing",
    "sandbox_unknown",
    "sandboxed",
    "scope_invalid",
    "secret_in_scope",
    "session_ambiguous",
    "session_missing",
    "subagent",
    "too_long",
)
MAX_PART_UNITS = 512
RUNTIMES = ("openclaw", "hermes", "custom")
PRIVACY_SCOPES = ("private", "shared")

_HEX = frozenset("0123456789abcdef")
_CONTROLS = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
_DIRECT = frozenset({"dm", "direct", "private", "explicit"})
_LOCAL = frozenset({"local", "cli", "tui"})
_GROUPS = frozenset(
    {
        "group",
        "groups",
        "supergroup",
        "channel",
        "thread",
        "topic",
        "forum",
        "room",
        "guild",
        "broadcast",
        "shared",
        "public",
        "community",
        "space",
        "mpim",
    }
)
_NO_SESSION = frozenset({"unknown", "global", "none", "null", "undefined", "nan", "default", "anonymous"})
_NO_PARTICIPANT = frozenset(
    {
        "unknown",
        "anonymous",
        "anon",
        "guest",
        "none",
        "null",
        "undefined",
        "nan",
        "everyone",
        "all",
        "system",
        "webchat",
        "nobody",
        "visitor",
        "public",
        "shared",
        "n/a",
        "*",
        "-",
    }
)
_PROGRAMS = ("bot:", "system:", "service:", "app:")
_PROGRAM_END = "[bot]"  # as code hosts name the accounts of programs
_MACHINE_PLATFORMS = {
    "cron": "cron",
    "hook": "hook",
    "webhook": "hook",
    "subagent": "subagent",
    "batch": "automation",
    "heartbeat": "automation",
}
# Segments of a structured session key and what each says: after the agent's id in `agent:<id>:…`, and of a key without
# that prefix all but `thread`, which is what some hosts call a conversation between two.
_SEGMENTS = {
    "group": "group_talk",
    "channel": "group_talk",
    "thread": "group_talk",
    "cron": "cron",
    "hook": "hook",
    "webhook": "hook",
    "subagent": "subagent",
    "incognito": "incognito",
    "active-memory": "automation",
    "boot": "automation",
    "harness": "automation",
    "heartbeat": "automation",
    "helper": "automation",
    "internal-session-effects": "automation",
    "node": "automation",
    "acp": "automation",
    "voice": "session_ambiguous",
    "slash": "session_ambiguous",
    "global": "session_ambiguous",
    "unknown": "session_ambiguous",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The five fields. Raises `errors.ScopeRefused` (`scope_invalid` or the part's reason) for what no scope has."""

    agent_id: str
    profile_id: str
    privacy_scope: str
    participant_scope_hash: str
    sandbox_eligible: bool

    def __post_init__(self) -> None:
        _checked("agentId", self.agent_id, missing="agent_missing")
        _checked("profileId", self.profile_id, missing="profile_missing")
        if identity.well_formed(f"{self.agent_id}{self.profile_id}") != f"{self.agent_id}{self.profile_id}":
            raise errors.ScopeRefused("scope_invalid", "agentId or profileId is not Unicode")
        if self.privacy_scope not in PRIVACY_SCOPES:
            raise errors.ScopeRefused("scope_invalid", "privacyScope")
        hash_ = self.participant_scope_hash
        if not isinstance(hash_, str) or len(hash_) != 64 or not _HEX.issuperset(hash_):
            raise errors.ScopeRefused("scope_invalid", "participantScopeHash")
        if not isinstance(self.sandbox_eligible, bool):
            raise errors.ScopeRefused("scope_invalid", "sandboxEligible")

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Scope:
        """The scope that an event, a record or a mapping of the five fields carries."""
        try:
            return cls(
                agent_id=fields["agentId"],
                profile_id=fields["profileId"],
                privacy_scope=fields["privacyScope"],
                participant_scope_hash=fields["participantScopeHash"],
                sandbox_eligible=fields["sandboxEligible"],
            )
        except KeyError as missing:
            raise errors.ScopeRefused("scope_invalid", f"{missing.args[0]} is missing") from None

    def fields(self) -> dict[str, Any]:
        """The five under their contract names, for events, records and a where."""
        return {
            "agentId": self.agent_id,
            "profileId": self.profile_id,
            "privacyScope": self.privacy_scope,
            "participantScopeHash": self.participant_scope_hash,
            "sandboxEligible": self.sandbox_eligible,
        }

    @property
    def key(self) -> str:
        """scopeKey: names Redis keys and compares scopes; never instead of the five fields in a where."""
        return keys.scope_key(self.fields())


@dataclass(frozen=True, kw_only=True, slots=True)
class HostContext:
    """What a host says about one conversation. Nothing here may come from a prompt or a model.

    `account` is the host's own account on the platform, None where a platform has none. `chat_type` None is taken as
    local only on the platforms cli, tui and local. `sandboxed` None is unknown, which is refused.
    """

    runtime: str
    platform: str | None
    agent_id: str | None
    profile_id: str | None
    session_id: str | None
    user: str | None
    account: str | None = None
    chat_type: str | None = None
    sandboxed: bool | None = None
    automation: bool = False  # heartbeats, background reviews, events between sessions, unattended runs
    cron: bool = False
    hook: bool = False  # webhooks and other hooks that start a turn
    subagent: bool = False
    incognito: bool = False
    bot: bool = False  # the participant is a program

    def __repr__(self) -> str:
        """Without the parts: they are raw ids of people and conversations."""
        return f"HostContext(runtime={self.runtime!r})"


def scope_of(context: HostContext, *, salt: str, salt_required: bool) -> Scope:
    """The scope of a conversation between one person and one profile. Raises `errors.ScopeRefused`, see the module."""
    if context.runtime not in RUNTIMES:
        raise errors.ScopeRefused("runtime_unknown")
    platform = _checked("platform", context.platform, missing="platform_missing").casefold()
    for flag in ("incognito", "subagent", "cron", "hook", "automation"):
        if getattr(context, flag) is not False:
            raise errors.ScopeRefused(flag)
    if platform in _MACHINE_PLATFORMS:
        raise errors.ScopeRefused(_MACHINE_PLATFORMS[platform])
    conversation_kind(context)
    if context.sandboxed is not False:
        raise errors.ScopeRefused("sandboxed" if context.sandboxed is True else "sandbox_unknown")
    clean_session_id(context.session_id)
    agent_id = _checked("agent_id", context.agent_id, missing="agent_missing")
    profile_id = _checked("profile_id", context.profile_id, missing="profile_missing")
    if redaction.redact(f"{agent_id}\n{profile_id}")[1]:
        raise errors.ScopeRefused("secret_in_scope", "name the agent and its profile by a plain word")
    account = None if context.account is None else _checked("account", context.account, missing="blank_part")
    user = _participant(context, platform)
    if salt_required and not salt:
        raise errors.ScopeRefused("salt_missing", "set MEMORY_SCOPE_SALT")
    return Scope(
        agent_id=identity.well_formed(agent_id),
        profile_id=identity.well_formed(profile_id),
        privacy_scope="private",
        participant_scope_hash=identity.scope_hash((platform, account, user), salt),
        sandbox_eligible=False,
    )


def conversation_kind(context: HostContext) -> str:
    """`direct` or `local`, the event's conversationKind. Raises `errors.ScopeRefused` for any other chat."""
    platform = (context.platform or "").strip(identity.JS_SPACE).casefold()
    if context.chat_type is None:
        if platform in _LOCAL:
            return "local"
        raise errors.ScopeRefused("chat_type_missing")
    chat_type = _checked("chat_type", context.chat_type, missing="chat_type_missing").casefold()
    if chat_type in _DIRECT:
        return "direct"
    if chat_type in _LOCAL:
        return "local"
    raise errors.ScopeRefused("group_talk" if chat_type in _GROUPS else "chat_type_unknown")


def clean_session_id(session_id: str | None) -> str:
    """The id as events carry it: trimmed, lone surrogates as U+FFFD. Raises `errors.ScopeRefused` when it is blank, or
    names no conversation of one person."""
    text = _checked("session_id", session_id, missing="session_missing")
    segments = [segment.strip(identity.JS_SPACE) for segment in text.casefold().split(":")]
    if text.casefold() in _NO_SESSION or not segments[-1]:
        raise errors.ScopeRefused("session_ambiguous")
    if segments[0] == "agent":
        if len(segments) < 3:
            raise errors.ScopeRefused("session_ambiguous")
        told = segments[2:]
    else:
        told = [segment for segment in segments if segment != "thread"] if len(segments) > 1 else []
    for segment in told:
        if segment.startswith("incognito-"):
            raise errors.ScopeRefused("incognito")
        if segment.startswith("dreaming-"):
            raise errors.ScopeRefused("automation")
        if segment in _SEGMENTS:
            raise errors.ScopeRefused(_SEGMENTS[segment])
    return identity.well_formed(text)


def _participant(context: HostContext, platform: str) -> str:
    user = _checked("user", context.user, missing="participant_missing")
    folded = user.casefold()
    if context.bot is not False or folded == "bot" or folded.startswith(_PROGRAMS) or folded.endswith(_PROGRAM_END):
        raise errors.ScopeRefused("participant_bot")
    if folded in _NO_PARTICIPANT or folded == platform:
        raise errors.ScopeRefused("participant_ambiguous")
    return user


def _checked(name: str, value: Any, *, missing: str) -> str:
    """The trimmed part. Spaces around it are not part of who somebody is; the reference trims them as well."""
    if value is None:
        raise errors.ScopeRefused(missing, name)
    if not isinstance(value, str):
        raise errors.ScopeRefused("not_text", name)
    if not _CONTROLS.isdisjoint(value):
        raise errors.ScopeRefused("control_character", name)
    text = value.strip(identity.JS_SPACE)
    if not text:
        raise errors.ScopeRefused(missing, name)
    if len(text) > MAX_PART_UNITS or identity.utf16_length(text) > MAX_PART_UNITS:
        raise errors.ScopeRefused("too_long", name)
    return text
