"""Claude Code hooks (2.1): recalled context before a turn, the captured turn after it. Standard library only.

    UserPromptSubmit   keep the redacted prompt for Stop; ask the local agent; print its context, or nothing
    Stop               prompt and last answer -> one episode, durable in the journal; print nothing
    SessionStart       of source `compact`: the summary took the place of what this conversation was told, so the agent
                       may tell it again; print nothing
    anything else      nothing

One process per event, started by `launch.py`. The episode's sourceEventId is Claude Code's prompt_id and it stands on
the line of that prompt: a later Stop of the same prompt (another hook made the model go on) replaces the earlier one.
The transcript is read only for the time of the answer, and for texts that the events did not bring.

Not captured and not given context: subagents (`agent_id`), sessions without a person (CLAUDE_CODE_SESSION_ATTENDED=0,
or an entry point other than `cli`, unless `capture_unattended`), prompts that a program put in. Counted in the
journal's counts under "claude-code": a turn `seen` is `captured` or `refused.<reason>`; a prompt whose recall was
refused is `recallRefused.<reason>`, and else `asked`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from producer import capture, counts, errors, identity, keys, refusals
from producer import scope as scopes
from producer.hosts import claude_transcript, hook, hook_config
from producer.hosts.hook_config import HookConfig
from producer.journal import Journal, prompts, segments
from producer.scope import Scope

__all__ = ["BUDGET_S", "EVENTS", "HOST", "MATCHERS", "command", "main", "respond"]

HOST = "claude-code"
RUNTIME = "custom"  # the contract knows no other name for this host
EVENTS = ("UserPromptSubmit", "Stop", "SessionStart")
MATCHERS = {"SessionStart": "compact"}  # for Claude Code's settings: no process is started for other sources
BUDGET_S = 2.5
MAX_QUERY_CHARS = 2000  # what recall looks at; a longer prompt may be more than the agent takes in one request
_SYNC_BUDGET_S = 1.5  # of the journal, so that a silent disk is still refused and counted within the budget
_ASK_MARGIN_S = 0.1  # for the way to the agent and back, beside its own deadline


class _Refused(Exception):
    """This event is not for us, or cannot be captured; `reason` is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def command(config_path: str | os.PathLike[str], *, python: str | None = None) -> str:
    """The shell command for Claude Code's settings. `-I -S`: nothing of the user's environment or of site-packages'
    `.pth` files runs before the hook."""
    launcher = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")  # noqa: PTH100, PTH118, PTH120
    words = (python or sys.executable, "-I", "-S", launcher, "claude_code")
    return f"MEMORY_HOOK_CONFIG={shlex.quote(os.fspath(config_path))} {' '.join(map(shlex.quote, words))}"


def main() -> None:
    """The process. Never returns, never raises, exits 0."""
    hook.serve(lambda: respond(hook.read_input(), os.environ), budget_s=BUDGET_S)


def respond(given: hook.Input, environ: Mapping[str, str]) -> bytes:
    """What to print for this event."""
    event = given.get("hook_event_name")
    if event not in EVENTS or (event == "SessionStart" and given.get("source") != "compact"):
        return b""
    config = hook_config.read(environ.get("MEMORY_HOOK_CONFIG", ""))
    changes: dict[str, int] = {"seen": 1} if event == "Stop" else {}
    refused = "refused" if event == "Stop" else "recallRefused"
    try:
        _check_eligible(given, environ, config)
        if event == "UserPromptSubmit":
            return _before_turn(given, config, changes)
        if event == "Stop":
            _after_turn(given, config)
            changes["captured"] = 1
        else:
            _after_compaction(given, config, changes)
    except _Refused as refusal:
        changes[f"{refused}.{refusal.reason}"] = 1
    except Exception:
        changes[f"{refused}.internal"] = 1
        raise
    finally:
        if changes:
            counts.add(config.journal_dir, HOST, changes)
    return b""


def _check_eligible(given: hook.Input, environ: Mapping[str, str], config: HookConfig) -> None:
    if given.get("agent_id"):
        raise _Refused("subagent")
    attended = environ.get("CLAUDE_CODE_SESSION_ATTENDED")
    entrypoint = environ.get("CLAUDE_CODE_ENTRYPOINT") or "cli"
    if not config.capture_unattended and (attended == "0" or (attended != "1" and entrypoint != "cli")):
        raise _Refused("unattended")
    try:
        scopes.clean_session_id(_named(given, "session_id"))
    except errors.ScopeRefused as problem:
        raise _Refused(problem.reason) from problem


def _scope(config: HookConfig) -> Scope:
    try:
        return Scope(
            agent_id=config.agent_id,
            profile_id=config.profile_id,
            privacy_scope=config.privacy_scope,
            participant_scope_hash=config.participant_scope_hash,
            sandbox_eligible=config.sandbox_eligible,
        )
    except errors.ScopeRefused as problem:
        raise _Refused(problem.reason) from problem


