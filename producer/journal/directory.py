"""The journal's directory (0700), and the random id that names it to workers.

Made once: every parent that was missing, then the directory, then the id, each durable before the next. Whoever finds
an id need not think about what stands above it. Processes that start at once agree on one id.
"""

from __future__ import annotations

import os

from producer import errors
from producer.journal.filesystem import FileSystem

__all__ = ["ID_FILE", "open_directory"]

ID_FILE = "journal-id"


def open_directory(fs: FileSystem, path: str) -> tuple[str, bool]:
    """The id of the journal here, and whether the directory was made now. Raises `errors.JournalFailed`."""
    try:
        made = _make_directories(fs, path)
        return _journal_id(fs, path), made
    except OSError as problem:
        raise errors.JournalFailed(f"the journal's directory cannot be opened (errno {problem.errno})") from problem


def _make_directories(fs: FileSystem, path: str) -> bool:
    """Whether the directory was made now."""
    missing = []
    parent = path
    while not fs.is_directory(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)  # noqa: PTH120
    for one in reversed(missing):
        fs.make_directory(one)
        fs.sync_directory(os.path.dirname(one))  # noqa: PTH120
    if not missing:
        fs.make_directory(path)
    return bool(missing)


def _journal_id(fs: FileSystem, directory: str) -> str:
    """The id in this directory; made when it is missing or damaged."""
    path = f"{directory}/{ID_FILE}"
    found = _read_id(fs, path)
    if found:
        return found
    try:
        fs.sync_directory(os.path.dirname(directory))  # noqa: PTH120
    except PermissionError:
        pass  # a parent that only others may read was made by them, long ago
    draft = f"{path}.{os.urandom(4).hex()}.tmp"
    descriptor = fs.create(draft)
    try:
        fs.write_all(descriptor, os.urandom(16).hex().encode("ascii") + b"\n")
        fs.sync(descriptor)
    finally:
        fs.close(descriptor)
    try:
        if found is None:
            fs.link(draft, path)
        else:
            fs.rename(draft, path)
    except FileExistsError:
        pass
    if found is None:
        fs.unlink(draft)
    made = _read_id(fs, path)
    if not made:
        raise errors.JournalFailed("the journal's id cannot be written")
    return made


def _read_id(fs: FileSystem, path: str) -> str | None:
    """The id in this file; None when there is no file, empty when there is no id in it."""
    try:
        descriptor = fs.open_to_read(path)
    except FileNotFoundError:
        return None
    try:
        text = fs.read(descriptor, 64, 0).strip()
    finally:
        fs.close(descriptor)
    return text.decode("ascii") if len(text) == 32 and set(text) <= set(b"0123456789abcdef") else ""
