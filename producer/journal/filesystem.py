"""The few file operations the journal is built on, as one object: `REAL`, or in tests one that fails and crashes.

Thin on purpose: no retries, no policy, errors are `OSError` as the system gives them. Paths are text, files are
descriptors. Two things are decided here because they differ by system:

- `sync` makes the bytes of a file and its length durable (`fdatasync`; on macOS `F_FULLFSYNC`, since `fsync` there
  stops at the drive's cache)
- `try_lock` is `flock` without waiting: the lock belongs to the open file, so `unlock` (not `close`) lets it go even
  while a forked child still has the descriptor

Descriptors are not inherited by programs that the host starts (Python opens them close-on-exec).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

__all__ = ["NO_SPACE", "REAL", "FileSystem"]

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors that room on the disk would mend

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class FileSystem:
    """The real file system. A test subclasses it."""

    def make_directory(self, path: str) -> bool:
        """Whether it was made now (0700). One that is there must be a directory; it is closed to others (0700)."""
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102 - pathlib costs the hook more than all of this
        except FileExistsError:
            mode = os.stat(path).st_mode  # noqa: PTH116
            if not stat.S_ISDIR(mode):
                raise
            if mode & 0o077:
                os.chmod(path, 0o700)  # noqa: PTH101
            return False
        return True

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)  # noqa: PTH112

    def real_path(self, path: str) -> str:
        """Where this stands when links are followed."""
        return os.path.realpath(path)

    def create(self, path: str) -> int:
        """A new file (0600) open for reading and appending; `FileExistsError` when there is one."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)

    def open(self, path: str) -> int:
        """An existing file, for reading and appending."""
        return os.open(path, os.O_RDWR | os.O_APPEND)

    def open_to_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """How many bytes were appended; maybe fewer than given."""
        return os.write(descriptor, data)

    def write_all(self, descriptor: int, data: bytes) -> None:
        """Append all of it, or raise with a part of it written."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.write(descriptor, rest) :]

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

    def size_and_links(self, descriptor: int) -> tuple[int, int]:
        """Length in bytes, and in how many directories it stands (0: it was removed)."""
        found = os.fstat(descriptor)
        return found.st_size, found.st_nlink

    def stands_at(self, descriptor: int, path: str) -> bool:
        """Whether this path leads to this file now, and to no other one or none."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116
        except FileNotFoundError:
            return False

    def identity_of(self, path: str) -> tuple[int, int]:
        """The same for as long as the path leads to the same file or directory: what is mounted there is another."""
        found = os.stat(path)  # noqa: PTH116
        return found.st_dev, found.st_ino

    def sync(self, descriptor: int) -> None:
        """Return once bytes and length are on the disk."""
        if _FULL_SYNC is not None:  # pragma: no cover - macOS
            fcntl.fcntl(descriptor, _FULL_SYNC)
        else:
            os.fdatasync(descriptor)

    def sync_directory(self, path: str) -> None:
        """Return once the names in it are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    def allocate(self, descriptor: int, length: int) -> None:
        """Give a file blocks of its own; `ENOSPC` when the disk has none."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
            return
        for _ in range(0, length, 1 << 16):  # pragma: no cover - macOS
            os.write(descriptor, bytes(1 << 16))

    def try_lock(self, descriptor: int) -> bool:
        """Whether the exclusive lock was taken now."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def listing(self, path: str) -> list[tuple[str, int]]:
        """Name and length of each file in a directory, in no order; files that vanish meanwhile are left out."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    if entry.is_file(follow_symlinks=False):
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
                except FileNotFoundError:
                    continue
        return found

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)  # noqa: PTH104

    def link(self, source: str, target: str) -> None:
        """A second name; `FileExistsError` when it is taken."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def modified_ns(self, path: str) -> int:
        return os.stat(path).st_mtime_ns  # noqa: PTH116

    def touch(self, descriptor: int) -> None:
        """Set the time of the last change to now."""
        os.utime(descriptor)

    def free_bytes(self, path: str) -> int:
        """What the disk has left for us."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


REAL = FileSystem()
