"""The newest lines of the host's own journal that are not settled yet: recalled before any worker has seen them.

Follows the segments from where it last read them. It starts at most `_START_BYTES` before the end of each of the
newest segments and keeps at most `MAX_LINES` lines: what is older than that has been on its way for long, and a backlog
of gigabytes costs a recall nothing. A line leaves with its terminal receipt. Threads may share it.

Events that an order in the journal retracts or forgets are not given, also when the order is settled before them: their
own delivery may come much later. Of the orders that are not settled the bodies come too, for what others told of.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from producer import errors, keys
from producer import receipt as receipts
from producer.convergence import ordered
from producer.journal import Journal, segments
from producer.journal.line import Line
from producer.receipt import State

__all__ = ["MAX_LINES", "JournalTail"]

MAX_LINES = 512
_START_BYTES = 1 << 20
_START_SEGMENTS = 4
_REFUSED = (State.DEAD, State.DISCARDED)


class _Open(NamedTuple):
    owner: str  # scopeKey; empty: every scope
    body: Mapping[str, Any]
    named: ordered.Named | None
    appended_at: str


class JournalTail:
    """`tail(scope_key)` for `producer.recall.engine.Recall`. Raises `errors.JournalFailed` when the disk does not give
    the bytes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._offsets: dict[str, int] = {}
        self._open: OrderedDict[str, _Open] = OrderedDict()  # by line hash
        self._orders: OrderedDict[str, ordered.Order] = OrderedDict()  # settled ones too
        self._started = False

    def __call__(self, scope_key: str) -> Sequence[Mapping[str, Any]]:
        """The bodies of this scope's open lines, oldest first, and those of orders for every scope; `appendedAt` beside
        what the line holds."""
        with self._lock:
            try:
                self._follow()
            except OSError as problem:
                raise errors.JournalFailed(f"a segment cannot be read (errno {problem.errno})") from problem
            return [line.body for line in self._open.values() if line.owner in (scope_key, "") and self._stands(line)]

    def _stands(self, line: _Open) -> bool:
        named = line.named
        return named is None or not any(order.covers(named, line.appended_at) for order in self._orders.values())

    def _follow(self) -> None:
        names = self._journal.segment_names()
        if not self._started:
            skipped = list(names)[:-_START_SEGMENTS]
            self._offsets = {name: names[name] for name in skipped}
            self._started = True
            for name in list(names)[-_START_SEGMENTS:]:
                self._offsets[name] = max(0, names[name] - _START_BYTES)
        settled: list[tuple[str, str]] = []
        for name, size in names.items():
            if size > self._offsets.get(name, 0):
                settled += self._read(name)
        for name in [name for name in self._offsets if name not in names]:
            del self._offsets[name]
        for line_hash, state in settled:  # at the end: a receipt may stand in an earlier segment than its line
            self._open.pop(line_hash, None)
            if state in _REFUSED:
                self._orders.pop(line_hash, None)
        for kept in (self._open, self._orders):
            while len(kept) > MAX_LINES:
                kept.popitem(last=False)

    def _read(self, name: str) -> list[tuple[str, str]]:
        """Take the new lines of a segment; the lines that its receipts settle, and how."""
        settled: list[tuple[str, str]] = []
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

    def _take(self, line: Line, settled: list[tuple[str, str]]) -> None:
        if line.kind == "receipt":
            if (state := line.body.get("state")) in receipts.TERMINAL:
                settled.append((str(line.body.get("lineHash")), str(state)))
        elif line.kind in ("event", "order"):
            owner = _owner(line)
            if owner is None:
                return
            body = {**line.body, "appendedAt": line.appended_at}
            named = ordered.named_of_line(line) if line.kind == "event" else None
            self._open[line.hash] = _Open(owner, body, named, line.appended_at)
            self._open.move_to_end(line.hash)
            if line.kind == "order" and (order := ordered.of_body(line.body["order"])) is not None:
                self._orders[line.hash] = order


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
