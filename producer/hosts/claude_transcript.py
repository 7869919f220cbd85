"""The end of a Claude Code transcript: when the last answer was written, and the turn itself as a fallback.

The file (JSON Lines, one row per message, tool call or request) also holds system prompts and whole request bodies, and
grows to hundreds of megabytes: only its last megabyte is read, only texts of the conversation are taken, and nothing
of it is kept as it is. Unknown rows are passed over. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["TAIL_BYTES", "Turn", "is_machine", "last_turn"]

TAIL_BYTES = 1 << 20
_MACHINE = (
    "<command-name>",
    "<command-message>",
    "<local-command-",
    "<bash-",
    "<system-reminder>",
    "<task-notification>",
)


class Turn(NamedTuple):
    """What the transcript tells of one prompt; None where it tells nothing."""

    user_text: str | None
    assistant_text: str | None
    answered_at: str | None  # the timestamp of the last assistant row, as written there


_NOTHING = Turn(None, None, None)


def last_turn(path: str, prompt_id: str | None) -> Turn:
    """The last turn of this transcript, if it is the one of `prompt_id` or does not say whose it is."""
    user_text = assistant_text = answered_at = message_id = None
    for row in _rows_backwards(path):
        if row.get("isSidechain") or row.get("isMeta") or row.get("isCompactSummary"):
            continue
        message = row.get("message")
        if not isinstance(message, Mapping):
            continue
        if row.get("type") == "assistant":
            if answered_at is None and isinstance(row.get("timestamp"), str):
                answered_at = row["timestamp"]
            text = _text_of(message.get("content"))
            if text and (assistant_text is None or (message_id is not None and message.get("id") == message_id)):
                assistant_text = text if assistant_text is None else f"{text}\n{assistant_text}"
                message_id = message.get("id")
        elif row.get("type") == "user":
            text = _text_of(message.get("content"))
            if text is None or is_machine(text):
                continue  # the result of a tool, or what a command wrote
            row_prompt_id = row.get("promptId")
            if prompt_id is not None and row_prompt_id is not None and row_prompt_id != prompt_id:
                return _NOTHING  # the rows of this prompt are not written yet
            user_text = text
            break
    return Turn(user_text, assistant_text, answered_at)


def is_machine(text: str) -> bool:
    """Whether Claude Code wrote this in the user's place: the result of a command, a reminder, a notification."""
    return text.lstrip().startswith(_MACHINE)


def _text_of(content: Any) -> str | None:
    if isinstance(content, str):
        return content or None
    if not isinstance(content, list):
        return None
    texts = [
        block["text"]
        for block in content
        if isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)
    ]
    return "\n".join(text for text in texts if text) or None


def _rows_backwards(path: str) -> Iterator[Mapping[str, Any]]:
    """The whole rows of the last megabyte, last first; none when the file cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place must not hold the hook up
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            size = status.st_size
            start = max(0, size - TAIL_BYTES)
            data = os.pread(descriptor, TAIL_BYTES, start)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return
    lines = data.split(b"\n")
    if start:
        del lines[0]  # begun before the tail
    for line in reversed(lines):
        if b'"user"' in line or b'"assistant"' in line:  # parse no request bodies
            try:
                row = json.loads(line.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            if isinstance(row, Mapping):
                yield row
