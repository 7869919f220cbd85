"""The one small JSON file that a one-shot hook reads, named by `MEMORY_HOOK_CONFIG`. Standard library only.

A module of its own, because a hook process pays for every import: this one costs `json` and `dataclasses`, which the
hook needs anyway, where `producer.config` would load path, URL and random machinery.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any

from producer import errors

__all__ = ["MAX_BYTES", "HookConfig", "read"]

MAX_BYTES = 64 * 1024
MIB = 1 << 20
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


@dataclass(frozen=True, kw_only=True)
class HookConfig:
    """The one small JSON file a one-shot hook reads, named by `MEMORY_HOOK_CONFIG`; written by `memory-tasks connect`.

    JSON keys are the field names. It holds the salted scope already, no salt and no key: a hook signs nothing.
    """

    journal_dir: str
    agent_socket: str
    agent_id: str
    profile_id: str
    participant_scope_hash: str
    privacy_scope: str = "private"
    sandbox_eligible: bool = False
    max_turn_units: int = 6000
    recall_deadline_ms: int = 300
    recall_max_chars: int = 8000
    journal_max_bytes: int = 1024 * MIB
    journal_reserve_bytes: int = 4 * MIB
    segment_max_bytes: int = 8 * MIB
    sync_budget_s: float = 2.0
    capture_unattended: bool = False  # sessions started by programs (CLAUDE_CODE_ENTRYPOINT other than cli)


def read(path: str) -> HookConfig:
    """The configuration in this file. Raises `errors.SettingsRefused` naming what is wrong, never quoting a value.

    Names that this version does not know are ignored, so that an older hook reads a newer file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place must not hold the hook up
        try:
            data = os.read(descriptor, MAX_BYTES)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as problem:
        raise errors.SettingsRefused("MEMORY_HOOK_CONFIG", f"cannot be read ({type(problem).__name__})") from None
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise errors.SettingsRefused("MEMORY_HOOK_CONFIG", "is not JSON") from None
    if not isinstance(value, dict):
        raise errors.SettingsRefused("MEMORY_HOOK_CONFIG", "is not a JSON object")
    given: dict[str, Any] = {}
    for field in dataclasses.fields(HookConfig):
        if field.name in value:
            given[field.name] = _checked(field.name, str(field.type), value[field.name])
        elif field.default is dataclasses.MISSING:
            raise errors.SettingsRefused("MEMORY_HOOK_CONFIG", f"lacks {field.name}")
    return HookConfig(**given)


def _checked(name: str, kind: str, value: Any) -> Any:
    right = isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
    if right and kind in ("int", "float"):
        right = 0 < value < float("inf")
    if right and kind == "str":
        right = bool(value.strip()) and "\x00" not in value
    if not right:
        raise errors.SettingsRefused("MEMORY_HOOK_CONFIG", f"{name} is not a usable {kind}")
    return value
