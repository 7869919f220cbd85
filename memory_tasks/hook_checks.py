"""What is wrong with the hooks of a connected Claude Code: they are silent by design, so only this can tell.

Looked at, in the order in which a hook meets it: the entries in Claude Code's settings, the interpreter and the package
that they start, the configuration that they read, and whether they and this machine's agent mean the same journal.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from memory_tasks import connect
from producer import errors
from producer.config import ProducerConfig
from producer.hosts import claude_code, hook_config
from producer.scope import Scope

__all__ = ["Fault", "faults"]

_AGAIN = "run `memory-tasks connect claude-code` again"
_START_S = 20.0
_IMPORTS = "import os, sys; sys.path.append(sys.argv[1]); from producer.hosts.claude_code import main"


class Fault(NamedTuple):
    found: str
    todo: str


def faults(config: ProducerConfig) -> list[Fault] | None:
    """What keeps this machine's hooks from capturing; None where Claude Code was never connected."""
    path = connect.hook_config_path(config)
    if not path.exists():
        return None
    found = _of_configuration(path, config)
    commands: dict[str, str] = {}
    if (settings := connect.settings_of(path)) is not None:
        found += _of_settings(settings, path, commands)
    for command in sorted(set(commands.values())):
        found += _of_installation(command)
    return found


def _of_configuration(path: Path, config: ProducerConfig) -> list[Fault]:
    try:
        read = hook_config.read(str(path))
        Scope(
            agent_id=read.agent_id,
            profile_id=read.profile_id,
            privacy_scope=read.privacy_scope,
            participant_scope_hash=read.participant_scope_hash,
            sandbox_eligible=read.sandbox_eligible,
        )
    except errors.Permanent as problem:
        return [Fault(f"every hook refuses its configuration: {problem}", _AGAIN)]
    if (Path(read.journal_dir), Path(read.agent_socket)) != (config.journal_dir, config.agent_socket):
        return [Fault("hooks write another journal, or ask another agent, than this environment names", _AGAIN)]
    return []


def _of_settings(settings: Path, config_path: Path, commands: dict[str, str]) -> list[Fault]:
    try:
        value: Any = json.loads(settings.read_text("utf-8-sig"))
        hooks = value.get("hooks", {})
        for event in claude_code.EVENTS:
            entries = [entry for group in hooks.get(event, []) for entry in group.get("hooks", [])]
            for entry in entries:
                if connect.is_ours(entry):
                    commands[event] = entry["command"]
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as problem:
        return [Fault(f"{settings} cannot be read ({type(problem).__name__}): no hook runs", "mend it")]
    found = []
    if value.get("disableAllHooks"):
        found.append(Fault(f"{settings} has disableAllHooks: no hook runs", "take it out"))
    if missing := [event for event in claude_code.EVENTS if event not in commands]:
        found.append(Fault(f"{settings} names no hook of ours for {', '.join(missing)}", _AGAIN))
    if any(f"MEMORY_HOOK_CONFIG={shlex.quote(str(config_path))} " not in command for command in commands.values()):
        found.append(Fault(f"hooks in {settings} read another configuration than {config_path}", _AGAIN))
    return found


def _of_installation(command: str) -> list[Fault]:
    """Start the hook's interpreter as the hook does, and import what it imports."""
    try:
        _, python, *_, launcher, _ = shlex.split(command)
        done = subprocess.run(  # noqa: S603 the command that Claude Code runs with each turn
            [python, "-I", "-S", "-c", _IMPORTS, str(Path(launcher).parents[2])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S,
        )
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as problem:
        return [Fault(f"the hooks' interpreter does not start ({type(problem).__name__}): nothing is captured", _AGAIN)]
    if done.returncode or not Path(launcher).is_file():
        return [Fault(f"the package that the hooks import is broken or gone (this one is {sys.prefix})", _AGAIN)]
    return []
