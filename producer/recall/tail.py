"""The newest lines of the host's own journal that are not settled yet: recalled before any worker has seen them.

Follows the segments from where it last read them. It starts at most `_START_BYTES` before the end of each of the
newest segments and keeps at most `MAX_LINES` lines: what is older than that has been on its way for long, and a backlog
of gigabytes costs a recall nothing. A line leaves with its terminal receipt. Threads may share it.

Events that an order in the journal retracts or forgets are not given, also when the order is settled before them: their
own delivery may come much later. Of the orders that are not settled the bodies come too, for what others told of.

No line pushes such an order out, however old it is: the first call looks for them in the whole journal, and parses
nothing there but what looks like one. While more than `MAX_ORDERS` wait, every call fails:
without them nobody knows what may be recalled.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from producer import errors, keys
from producer import receipt as receipts
from producer.convergence import marks, ordered
from producer.journal import Journal, segments
from producer.journal import line as lines
from producer.journal.filesystem import FileSystem
from producer.journal.line import Line
from producer.receipt import State

__all__ = ["MAX_LINES", "MAX_ORDERS", "JournalTail"]

MAX_LINES = 512
MAX_ORDERS = 10_000
_START_BYTES = 1 << 20
_START_SEGMENTS = 4
_REFUSED = (State.DEAD, State.DISCARDED)
_CHUNK = 1 << 18
# How `line.encode` writes them; inside a text the quotes are escaped.
_FORGETS, _RETRACTS = b'"what":"forget"', b'"what":"retract"'
_ORDERS = re.compile(rb'"what":"(?:forget|retract)"')
_SETTLES = re.compile(rb'"lineHash":"([0-9a-f]{64})"')
_OF_ORDER = ("what", "scope", "everywhere", "target", "group", "at")  # what `ordered.of_body` reads
_log = logging.getLogger(__name__)


class _Open(NamedTuple):
    owner: str  # scopeKey
    body: Mapping[str, Any]
    named: ordered.Named | None
    appended_at: str


class _Pending(NamedTuple):
    order: ordered.Order
    body: Mapping[str, Any]


class JournalTail:
    """`tail(scope_key)` for `producer.recall.engine.Recall`. Raises `errors.JournalFailed` when the disk does not give
    the bytes, or when too many orders wait."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._offsets: dict[str, int] = {}
        self._open: OrderedDict[str, _Open] = OrderedDict()  # events, by line hash
        self._pending: dict[str, _Pending] = {}  # orders
        self._orders: OrderedDict[str, ordered.Order] = OrderedDict()  # settled ones
        self._started = False
        self._overfull = False

    def __call__(self, scope_key: str) -> Sequence[Mapping[str, Any]]:
        """The bodies of this scope's open lines, oldest first, with `appendedAt` beside what the line holds; before
        them those of the orders that count in it."""
        with self._lock:
            try:
                self._follow()
            except OSError as problem:
                raise errors.JournalFailed(f"a segment cannot be read (errno {problem.errno})") from problem
            self._check_bound()
            ending = ordered.by_key([*(pending.order for pending in self._pending.values()), *self._orders.values()])
            told = [body for order, body in self._pending.values() if order.scope_key in (scope_key, marks.EVERYWHERE)]
            return [*told, *(o.body for o in self._open.values() if o.owner == scope_key and _stands(o, ending))]

    def _check_bound(self) -> None:
        was, self._overfull = self._overfull, len(self._pending) > MAX_ORDERS
        if self._overfull and not was:
            _log.error(
                "recall: more than %d orders to forget or retract wait in the journal; nothing is recalled until some"
                " are settled",
                MAX_ORDERS,
                extra={"action": "recall.too_many_orders"},
            )
        if self._overfull:
            raise errors.JournalFailed("too many orders to forget or retract wait")

    def _follow(self) -> None:
        if not self._started:
            self._begin()
            self._started = True
        names = self._journal.segment_names()
        settled: list[tuple[str, str]] = []
        for name, size in names.items():
            offset = self._offsets.get(name, 0)
            if size > offset:
                self._offsets[name] = self._read(name, offset, functools.partial(self._take, settled))
        for name in [name for name in self._offsets if name not in names]:
            del self._offsets[name]
        self._settle(settled)  # at the end: a receipt may stand in an earlier segment than its line
        while len(self._open) > MAX_LINES:
            self._open.popitem(last=False)

    def _begin(self) -> None:
        """Find the orders that are not settled, wherever they stand, and where to follow each segment from."""
        self._pending, self._offsets = {}, {}
        names: dict[str, int] = {}
        # Compaction copies before it removes: what vanished under us stands in a segment that a new listing shows.
        while new := {name: size for name, size in self._journal.segment_names().items() if name not in names}:
            names |= new
            for name in new:
                self._offsets[name] = self._pick(name, _order_offsets, self._take_order)
        if self._pending:
            settled: list[tuple[str, str]] = []
            of_orders = functools.partial(_receipt_offsets, {hash_.encode("ascii") for hash_ in self._pending})
            for name in names:
                self._pick(name, of_orders, functools.partial(_take_receipt, settled))
            self._settle(settled)
        for name in list(names)[-_START_SEGMENTS:]:
            self._offsets[name] = max(0, names[name] - _START_BYTES)

    def _settle(self, settled: Sequence[tuple[str, str]]) -> None:
        for line_hash, state in settled:
            self._open.pop(line_hash, None)
            pending = self._pending.pop(line_hash, None)
            if state in _REFUSED:
                self._orders.pop(line_hash, None)
            elif pending is not None:
                self._orders[line_hash] = pending.order
        while len(self._orders) > MAX_LINES:
            self._orders.popitem(last=False)

    def _pick(self, name: str, found_in: Callable[[bytes], Iterable[int]], take: Callable[[Line], None]) -> int:
        """Take the lines of a segment in which something is found, perhaps others too; the end of its last line."""
        is_damaged, end = False, 0
        for block in self._blocks(name):
            end += len(block)
            for offset in found_in(block):
                try:
                    take(lines.parse(block[block.rfind(b"\n", 0, offset) + 1 : block.index(b"\n", offset)]))
                except errors.DamagedLine:
                    is_damaged = True
        if is_damaged:  # whole lines may stand in it
            self._read(name, 0, take)
        return end

    def _blocks(self, name: str) -> Iterator[bytes]:
        """The bytes of a segment up to its last newline, cut at newlines; none of a later version."""
        with self._opened(name) as descriptor:
            if descriptor is None or _is_of_a_later_version(self._journal.fs, descriptor):
                return
            offset, pieces = 0, []
            while chunk := self._journal.fs.read(descriptor, _CHUNK, offset):
                offset += len(chunk)
                end = chunk.rfind(b"\n") + 1
                pieces.append(chunk[:end] if end else chunk)
                if end:
                    yield b"".join(pieces)
                    pieces = [chunk[end:]]

    def _read(self, name: str, offset: int, take: Callable[[Line], None]) -> int:
        """Take the lines of a segment from there on; the offset to go on from."""
        with self._opened(name) as descriptor:
            if descriptor is None:
                return offset
            reader = segments.Reader(self._journal.fs, descriptor, offset=offset)
            for piece in reader.pieces():
                if piece.line is not None:
                    take(piece.line)
            return reader.offset

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int | None]:
        """A descriptor of a segment; None when it was compacted meanwhile."""
        try:
            descriptor = self._journal.fs.open_to_read(f"{self._journal.directory}{os.sep}{name}")
        except FileNotFoundError:
            yield None
            return
        try:
            yield descriptor
        finally:
            self._journal.fs.close(descriptor)

    def _take(self, settled: list[tuple[str, str]], line: Line) -> None:
        _take_receipt(settled, line)
        self._take_order(line)
        if line.kind == "event" and (owner := _owner(line)) is not None:
            body = {**line.body, "appendedAt": line.appended_at}
            self._open[line.hash] = _Open(owner, body, ordered.named_of_line(line), line.appended_at)
            self._open.move_to_end(line.hash)

    def _take_order(self, line: Line) -> None:
        body = line.body.get("order") if line.kind == "order" else None
        if isinstance(body, Mapping) and (order := ordered.of_body(body)) is not None:
            kept = {name: body[name] for name in _OF_ORDER if name in body}
            self._pending[line.hash] = _Pending(order, {"order": kept})


