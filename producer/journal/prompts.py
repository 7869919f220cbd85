"""What UserPromptSubmit must keep for Stop: the redacted, bounded prompt, in a file of its own beside the segments.

    <journal directory>/prompts/<sha256 of the JSON list [session_id, prompt_id]>     0600, directory 0700

Renamed into place, so a reader sees a whole prompt or none. Not synced: a prompt lost with the machine belongs to a
turn that was lost with it. Kept for a day and not removed by reading, because Stop may come again for the same prompt;
every save sweeps what is older, and the oldest beyond `MAX_FILES`. Standard library only, for one-shot hooks.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable

from producer.journal.filesystem import REAL

__all__ = ["MAX_AGE_S", "MAX_FILES", "kept", "remove_prompts", "save_prompt", "take_prompt"]

MAX_AGE_S = 86_400
MAX_FILES = 1000
MAX_BYTES = 1 << 20


def save_prompt(
    directory: str | os.PathLike[str],
    session_id: str,
    prompt_id: str,
    text: str,
    *,
    clock: Callable[[], float] = time.time,
) -> None:
    """Keep the prompt for `take_prompt`; a later one with the same ids replaces it. Raises `OSError`."""
    folder = f"{os.fspath(directory)}/prompts"
    _make_folder(folder)
    path = f"{folder}/{_name(session_id, prompt_id)}"
    draft = f"{path}.{os.urandom(4).hex()}.tmp"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            rest = memoryview(text.encode("utf-8", "surrogatepass"))
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        os.rename(draft, path)  # noqa: PTH104
    except OSError:
        os.unlink(draft)  # noqa: PTH108
        raise
    _sweep(folder, clock())


def take_prompt(
    directory: str | os.PathLike[str], session_id: str, prompt_id: str, *, clock: Callable[[], float] = time.time
) -> str | None:
    """The prompt saved under these ids within a day, else None. It stays, for a later Stop of the same prompt."""
    path = f"{os.fspath(directory)}/prompts/{_name(session_id, prompt_id)}"
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if clock() - os.fstat(descriptor).st_mtime > MAX_AGE_S:
            return None
        return os.pread(descriptor, MAX_BYTES, 0).decode("utf-8", "surrogatepass")
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)


def remove_prompts(directory: str | os.PathLike[str], ids: Iterable[tuple[str, str]]) -> None:
    """Remove the prompts saved under these pairs of session id and prompt id. Raises `OSError`."""
    for session_id, prompt_id in ids:
        try:
            os.unlink(f"{os.fspath(directory)}/prompts/{_name(session_id, prompt_id)}")  # noqa: PTH108
        except FileNotFoundError:
            continue


def kept(directory: str | os.PathLike[str]) -> list[float]:
    """When each prompt that is there was saved, as unix seconds."""
    try:
        with os.scandir(f"{os.fspath(directory)}/prompts") as entries:
            return [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    except FileNotFoundError:
        return []


def _make_folder(folder: str) -> None:
    """It and what is missing above it (0700). Their names are made durable by whoever makes the journal's id."""
    try:
        REAL.make_directory(folder)
    except FileNotFoundError:
        _make_folder(os.path.dirname(folder))  # noqa: PTH120
        REAL.make_directory(folder)


def _name(session_id: str, prompt_id: str) -> str:
    return hashlib.sha256(json.dumps([session_id, prompt_id]).encode("ascii")).hexdigest()


def _sweep(folder: str, now: float) -> None:
    """Remove what is older than a day, and the oldest beyond the bound. Best effort."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
            except OSError:
                continue
    found.sort()
    surplus = max(0, len(found) - MAX_FILES)
    for number, (modified, path) in enumerate(found):
        if number < surplus or now - modified > MAX_AGE_S:
            try:
                os.unlink(path)  # noqa: PTH108
            except OSError:
                continue
