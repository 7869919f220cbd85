"""A file system in memory that fails or crashes at the Nth operation, and forgets what was not synced.

- what a crash leaves of a file: what was synced, and of what came later any of nothing, all, a part, its length filled
  with NULs, or any of its blocks and NULs for the others
- `kill`: the process stops, its locks go, and everything that it wrote stays in the memory of the machine
- what a crash leaves of a directory: the names that were synced, and any of the changes made since (a rename is one)
- a failed sync loses the bytes it was to make durable: later syncs of that file succeed and do not bring them back, as
  on Linux
- a write that fails has written a part before; with `short_writes` every longer write writes a part only
- failures: `fail_at` (or `fail_call`, the nth time that the journal's code makes a call) and the `fail_for` operations
  from there, each with `fail_with`; `failed` says whose calls those were
- locks belong to open files; a crash lets them go
- `capacity`: bytes that all files together may have
"""

from __future__ import annotations

import errno
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from producer.journal import filesystem
from producer.journal.filesystem import FileSystem

_PACKAGE = str(Path(filesystem.__file__).parent)
_SEAM = filesystem.__file__


class Crash(Exception):
    """The machine stopped at this operation. Only a broad except could catch it."""


@dataclass(eq=False)
class File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    lost: tuple[int, int] = (0, 0)  # bytes that a failed sync lost
    links: int = 0
    locked_by: int | None = None
    modified_ns: int = 0


@dataclass(eq=False)
class Directory:
    names: dict[str, File | Directory] = field(default_factory=dict)
    durable: dict[str, File | Directory] = field(default_factory=dict)
    changes: list[Callable[[dict[str, File | Directory]], object]] = field(default_factory=list)

    def change(self, how: Callable[[dict[str, File | Directory]], object]) -> None:
        how(self.names)
        self.changes.append(how)


