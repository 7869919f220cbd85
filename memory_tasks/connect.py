"""Connects Claude Code: writes the hook's configuration, and adds our hooks to a settings.json, or takes them out.

Others' hooks and settings stay as they are, in meaning and in order. The old file is kept beside it
(`settings.json.before-memory-tasks`) when ours first goes in. Doing it twice changes nothing; a moved installation or
another configuration file replaces our entry. What is not JSON, or not in the form that Claude Code documents, is
refused and not touched.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from producer import errors
from producer.config import HookConfig, ProducerConfig
from producer.hosts import claude_code
from producer.scope import Scope

__all__ = ["connect_claude_code", "disconnect_claude_code", "hook_config_path", "is_ours", "settings_of"]

HOOK_TIMEOUT_S = 5  # Claude Code's; ours ends within `claude_code.BUDGET_S`
_OURS = os.path.join("producer", "hosts", "launch.py")  # noqa: PTH118 a part of a command, not a path
_SETTINGS_NAME = "claude_settings"  # in the hook's configuration, which passes over it: for `doctor`
_BACKUP_SUFFIX = ".before-memory-tasks"


def hook_config_path(config: ProducerConfig) -> Path:
    """Where the configuration of this host's hooks lies."""
    return config.state_dir / "hooks" / f"{claude_code.HOST}.json"


def connect_claude_code(
    settings_path: Path,
    config: ProducerConfig,
    *,
    scope: Scope,
    config_path: Path | None = None,
    capture_unattended: bool = False,
) -> dict[str, Any]:
    """Write the hook's configuration (0600) and merge the hooks into `settings_path`. The report says what was done.

    `scope` is the scope of the one person at this machine: no hook is told who that is. Raises
    `errors.SettingsRefused` when the settings cannot be read as what they should be, or written.
    """
    where = config_path or hook_config_path(config)
    settings = _read(settings_path)
    changed = _merge(settings, claude_code.command(where))
    _write_hook_config(where, config, scope, capture_unattended, settings_path)
    backup = None
    if changed:
        backup = _backup(settings_path)
        _write(settings_path, settings)
    return {
        "settings": str(settings_path),
        "changed": changed,
        "backup": None if backup is None else str(backup),
        "hookConfig": str(where),
        "events": list(claude_code.EVENTS),
        "agentSocket": str(config.agent_socket),
    }


def disconnect_claude_code(settings_path: Path, *, config_path: Path | None = None) -> dict[str, Any]:
    """Take our hooks out of `settings_path`, and their configuration away if it was written for these settings;
    everything else stays. Captured memory stays too."""
    settings = _read(settings_path)
    removed = _remove(settings)
    if removed:
        _write(settings_path, settings)
    if config_path is not None and settings_of(config_path) == settings_path.absolute():
        config_path.unlink(missing_ok=True)
    return {"settings": str(settings_path), "removed": removed}


def settings_of(config_path: Path) -> Path | None:
    """The settings.json that a hook configuration was written for; None when it does not say."""
    try:
        written = json.loads(config_path.read_bytes()).get(_SETTINGS_NAME)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return Path(written) if isinstance(written, str) and written else None


def _write_hook_config(
    path: Path, config: ProducerConfig, scope: Scope, capture_unattended: bool, settings_path: Path
) -> None:
    hook_config = HookConfig(
        journal_dir=str(config.journal_dir),
        agent_socket=str(config.agent_socket),
        agent_id=scope.agent_id,
        profile_id=scope.profile_id,
        participant_scope_hash=scope.participant_scope_hash,
        privacy_scope=scope.privacy_scope,
        sandbox_eligible=scope.sandbox_eligible,
        max_turn_units=config.max_turn_units,
        recall_deadline_ms=config.recall_deadline_ms,
        recall_max_chars=config.recall_max_chars,
        journal_max_bytes=config.journal_max_bytes,
        journal_reserve_bytes=config.journal_reserve_bytes,
        segment_max_bytes=config.segment_max_bytes,
        sync_budget_s=config.sync_budget_s,
        capture_unattended=capture_unattended,
    )
    value = {**dataclasses.asdict(hook_config), _SETTINGS_NAME: str(settings_path.absolute())}
    _replace(path, json.dumps(value, indent=2) + "\n", setting="MEMORY_HOOK_CONFIG")