def _is_of_a_later_version(fs: FileSystem, descriptor: int) -> bool:
    reader = segments.Reader(fs, descriptor)
    next(reader.pieces(), None)
    return reader.unreadable


def _order_offsets(block: bytes) -> list[int]:
    if _FORGETS not in block and _RETRACTS not in block:  # much faster than the expression
        return []
    return [found.start() for found in _ORDERS.finditer(block)]


def _receipt_offsets(hashes: Collection[bytes], block: bytes) -> list[int]:
    return [found.start() for found in _SETTLES.finditer(block) if found[1] in hashes]


def _take_receipt(settled: list[tuple[str, str]], line: Line) -> None:
    """Note what a receipt settles, and how."""
    if line.kind == "receipt" and (state := line.body.get("state")) in receipts.TERMINAL:
        settled.append((str(line.body.get("lineHash")), str(state)))


def _stands(line: _Open, ending: Mapping[str, Sequence[ordered.Order]]) -> bool:
    named = line.named
    if named is None:
        return True
    return not any(order.covers(named, line.appended_at) for key in named.keys for order in ending.get(key, ()))


def _owner(line: Line) -> str | None:
    """The scopeKey that may see this event; None: nobody."""
    of = line.body.get("event")
    try:
        return keys.scope_key(of) if isinstance(of, Mapping) else None
    except KeyError:
        return None
