"""A settled order to forget, and the lines of its own journal that it covers: their bytes are to leave the disk.

The order's receipt says that its marks stand in the store: no delivery brings back what it covers. So

    stored                a receipt `forgotten` of the journal's own: the line's segment is sealed and compacted
    dead                  the drainer asks workers about all its dead lines now (producer.checks); they answer
                          `forgotten` and take the line off the listing. A thing's order, which they cannot be asked
                          about, gets its receipt here
    open                  left to its delivery, which finds the mark

The whole journal is read for it, a few segments at a time. A drainer that dies in between leaves the order's line, and
the next one begins again. Not for several threads at once.
"""

from __future__ import annotations

import logging

from producer import errors
from producer.convergence import ordered
from producer.journal import Journal
from producer.journal.index import Entry, Index
from producer.receipt import Receipt, State

__all__ = ["ForgottenLines"]

_SEGMENTS_AT_ONCE = 2

_log = logging.getLogger(__name__)


class ForgottenLines:
    """Of one dispatcher; forgotten with what it knows of its journal."""

    def __init__(self, journal: Journal, index: Index) -> None:
        self._journal = journal
        self._index = index
        self._settled: list[Entry] = []  # orders of any kind
        self._orders: list[tuple[ordered.Order, int]] = []  # with the time of its receipt
        self._read: set[str] = set()  # segments, for these orders

    def receipted(self, entry: Entry) -> None:
        """Take note of a receipt, or of a line that has one already."""
        if entry.is_order and entry.state is State.STORED:
            self._settled.append(entry)

    def begin(self) -> bool:
        """Whether orders to forget were settled since the last time: dead lines are to be asked about."""
        found = [(order, entry.last_ms) for entry in self._settled if (order := self._order(entry)) is not None]
        self._settled = []
        if found:
            self._orders += found
            self._read = set()
        return bool(found)

    def sweep(self) -> None:
        """Give receipts to what is covered in the next few segments. A disk that refuses them is asked again."""
        if not self._orders:
            return
        names = [name for name in self._index.views if name not in self._read]
        if not names:
            self._orders = []
        for name in names[:_SEGMENTS_AT_ONCE]:
            try:
                self._journal.append_receipts(self._covered(name))
            except (OSError, errors.JournalFull, errors.JournalFailed, errors.SyncUnknown) as problem:
                _log.warning(
                    "forgotten lines cannot be given up now (%s); their bytes stay until they can",
                    type(problem).__name__,
                    extra={"action": "forgotten_lines_wait"},
                )
                return
            self._read.add(name)

    def _order(self, entry: Entry) -> ordered.Order | None:
        try:
            order = ordered.of_body(self._index.read_line(entry).body["order"])
        except (OSError, errors.DamagedLine):
            return None  # compacted meanwhile
        return order if order is not None and order.forgets else None

    def _covered(self, name: str) -> list[Receipt]:
        made = []
        for located in self._journal.scan_segment(name):
            line = located.line
            if line.kind not in ("event", "order"):
                continue
            entry = self._index.entries.get(bytes.fromhex(line.hash))
            if entry is None or not self._is_ours_to_end(entry):
                continue
            named = ordered.named_of_line(line)
            # What was stored before the order was settled left the store with its group, whenever it was appended.
            # What is dead was never there: of it an order takes no more than it covers.
            stored = entry.state is State.STORED
            if named is not None and any(
                order.covers(named, line.appended_at) or (stored and order.names(named) and entry.last_ms <= settled_ms)
                for order, settled_ms in self._orders
            ):
                made.append(Receipt(line_hash=line.hash, id=line.id, state=State.FORGOTTEN, reason="order"))
        return made

    @staticmethod
    def _is_ours_to_end(entry: Entry) -> bool:
        return entry.state is State.STORED or (entry.is_order and entry.state is State.DEAD)