# -- before the turn -------------------------------------------------------------------------------------------------


def _before_turn(given: hook.Input, config: HookConfig, changes: dict[str, int]) -> bytes:
    scope = _scope(config)
    prompt, _ = capture.safe_text(_named(given, "prompt"), max_units=config.max_turn_units)
    if not prompt:
        return b""
    if claude_transcript.is_machine(prompt):
        raise _Refused("machine_prompt")
    if prompt_id := _named(given, "prompt_id"):
        try:
            prompts.save_prompt(config.journal_dir, _named(given, "session_id"), prompt_id, prompt)
        except OSError:
            changes["promptNotKept"] = 1  # Stop finds it in the transcript
    changes["asked"] = 1
    answer = hook.ask_agent(
        config.agent_socket,
        {
            "op": "recall",
            "scope": scope.fields(),
            "query": prompt[:MAX_QUERY_CHARS],
            "session": _session(given),
            "deadlineMs": config.recall_deadline_ms,
            "maxChars": config.recall_max_chars,
        },
        deadline_s=config.recall_deadline_ms / 1000 + _ASK_MARGIN_S,
    )
    context = (answer or {}).get("context")
    if answer is None:
        changes["unanswered"] = 1
    if not isinstance(context, str) or not context or len(context) > config.recall_max_chars:
        return b""
    changes["recalled"] = 1
    output = {"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": context}}
    return json.dumps(output, ensure_ascii=True).encode("ascii") + b"\n"


def _after_compaction(given: hook.Input, config: HookConfig, changes: dict[str, int]) -> None:
    answer = hook.ask_agent(
        config.agent_socket,
        {"op": "compacted", "scope": _scope(config).fields(), "session": _session(given)},
        deadline_s=config.recall_deadline_ms / 1000 + _ASK_MARGIN_S,
    )
    changes["compacted" if answer is not None else "unanswered"] = 1


# -- after the turn --------------------------------------------------------------------------------------------------


def _after_turn(given: hook.Input, config: HookConfig) -> None:
    scope = _scope(config)
    session_id, prompt_id = _named(given, "session_id"), _named(given, "prompt_id")
    if not prompt_id:
        raise _Refused("prompt_id_missing")  # nothing else names the turn in a way that a second Stop would repeat
    transcript = claude_transcript.last_turn(_named(given, "transcript_path"), prompt_id)
    user_text = prompts.take_prompt(config.journal_dir, session_id, prompt_id) or transcript.user_text
    assistant_text = _named(given, "last_assistant_message") or transcript.assistant_text
    if not user_text:
        raise _Refused("prompt_missing")
    if claude_transcript.is_machine(user_text):
        raise _Refused("machine_prompt")
    if not assistant_text:
        raise _Refused("answer_missing")
    try:
        captured = capture.build_episode(
            scope=scope,
            runtime=RUNTIME,
            external_session_id=session_id,
            source_event_id=prompt_id,
            turn_index=0,
            user_text=user_text,
            assistant_text=assistant_text,
            observed_at=_answered_at(transcript.answered_at),
            conversation_kind="local",
            visibility="participant",
            trust_class="mixed",
            origin_class="conversation",
            provenance=f"{HOST}:Stop",
            max_units=config.max_turn_units,
        )
        _append(captured.event, config)
    except errors.IngestError as problem:
        raise _Refused(refusals.of(problem).reason) from problem


def _append(event: Mapping[str, Any], config: HookConfig) -> None:
    """Return once the event is durable."""
    session_key = keys.session_key(
        runtime=event["runtime"], external_session_id=event["externalSessionId"], scope=event
    )
    line_key = keys.line_key_of_prompt(session_key=session_key, source_event_id=event["sourceEventId"])
    journal = Journal.open(
        config.journal_dir,
        max_bytes=config.journal_max_bytes,
        reserve_bytes=config.journal_reserve_bytes,
        segment_max_bytes=config.segment_max_bytes,
        sync_budget_s=min(config.sync_budget_s, _SYNC_BUDGET_S),
    )
    journal.append_event(event, line_key=line_key, session_key=session_key)  # not closed: the process ends here


def _answered_at(timestamp: str | None) -> str:
    """The time of the answer by the transcript, else now."""
    if timestamp is not None:
        try:
            return identity.normal_time(timestamp)
        except errors.ContractViolation:
            pass
    return segments.iso_of_ms(int(time.time() * 1000))


def _session(given: hook.Input) -> dict[str, str]:
    return {"runtime": RUNTIME, "externalSessionId": _named(given, "session_id")}


def _named(given: hook.Input, name: str) -> str:
    """A text of the event; empty when it is missing or no text."""
    value = given.get(name)
    return value if isinstance(value, str) and value.strip() else ""
