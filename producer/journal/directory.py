"""The journal's directory (0700), and the random id that names it to workers.

Made once: every parent that was missing, then the directory, then the id, each durable before the next. Whoever makes
an id makes the names of all directories above it durable, whoever made those; so whoever finds an id need not think
about what stands above it. Processes that start at once agree on one id. A file system without `flock` is refused
before there is an id.
"""

from __future__ import annotations

import errno
import os

from producer import errors
from producer.journal.filesystem import FileSystem

__all__ = ["ID_FILE", "Directory"]

ID_FILE = "journal-id"


class Directory:
    """A journal's directory and its id."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """Raises `errors.JournalFailed`."""
        self._fs = fs
        self.path = path
        try:
            self.made = _make_directories(fs, path)  # whether it was made now
            self.journal_id = _journal_id(fs, path)
            self._identity = fs.identity_of(path)
        except OSError as problem:
            raise errors.JournalFailed(f"the journal's directory cannot be opened (errno {problem.errno})") from problem

    def journal_id_now(self) -> str:
        """The id that stands here now: another one where the directory was replaced, a new one where it was emptied.

        Raises `OSError` when there is none and this is not the directory that was opened: the disk that held it may
        have gone, and what would be written would be hidden when it comes back.
        """
        found = _read_id(self._fs, f"{self.path}/{ID_FILE}")
        if not found:
            if self._fs.identity_of(self.path) != self._identity:
                raise OSError(errno.ENODEV, "the journal's disk is not mounted")
            found = _journal_id(self._fs, self.path)
        self.journal_id = found
        return found


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
    _sync_names_above(fs, directory)
    draft = f"{path}.{os.urandom(4).hex()}.tmp"
    descriptor = fs.create(draft)
    try:
        _try_lock(fs, descriptor)
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


def _sync_names_above(fs: FileSystem, directory: str) -> None:
    """A process that died between making a directory and syncing its name left it to us."""
    above = fs.real_path(directory)
    while above != (above := os.path.dirname(above)):  # noqa: PTH120
        try:
            fs.sync_directory(above)
        except PermissionError:
            pass  # one that only others may read was made by them, long ago


def _try_lock(fs: FileSystem, descriptor: int) -> None:
    try:
        fs.try_lock(descriptor)
        fs.unlock(descriptor)
    except OSError as problem:
        raise errors.JournalFailed(
            f"the journal's directory is on a file system without locks (errno {problem.errno}): use a local disk"
        ) from problem


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