# -- settings.json ---------------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as problem:
        raise errors.SettingsRefused(str(path), f"cannot be read ({type(problem).__name__})") from None
    if not text.strip():
        return {}
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        raise errors.SettingsRefused(str(path), "is not JSON: mend it first; nothing was changed") from None
    hooks = settings.get("hooks", {}) if isinstance(settings, dict) else None
    if not isinstance(hooks, dict):
        raise errors.SettingsRefused(str(path), "is not a settings file with `hooks`: nothing was changed")
    for event in claude_code.EVENTS:
        groups = hooks.get(event, [])
        if not isinstance(groups, list) or not all(_is_group(group) for group in groups):
            raise errors.SettingsRefused(str(path), f"hooks.{event} has a form we do not know: nothing was changed")
    return dict(settings)


def _is_group(group: Any) -> bool:
    return isinstance(group, dict) and isinstance(group.get("hooks", []), list)


def is_ours(entry: Any) -> bool:
    """Whether an entry of Claude Code's settings starts our hook."""
    command = entry.get("command") if isinstance(entry, Mapping) else None
    return isinstance(command, str) and _OURS in command and command.rstrip("'").endswith("claude_code")


def _merge(settings: dict[str, Any], command: str) -> bool:
    """Put our entry under each event, once. Whether anything changed."""
    wanted = {"type": "command", "command": command, "timeout": HOOK_TIMEOUT_S}
    before = json.dumps(settings)
    hooks = settings.setdefault("hooks", {})
    for event in claude_code.EVENTS:
        matcher = {"matcher": claude_code.MATCHERS[event]} if event in claude_code.MATCHERS else {}
        groups = hooks.setdefault(event, [])
        ours = [
            ({name: value for name, value in group.items() if name == "matcher"}, entry)
            for group in groups
            for entry in group.get("hooks", [])
            if is_ours(entry)
        ]
        if ours == [(matcher, wanted)]:
            continue
        _remove_from(hooks, event)
        hooks.setdefault(event, []).append({**matcher, "hooks": [wanted]})
    return json.dumps(settings) != before


def _remove(settings: dict[str, Any]) -> int:
    hooks = settings.get("hooks", {})
    removed = sum(_remove_from(hooks, event) for event in claude_code.EVENTS if event in hooks)
    if removed and not hooks:
        del settings["hooks"]
    return removed


def _remove_from(hooks: dict[str, Any], event: str) -> int:
    """Take our entries out of one event, and what is empty after that."""
    removed = 0
    groups = []
    for group in hooks.get(event, []):
        entries = group.get("hooks", [])
        kept = [entry for entry in entries if not is_ours(entry)]
        removed += len(entries) - len(kept)
        if len(kept) == len(entries):
            groups.append(group)
        elif kept:
            groups.append({**group, "hooks": kept})
    hooks[event] = groups
    if removed and not groups:
        del hooks[event]
    return removed


def _backup(path: Path) -> Path | None:
    """A copy of the file as it was before us; made once."""
    backup = path.with_name(path.name + _BACKUP_SUFFIX)
    if not path.exists() or backup.exists():
        return backup if backup.exists() else None
    try:
        content = path.read_bytes()
        descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path.stat().st_mode & 0o777)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as problem:
        raise errors.SettingsRefused(str(path), f"no copy of it can be made (errno {problem.errno})") from problem
    return backup


def _write(path: Path, settings: Mapping[str, Any]) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    target = path.resolve()  # settings are often a link into somebody's dotfiles: the link stays
    _replace(target, json.dumps(settings, indent=2, ensure_ascii=False) + "\n", mode=mode, setting=str(path))


def _replace(path: Path, text: str, *, setting: str, mode: int = 0o600) -> None:
    """Write the file whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogatepass") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise errors.SettingsRefused(setting, f"cannot be written (errno {problem.errno})") from problem
