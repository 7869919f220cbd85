"""A file system in memory that fails or crashes at the Nth operation, and forgets what was not synced.

- what a crash leaves of a file: what was synced, and of what came later any of nothing, all, a part, or its length
  filled with NULs
- what a crash leaves of a directory: the names that were synced, and any of the changes made since (a rename is one)
- a failed sync loses the bytes it was to make durable: later syncs of that file succeed and do not bring them back, as
  on Linux
- a write that fails has written a part before
- locks belong to open files; a crash lets them go
- `capacity`: bytes that all files together may have
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from producer.journal.filesystem import FileSystem


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
        self.operations: list[str] = []
        self.fail_at: int | None = None  # counts from 0
        self.fail_with = errno.EIO
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

    def stop_failing(self) -> None:
        self.fail_at = self._fails_next_write = None

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
        match self.rng.randrange(4):
            case 0:
                data = kept
            case 1:
                data = whole
            case 2:
                data = whole[: self.rng.randint(min(len(kept), len(whole)), len(whole))]
            case _:
                data = kept + bytes(max(0, len(whole) - len(kept)))
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
        if number == self.crash_at:
            self.crashed = True
            raise Crash
        if number == self.fail_at:
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
        return 1 << 40 if self.capacity is None else max(0, self.capacity - self._used())