class CrashingFileSystem(FileSystem):
    def __init__(self, seed: int = 0, *, capacity: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.root = Directory()
        self.open_files: dict[int, File] = {}
        self.capacity = capacity
        self.device = 1
        self.operations: list[str] = []
        self.fail_at: int | None = None  # counts from 0
        self.fail_call: tuple[tuple[str, int], int] | None = None
        self.fail_for = 1
        self.fail_with = errno.EIO
        self.failed: set[tuple[str, int]] = set()  # file and line of each call that failed
        self.callers: list[tuple[str, int]] | None = None  # of every operation, when a test asks for them
        self.short_writes = False
        self.crash_at: int | None = None
        self.crashed = False
        self.now_ns: Callable[[], int] = lambda: 0
        self._next = 3
        self._fails_next_write: int | None = None

    # What tests do to it

    def crash(self) -> None:
        """The machine stops and comes back with what was durable, and a random part of what was not."""
        self._crash_directory(self.root)
        self.open_files.clear()
        self.crashed, self.crash_at = False, None
        self.stop_failing()

    def kill(self) -> None:
        """The process dies and the machine goes on."""
        for file in set(self.open_files.values()):
            file.locked_by = None
        self.open_files.clear()
        self.crashed, self.crash_at = False, None

    def stop_failing(self) -> None:
        self.fail_at = self.fail_call = self._fails_next_write = None

    def _crash_directory(self, directory: Directory) -> None:
        names = dict(directory.durable)
        for change in directory.changes:
            if self.rng.random() < 0.5:
                change(names)
        directory.names, directory.durable, directory.changes = names, dict(names), []
        for node in names.values():
            if isinstance(node, Directory):
                self._crash_directory(node)
            else:
                self._crash_file(node)
        for node in names.values():
            if isinstance(node, File):
                node.links = sum(other is node for other in names.values())

    def _crash_file(self, file: File) -> None:
        file.locked_by = None
        kept, whole = file.durable, self._with_lost(bytes(file.data), file.lost)
        match self.rng.randrange(5):
            case 0:
                data = kept
            case 1:
                data = whole
            case 2:
                data = whole[: self.rng.randint(min(len(kept), len(whole)), len(whole))]
            case 3:
                data = kept + bytes(max(0, len(whole) - len(kept)))
            case _:
                block = self.rng.choice([16, 64, 512])
                later = [whole[at : at + block] for at in range(len(kept), len(whole), block)]
                data = kept + b"".join(one if self.rng.random() < 0.5 else bytes(len(one)) for one in later)
        file.data, file.durable, file.lost = bytearray(data), data, (0, 0)

    @staticmethod
    def _with_lost(data: bytes, lost: tuple[int, int]) -> bytes:
        start, end = lost
        return data[:start] + bytes(len(data[start:end])) + data[end:]

    def _step(self, name: str) -> None:
        if self.crashed:
            raise Crash
        number = len(self.operations)
        self.operations.append(name)
        if self.callers is not None:
            self.callers.append(_caller())
        if self.fail_call is not None and self.fail_at is None:
            caller, left = self.fail_call
            if _caller() == caller:
                self.fail_call = caller, left - 1
                self.fail_at = number if left <= 1 else None
        if number == self.crash_at:
            self.crashed = True
            raise Crash
        if self.fail_at is not None and self.fail_at <= number < self.fail_at + self.fail_for:
            self.failed.add(_caller())
            raise OSError(self.fail_with, name)

    def _find(self, path: str) -> File | Directory:
        node: File | Directory = self.root
        for part in path.strip("/").split("/"):
            if part:
                if not isinstance(node, Directory) or part not in node.names:
                    raise FileNotFoundError(errno.ENOENT, "no such file")
                node = node.names[part]
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        folder, _, name = path.rpartition("/")
        node = self._find(folder)
        assert isinstance(node, Directory)
        return node, name

    def _used(self) -> int:
        def of(node: File | Directory) -> int:
            return len(node.data) if isinstance(node, File) else sum(of(child) for child in node.names.values())

        return of(self.root)

    def file(self, data: bytes) -> File:
        """A file that was there before, to be put under a name."""
        return File(data=bytearray(data), durable=data, links=1, modified_ns=self.now_ns())

    def contents(self, path: str) -> bytes:
        node = self._find(path)
        assert isinstance(node, File)
        return bytes(node.data)

    def damage(self, path: str, change: Callable[[bytes], bytes]) -> None:
        node = self._find(path)
        assert isinstance(node, File)
        node.data[:] = change(bytes(node.data))
        node.durable = bytes(node.data)

    # The seam

    def make_directory(self, path: str) -> bool:
        self._step("make_directory")
        parent, name = self._parent(path)
        if name in parent.names:
            return False
        made = Directory()
        parent.change(lambda names: names.setdefault(name, made))
        return True

    def real_path(self, path: str) -> str:
        return path

    def is_directory(self, path: str) -> bool:
        try:
            return isinstance(self._find(path), Directory)
        except FileNotFoundError:
            return False

    def create(self, path: str) -> int:
        self._step("create")
        parent, name = self._parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "exists")
        made = File(links=1, modified_ns=self.now_ns())
        parent.change(lambda names: names.__setitem__(name, made))
        return self._opened(made)

    def open(self, path: str) -> int:
        self._step("open")
        found = self._find(path)
        assert isinstance(found, File)
        return self._opened(found)

    def open_to_read(self, path: str) -> int:
        return self.open(path)

    def _opened(self, file: File) -> int:
        self._next += 1
        self.open_files[self._next] = file
        return self._next

    def close(self, descriptor: int) -> None:
        file = self.open_files.pop(descriptor, None)
        if file is not None and file.locked_by == descriptor:
            file.locked_by = None

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        file = self.open_files[descriptor] if not self.crashed else File()
        if self._fails_next_write is not None:
            code, self._fails_next_write = self._fails_next_write, None
            raise OSError(code, "write")
        try:
            self._step("write")
        except Crash:
            file.data += bytes(data)[: self.rng.randint(0, len(data))]
            raise
        except OSError as problem:
            self._fails_next_write = problem.errno
            return self._write_part(file, data, len(data) // 2)
        if self.capacity is not None and (room := self.capacity - self._used()) < len(data):
            if room <= 0:
                raise OSError(errno.ENOSPC, "write")
            return self._write_part(file, data, room)
        if self.short_writes and len(data) > 1:
            return self._write_part(file, data, self.rng.randint(1, len(data)))
        return self._write_part(file, data, len(data))

    def _write_part(self, file: File, data: bytes | memoryview, length: int) -> int:
        file.data += bytes(data)[:length]
        file.modified_ns = self.now_ns()
        return length

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        self._step("read")
        return bytes(self.open_files[descriptor].data[offset : offset + length])

    def size_and_links(self, descriptor: int) -> tuple[int, int]:
        self._step("size_and_links")
        file = self.open_files[descriptor]
        return len(file.data), file.links

    def stands_at(self, descriptor: int, path: str) -> bool:
        self._step("stands_at")
        try:
            return self._find(path) is self.open_files[descriptor]
        except FileNotFoundError:
            return False

    def identity_of(self, path: str) -> tuple[int, int]:
        self._step("identity_of")
        return self.device, id(self._find(path))

    def sync(self, descriptor: int) -> None:
        file = self.open_files.get(descriptor, File())
        try:
            self._step("sync")
        except OSError:
            file.lost = (len(file.durable), len(file.data))
            raise
        file.durable = self._with_lost(bytes(file.data), file.lost)

    def sync_directory(self, path: str) -> None:
        self._step("sync_directory")
        node = self._find(path)
        assert isinstance(node, Directory)
        node.durable, node.changes = dict(node.names), []

    def truncate(self, descriptor: int, length: int) -> None:
        self._step("truncate")
        del self.open_files[descriptor].data[length:]

    def allocate(self, descriptor: int, length: int) -> None:
        self._step("allocate")
        file = self.open_files[descriptor]
        if self.capacity is not None and self._used() + length > self.capacity:
            raise OSError(errno.ENOSPC, "allocate")
        file.data += bytes(length)

    def try_lock(self, descriptor: int) -> bool:
        self._step("try_lock")
        file = self.open_files[descriptor]
        if file.locked_by not in (None, descriptor):
            return False
        file.locked_by = descriptor
        return True

    def unlock(self, descriptor: int) -> None:
        if self.crashed:
            return  # as with close: nobody is left to be told
        self._step("unlock")
        file = self.open_files[descriptor]
        if file.locked_by == descriptor:
            file.locked_by = None

    def listing(self, path: str) -> list[tuple[str, int]]:
        self._step("listing")
        node = self._find(path)
        assert isinstance(node, Directory)
        found = [(name, len(file.data)) for name, file in node.names.items() if isinstance(file, File)]
        self.rng.shuffle(found)
        return found

    def rename(self, source: str, target: str) -> None:
        self._step("rename")
        parent, name = self._parent(source)
        other, new_name = self._parent(target)
        assert other is parent
        node = parent.names[name]
        if isinstance(replaced := parent.names.get(new_name), File):
            replaced.links -= 1

        def apply(names: dict[str, File | Directory]) -> None:
            if names.get(name) is node:
                del names[name]
            names[new_name] = node

        parent.change(apply)

    def link(self, source: str, target: str) -> None:
        self._step("link")
        node = self._find(source)
        parent, name = self._parent(target)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "exists")
        assert isinstance(node, File)
        node.links += 1
        parent.change(lambda names: names.__setitem__(name, node))

    def unlink(self, path: str) -> None:
        self._step("unlink")
        parent, name = self._parent(path)
        node = self._find(path)
        assert isinstance(node, File)
        node.links -= 1
        parent.change(lambda names: names.pop(name, None))

    def modified_ns(self, path: str) -> int:
        self._step("modified_ns")
        node = self._find(path)
        assert isinstance(node, File)
        return node.modified_ns

    def touch(self, descriptor: int) -> None:
        self._step("touch")
        self.open_files[descriptor].modified_ns = self.now_ns()

    def free_bytes(self, path: str) -> int:
        self._step("free_bytes")
        return 1 << 40 if self.capacity is None else max(0, self.capacity - self._used())


def _caller() -> tuple[str, int]:
    """Where the journal's own code called the file system."""
    frame = sys._getframe(2)
    while not frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == _SEAM:
        if frame.f_back is None:
            return "", 0
        frame = frame.f_back
    return Path(frame.f_code.co_filename).name, frame.f_lineno
