"""The newest lines of the host's own journal that are not settled yet: recalled before any worker has seen them.

Follows the segments from where it last read them. It starts at most `_START_BYTES` before the end of each of the
newest segments and keeps at most `MAX_LINES` lines: what is older than that has been on its way for long, and a backlog
of gigabytes costs a recall nothing. A line leaves with its terminal receipt. Threads may share it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from producer import errors, keys
from producer import receipt as receipts
from producer.journal import Journal, segments
from producer.journal.line import Line

__all__ = ["MAX_LINES", "JournalTail"]

MAX_LINES = 512
_START_BYTES = 1 << 20
_START_SEGMENTS = 4


class JournalTail:
    """`tail(scope_key)` for `producer.recall.engine.Recall`. Raises `errors.JournalFailed` when the disk does not give
    the bytes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._offsets: dict[str, int] = {}
        self._open: OrderedDict[str, tuple[str, Mapping[str, Any]]] = OrderedDict()  # line hash: scopeKey, body
        self._started = False

    def __call__(self, scope_key: str) -> Sequence[Mapping[str, Any]]:
        """The bodies of this scope's open lines, oldest first, and those of orders for every scope."""
        with self._lock:
            try:
                self._follow()
            except OSError as problem:
                raise errors.JournalFailed(f"a segment cannot be read (errno {problem.errno})") from problem
            return [body for owner, body in self._open.values() if owner in (scope_key, "")]

    def _follow(self) -> None:
        names = self._journal.segment_names()
        if not self._started:
            skipped = list(names)[:-_START_SEGMENTS]
            self._offsets = {name: names[name] for name in skipped}
            self._started = True
            for name in list(names)[-_START_SEGMENTS:]:
                self._offsets[name] = max(0, names[name] - _START_BYTES)
        settled: list[str] = []
        for name, size in names.items():
            if size > self._offsets.get(name, 0):
                settled += self._read(name)
        for name in [name for name in self._offsets if name not in names]:
            del self._offsets[name]
        for line_hash in settled:  # at the end: a receipt may stand in an earlier segment than its line
            self._open.pop(line_hash, None)
        while len(self._open) > MAX_LINES:
            self._open.popitem(last=False)

    def _read(self, name: str) -> list[str]:
        """Take the new lines of a segment; the lines that its receipts settle."""
        settled: list[str] = []
        try:
            descriptor = self._journal.fs.open_to_read(f"{self._journal.directory}{os.sep}{name}")
        except FileNotFoundError:
            return settled  # compacted meanwhile
        try:
            reader = segments.Reader(self._journal.fs, descriptor, offset=self._offsets.get(name, 0))
            for piece in reader.pieces():
                if piece.line is not None:
                    self._take(piece.line, settled)
            self._offsets[name] = reader.offset
        finally:
            self._journal.fs.close(descriptor)
        return settled

    def _take(self, line: Line, settled: list[str]) -> None:
        if line.kind == "receipt":
            if line.body.get("state") in receipts.TERMINAL:
                settled.append(str(line.body.get("lineHash")))
        elif line.kind in ("event", "order"):
            owner = _owner(line)
            if owner is not None:
                self._open[line.hash] = (owner, line.body)
                self._open.move_to_end(line.hash)


def _owner(line: Line) -> str | None:
    """The scopeKey that may see this line; empty: every scope; None: nobody."""
    of = line.body.get("event") if line.kind == "event" else line.body.get("order")
    if not isinstance(of, Mapping):
        return None
    if line.kind == "order":
        if of.get("everywhere") is True:
            return ""
        of = of.get("scope")
    try:
        return keys.scope_key(of) if isinstance(of, Mapping) else None
    except KeyError:
        return None
