"""Whose memory a person at a terminal works on: the options that name a scope, the scope they come to, the journal."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from producer import config, errors, scope
from producer.journal import Journal

__all__ = ["AgentId", "AsJson", "Participant", "ProfileId", "open_journal", "scope_of", "shown"]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
AgentId = Annotated[str, typer.Option("--agent", help="agentId of the scope; default MEMORY_AGENT_ID or 'cli'.")]
ProfileId = Annotated[str, typer.Option("--profile", help="profileId of the scope; default MEMORY_PROFILE_ID.")]
Participant = Annotated[
    str,
    typer.Option("--participant", help="Local participant; default the login name. Only its salted hash is stored."),
]


def scope_of(settings: config.ProducerConfig, agent: str, profile: str, participant: str) -> scope.Scope:
    """The scope of a person at this terminal. Raises `errors.ScopeRefused`."""
    context = scope.HostContext(
        runtime="custom",
        platform="local",
        agent_id=agent or settings.agent_id or "cli",
        profile_id=profile or settings.profile_id,
        session_id="cli",
        user=participant or _login_name(),
        sandboxed=False,
    )
    return scope.scope_of(context, salt=settings.scope_salt, salt_required=not settings.local)


def open_journal(settings: config.ProducerConfig) -> Journal:
    """This host's journal, to be closed by the caller. Raises `errors.JournalFailed`."""
    return Journal.open(
        settings.journal_dir,
        max_bytes=settings.journal_max_bytes,
        reserve_bytes=settings.journal_reserve_bytes,
        segment_max_bytes=settings.segment_max_bytes,
        sync_budget_s=settings.sync_budget_s,
    )


def shown(text: str) -> str:
    """A stored text fit for a terminal: somebody else may have written it, escape sequences and all."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        raise errors.ScopeRefused("participant_missing", "this user has no login name: give --participant") from None
