"""Segments: the journal's files as bytes. What a file looks like, how one is appended to, sealed and read.

Format, version 1 (tests/data/journal-v1 is a frozen sample that every later version reads):

    segment-20261201T120000.000Z-1f2e3d4c.jsonl              name: when it was made, and 8 random hex digits
    {"segment":1,"journalId":"<32 hex>","createdAt":"…","sum":"<16 hex>"}     first line, the header
    {"v":1,"kind":"event",…,"sum":"…"}                       lines, see producer.journal.line
    {"sealed":"2026-12-01T12:34:56.789Z","sum":"…"}          last line of a sealed segment

`sum` as in a line: the first 16 hex digits of the sha256 of everything before `,"sum":`.

Guarantees, each with a test of its name:

- a segment is appended to by whoever holds its lock, and by nobody once it is sealed, removed or moved away
- a segment whose header names a later version is neither appended to nor read nor removed
- a whole line of a later version is passed over: it is no damage, and compaction keeps it
- a lost or damaged header costs no line
- what was left without a newline (a torn tail) is never glued to the next line
- an append that fails leaves no part of a line, or at worst a torn tail; a file only ever loses bytes behind its last
  newline, so that whoever follows it needs no lock
- every whole line is read, whatever stands before or after it; all other bytes are reported as damage
- reading takes memory for a few lines, and time in proportion to its length, however large the damage
- a forked child closes the segments of its parent; a lock is let go before its segment is closed, so that no child that
  was forked meanwhile keeps it
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import time
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from producer import errors
from producer.journal import line as lines
from producer.journal.filesystem import FileSystem

__all__ = [
    "VERSION",
    "Piece",
    "Reader",
    "Segment",
    "created_ms",
    "footer",
    "header",
    "is_segment",
    "iso_of_ms",
    "ms_of_iso",
    "segment_name",
]

VERSION = 1

_NAME = re.compile(r"segment-(\d{8}T\d{6}\.\d{3})Z-[0-9a-f]{8}\.jsonl\Z")
_HEADER_START, _FOOTER_START, _LINE_START = b'{"segment":', b'{"sealed":', b'{"v":'
_SUM = b',"sum":"'
_LINE_END = re.compile(rb',"sum":"[0-9a-f]{16}"\}')
_SALVAGE_WORK = 32  # bytes checked for each byte of damage, at most
_TAIL = 256  # more than a footer, and than a header
_CHUNK = 1 << 18


def iso_of_ms(ms: int) -> str:
    """`YYYY-MM-DDTHH:MM:SS.mmmZ` of unix milliseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(ms // 1000))}.{ms % 1000:03}Z"


def ms_of_iso(text: str) -> int:
    """Unix milliseconds of such a text; 0 for any other."""
    try:
        day, clock = int(text[8:10]), text[11:23]
        seconds = _days(int(text[:4]), int(text[5:7]), day) * 86_400
        seconds += int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:8])
        return seconds * 1000 + int(clock[9:12])
    except (ValueError, IndexError):
        return 0


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01, in the Gregorian calendar."""
    year -= month <= 2
    era_day = (year // 400) * 146_097
    of_era = year % 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era_day + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def segment_name(at_ms: int) -> str:
    """A new name; names sort by the time they were made."""
    stamp = iso_of_ms(at_ms).replace("-", "").replace(":", "")
    return f"segment-{stamp}-{os.urandom(4).hex()}.jsonl"


def is_segment(name: str) -> bool:
    return _NAME.match(name) is not None


@functools.lru_cache(maxsize=64)  # asked at every append
def created_ms(name: str) -> int:
    """When the segment of this name was made, by the clock of its maker."""
    stamp = name[8:]  # 20261201T120000.000Z-…
    return ms_of_iso(
        f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}{stamp[15:19]}Z"
    )


def _summed(checked: bytes) -> bytes:
    return checked + _SUM + hashlib.sha256(checked).hexdigest()[:16].encode("ascii") + b'"}'


def _is_summed(piece: bytes) -> bool:
    checked, _, _ = piece.rpartition(_SUM)
    return piece == _summed(checked)


def header(journal_id: str, at_ms: int) -> bytes:
    """The first line of a new segment, with its newline."""
    return (
        _summed(f'{{"segment":{VERSION},"journalId":"{journal_id}","createdAt":"{iso_of_ms(at_ms)}"'.encode("ascii"))
        + b"\n"
    )


def footer(at_ms: int) -> bytes:
    """The last line of a sealed segment, with its newline."""
    return _summed(f'{{"sealed":"{iso_of_ms(at_ms)}"'.encode("ascii")) + b"\n"


def _header_version(piece: bytes) -> int | None:
    """The version that a whole header names; None for anything else."""
    if not piece.startswith(_HEADER_START) or not _is_summed(piece):
        return None
    version = json.loads(piece)["segment"]
    return version if isinstance(version, int) else None


def _is_footer(piece: bytes) -> bool:
    return piece.startswith(_FOOTER_START) and _is_summed(piece)


class Piece(NamedTuple):
    """A part of a segment: a line, one of a later version (`line` is None), or damage."""

    offset: int
    raw: bytes  # without newline
    line: lines.Line | None
    is_later: bool = False


class Reader:
    """Reads a segment from `offset` on, once; ask again later for what was appended.

    After iterating, `offset` is where to go on: behind the last newline. `to_end`: also read a last piece that has no
    newline (nobody appends any more); without it such a piece is left for later. `sealed`: the last line is a footer.
    `unreadable`: the header names a later version; nothing is read.
    """

    def __init__(self, fs: FileSystem, descriptor: int, *, offset: int = 0, sealed: bool = False) -> None:
        self._fs = fs
        self._descriptor = descriptor
        self.offset = offset
        self.sealed = sealed
        self.unreadable = False

    def pieces(self, *, to_end: bool = False) -> Iterator[Piece]:
        """Lines and damage in their order. Raises `OSError` when the disk does not give the bytes."""
        buffer = b""  # the bytes from self.offset on
        while not self.unreadable:
            chunk = self._fs.read(self._descriptor, _CHUNK, self.offset + len(buffer))
            if not chunk:
                break
            buffer += chunk
            *whole, buffer = buffer.split(b"\n")
            for piece in whole:
                yield from self._take(piece, len(piece) + 1)
                if self.unreadable:
                    return
            if len(buffer) > lines.MAX_LINE_BYTES:
                cut = buffer.find(_LINE_START, 1)
                cut = cut if 0 < cut <= lines.MAX_LINE_BYTES else lines.MAX_LINE_BYTES
                yield from self._take(buffer[:cut], cut)
                buffer = buffer[cut:]
        if to_end and buffer and not self.unreadable:
            yield from self._take(buffer, len(buffer))

    def _take(self, piece: bytes, length: int) -> Iterator[Piece]:
        """What this piece holds. `offset` moves first: a caller that stops in the middle does not get it twice."""
        start, self.offset = self.offset, self.offset + length
        if start == 0 and (version := _header_version(piece)) is not None:
            if version > VERSION:
                self.unreadable, self.offset = True, 0
            return
        self.sealed = _is_footer(piece)
        if self.sealed or not piece:
            return
        whole = _whole(start, piece)
        if whole is not None:
            yield whole
        else:
            yield from _salvage(start, piece)


def _whole(offset: int, raw: bytes) -> Piece | None:
    try:
        return Piece(offset, raw, lines.parse(raw))
    except errors.DamagedLine:
        return Piece(offset, raw, None, is_later=True) if lines.is_later(raw) else None


def _salvage(start: int, piece: bytes) -> Iterator[Piece]:
    """The whole lines inside a damaged piece (a newline was lost), and the bytes around them as damage.

    A line's start and end cannot occur inside another one's text: there its quotes are escaped. From each end the
    nearest starts are tried first, and all tries together cost a bounded multiple of the damage.
    """
    begins = [found.start() for found in re.finditer(re.escape(_LINE_START), piece)]
    done, work = 0, _SALVAGE_WORK * len(piece)
    for ending in _LINE_END.finditer(piece):
        number = bisect_left(begins, ending.start()) - 1
        while number >= 0 and begins[number] >= done and work > 0:
            begin, end = begins[number], ending.end()
            work -= end - begin
            number -= 1
            if (whole := _whole(start + begin, piece[begin:end])) is not None:
                if begin > done:
                    yield Piece(start + done, piece[done:begin], None)
                yield whole
                done = end
                break
    if done < len(piece):
        yield Piece(start + done, piece[done:], None)


_open: weakref.WeakSet[Segment] = weakref.WeakSet()


class Segment:
    """An open segment file of this process. `hold` it, append, sync, `let_go`; not for several threads at once."""

    def __init__(self, fs: FileSystem, directory: str, name: str, descriptor: int, *, journal_id: str) -> None:
        self._fs = fs
        self._descriptor = descriptor
        self._journal_id = journal_id
        self._prefix = b""  # what must stand before the next line
        self._known_size = -1  # the length at which `_prefix` was found out
        self._held = False
        self.directory = directory
        self.name = name
        self.size = 0
        self.closed = False
        self.ended = False  # sealed, removed or of a later version: never to be appended to
        self.name_is_durable = False  # the directory was synced by us since we opened it
        _open.add(self)

    @classmethod
    def create(cls, fs: FileSystem, directory: str, *, journal_id: str, at_ms: int) -> Segment:
        name = segment_name(at_ms)
        return cls(fs, directory, name, fs.create(f"{directory}/{name}"), journal_id=journal_id)

    @classmethod
    def open(cls, fs: FileSystem, directory: str, name: str, *, journal_id: str) -> Segment:
        return cls(fs, directory, name, fs.open(f"{directory}/{name}"), journal_id=journal_id)

    def hold(self) -> bool:
        """Whether its lock was free and it may be appended to: not sealed, not removed, not of a later version."""
        if not self._fs.try_lock(self._descriptor):
            return False
        usable = False
        try:
            self.size, links = self._fs.size_and_links(self._descriptor)
            usable = links > 0 and self.stands_here() and (self.size == self._known_size or self._examine())
            self.ended = not usable
        finally:
            self._held = True
            if not usable:
                self.let_go()
        return usable

    def stands_here(self) -> bool:
        """Whether who reads the directory finds it: it may have been moved away, or another disk been mounted."""
        return self._fs.stands_at(self._descriptor, f"{self.directory}/{self.name}")

    def _examine(self) -> bool:
        """Find out how this file ends, when others wrote to it or nobody did yet."""
        if self.size == 0:
            self._prefix = header(self._journal_id, created_ms(self.name))
            self._known_size = 0
            return True
        if self._known_size < 0:
            first = self._fs.read(self._descriptor, _TAIL, 0).partition(b"\n")[0]
            if (_header_version(first) or 0) > VERSION:
                return False
        tail = self._fs.read(self._descriptor, min(_TAIL, self.size), max(0, self.size - _TAIL))
        ends = tail.endswith(b"\n")
        if ends and _is_footer(tail[:-1].rpartition(b"\n")[2]):
            return False
        self._prefix = b"" if ends else b"\n"
        self._known_size = self.size
        return True

    @property
    def torn(self) -> bool:
        """Whether the file that we hold ends without a newline."""
        return self._prefix == b"\n"

    @property
    def empty(self) -> bool:
        return self.size == 0

    def append(self, data: bytes) -> None:
        """Append whole lines. When that fails, a part of a line is cut off again and the error raised.

        Nothing that ended in a newline is cut off: somebody who follows the file may have read it already.
        """
        whole, written = self._prefix + data, 0
        try:
            while written < len(whole):
                written += self._fs.write(self._descriptor, memoryview(whole)[written:])
        except OSError:
            self._known_size = -1
            whole_bytes = whole.rfind(b"\n", 0, written) + 1
            try:
                self._fs.truncate(self._descriptor, self.size + whole_bytes)
                self.size += whole_bytes
                self._prefix = b"" if whole_bytes else self._prefix
            except OSError:
                self.size += written
                self._prefix = b"\n" if written else self._prefix  # a torn tail, for us and for the next one
            raise
        self.size = self._known_size = self.size + len(whole)
        self._prefix = b""

    def heal(self) -> None:
        """End a torn tail with a newline."""
        self.append(b"")

    def sync(self) -> None:
        """Return once file and directory are on the disk.

        The directory is synced by every process once for every segment it appends to: whoever made the file may have
        died before doing so.
        """
        self._fs.sync(self._descriptor)
        if not self.name_is_durable:
            self._fs.sync_directory(self.directory)
            self.name_is_durable = True

    def seal(self, at_ms: int) -> None:
        """Nobody appends to it any more. Held before, and still held after."""
        self.append(footer(at_ms))
        self._known_size = -1  # we too look at its end when we hold it next

    def let_go(self) -> None:
        self._held = False
        self._fs.unlock(self._descriptor)

    def reader(self) -> Reader:
        """Reads the file from its start."""
        return Reader(self._fs, self._descriptor)

    def hold_sealed(self) -> bool:
        """Whether its lock was free and it is sealed: its holder may read it all and remove it."""
        if not self._fs.try_lock(self._descriptor):
            return False
        sealed = False
        try:
            self.size, links = self._fs.size_and_links(self._descriptor)
            sealed = links > 0 and self.size > 0 and not self._examine() and not self._is_of_a_later_version()
        finally:
            self._held = True
            if not sealed:
                self.let_go()
        return sealed

    def _is_of_a_later_version(self) -> bool:
        return (_header_version(self._fs.read(self._descriptor, _TAIL, 0).partition(b"\n")[0]) or 0) > VERSION

    def close(self) -> None:
        """Let go, and close the descriptor."""
        if self.closed:
            return
        self.closed = True
        try:
            if self._held:
                self.let_go()
        except OSError:
            pass  # closing does it, unless a child was forked meanwhile
        self._fs.close(self._descriptor)

    def _after_fork_in_child(self) -> None:
        """Not unlocked: the lock is the parent's."""
        if not self.closed:
            self.closed = True
            self._fs.close(self._descriptor)


def _after_fork_in_child() -> None:
    for segment in list(_open):
        segment._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
