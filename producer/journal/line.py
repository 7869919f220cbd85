"""One journal line: a self-checking JSON object in ASCII, readable with ordinary tools (`jq . segment`).

    {"v":1,"kind":"event","id":"<64 hex>","appendedAt":"2026-12-01T12:00:00.000Z","event":{…},"sum":"<16 hex>"}

`sum` is always last: the first 16 hex digits of the sha256 of everything before `,"sum":`. A line ends in one newline,
holds none inside, and is ASCII (other characters are JSON escapes, lone surrogates too). `lineHash` is the sha256 of
the exact text without its newline. The text travels to the worker byte for byte. A line is at most 1 MiB with its
newline. A whole line of a later `v`, or of a kind that is not below, is nobody's damage: it is kept and counted.

Kinds and what else they hold:

    event     event (the plain AgentMemoryEvent), lineKey and sessionKey where known
    order     order {what, scope, target, at, nonce, ...}: forget, retract, link, entity
    sent      lineHash; published once (not synced)
    receipt   lineHash, state, reason, delayS, deaths (see producer.receipt)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from producer import errors

__all__ = ["KINDS", "MAX_LINE_BYTES", "VERSION", "Line", "encode", "is_later", "line_hash", "parse"]

VERSION = 1
KINDS = ("event", "order", "sent", "receipt")
MAX_LINE_BYTES = 1 << 20  # a longer line is refused at append and is damage when read

_SUM = ',"sum":"'
_SUM_LENGTH = 16
_HEX = frozenset("0123456789abcdef")
# Made once: `json.dumps` makes one for each call that asks for anything of its own.
_dump = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A parsed line. `text` is its exact text, `body` everything beside v, kind, id, appendedAt and sum."""

    kind: str
    id: str
    appended_at: str
    body: Mapping[str, Any]
    text: str

    @property
    def hash(self) -> str:
        return line_hash(self.text)


def line_hash(text: str) -> str:
    """sha256 of the exact text (ASCII, without newline), 64 hex digits."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def encode(*, kind: str, id: str, appended_at: str, body: Mapping[str, Any]) -> str:
    """The text of a line, without newline. Raises `errors.ContractViolation` for values JSON cannot hold or a line
    over `MAX_LINE_BYTES`."""
    try:
        text = _dump({"v": VERSION, "kind": kind, "id": id, "appendedAt": appended_at, **body})
    except (TypeError, ValueError, RecursionError) as problem:
        raise errors.ContractViolation("holds a value that JSON cannot hold", field="line") from problem
    checked = text[:-1]
    text = f'{checked}{_SUM}{hashlib.sha256(checked.encode("ascii")).hexdigest()[:_SUM_LENGTH]}"}}'
    if len(text) >= MAX_LINE_BYTES:
        raise errors.ContractViolation(f"is longer than {MAX_LINE_BYTES} bytes", field="line")
    return text


def parse(text: str | bytes) -> Line:
    """The line of this text (no newline). Raises `errors.DamagedLine` unless every byte is as `encode` wrote it."""
    whole, value = _checked(text)
    if value.pop("v", None) != VERSION:
        raise errors.DamagedLine("unknown version")
    value.pop("sum", None)
    kind, id_, appended_at = value.pop("kind", None), value.pop("id", None), value.pop("appendedAt", None)
    if kind not in KINDS or not isinstance(id_, str) or not isinstance(appended_at, str):
        raise errors.DamagedLine("unknown kind or no id")
    return Line(kind=kind, id=id_, appended_at=appended_at, body=value, text=whole)


def is_later(text: bytes) -> bool:
    """Whether this is a whole line that `parse` refuses only because a later version wrote it."""
    try:
        _, value = _checked(text)
    except errors.DamagedLine:
        return False
    version = value.get("v")
    return isinstance(version, int) and (version > VERSION or (version == VERSION and value.get("kind") not in KINDS))


def _checked(text: str | bytes) -> tuple[str, dict[str, Any]]:
    """Text and JSON object of a whole line of any version."""
    try:
        whole = text.decode("ascii") if isinstance(text, bytes) else text
        whole.encode("ascii")
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise errors.DamagedLine("not ASCII") from None
    checked, mark, rest = whole.rpartition(_SUM)
    if not mark or len(rest) != _SUM_LENGTH + 2 or rest[-2:] != '"}' or not _HEX.issuperset(rest[:_SUM_LENGTH]):
        raise errors.DamagedLine("no checksum")
    if hashlib.sha256(checked.encode("ascii")).hexdigest()[:_SUM_LENGTH] != rest[:_SUM_LENGTH]:
        raise errors.DamagedLine("checksum differs")
    try:
        value = json.loads(whole)
    except (ValueError, RecursionError):
        raise errors.DamagedLine("not JSON") from None
    if not isinstance(value, dict):
        raise errors.DamagedLine("not a JSON object")
    return whole, value
