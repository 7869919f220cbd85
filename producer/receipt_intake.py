"""Receipts on their way from Redis into the journal.

Guarantees, each with a test of its name:

- receipts are verified, journaled and only then acted upon; when the disk refuses them they still count, in memory
- a receipt that is not signed with our key, or that says what only an operator may, is refused and counted
- a receipt of a line that is not here, or that says nothing new, is not journaled
- Redis being away is asked again at growing jittered intervals
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from producer import errors, message
from producer import receipt as receipts
from producer.backoff import BackOff
from producer.journal import Journal
from producer.journal.index import Index
from producer.receipt import Receipt, State
from producer.tally import Tally
from producer.window import Window

__all__ = ["AT_ONCE", "ReceiptIntake", "ReceiptSource"]

AT_ONCE = 1000
_IDLE_S = 5.0

_log = logging.getLogger(__name__)


class ReceiptSource(Protocol):
    def pop(self, journal_id: str, max_entries: int) -> list[bytes]:
        """Take signed receipts off this journal's list, the oldest first. Raises `errors.RedisUnavailable`."""

    def queue_length(self) -> int:
        """Messages waiting in both queues. Raises `errors.RedisUnavailable` or `errors.BrokerUnavailable`."""

    def close(self) -> None: ...


class ReceiptIntake:
    """Takes receipts in one dispatcher's rounds; forgotten with what the dispatcher knows of its journal."""

    def __init__(
        self,
        journal: Journal,
        index: Index,
        window: Window,
        source: ReceiptSource,
        *,
        key: message.Key,
        tally: Tally,
        back_off: BackOff,
        monotonic: Callable[[], float],
    ) -> None:
        """`back_off` outlives this."""
        self._journal = journal
        self._index = index
        self._window = window
        self._source = source
        self._key = key
        self._tally = tally
        self._back_off = back_off
        self._monotonic = monotonic
        self._next_s = 0.0

    def take(self, now_s: float, *, is_awaited: bool) -> int | None:
        """How many were taken off the list: `AT_ONCE` when there may be more; None when Redis was not asked, or did not
        answer. They stand in the journal, or count in the index. Not `is_awaited`: now and then is enough."""
        if self._back_off.waits(now_s) or (not is_awaited and now_s < self._next_s):
            return None
        self._next_s = now_s + _IDLE_S
        try:
            entries = self._source.pop(self._journal.journal_id, AT_ONCE)
        except errors.RedisUnavailable as problem:
            self._tally.counted["redis_failures"] += 1
            if self._back_off.fail(now_s):
                _log.warning(
                    "receipts cannot be read (%s); lines stay in the journal until they can",
                    problem,
                    extra={"action": "receipts_unavailable"},
                )
            return None
        self._back_off.succeed()
        self._journal_those_that_tell(self._decoded(entries))
        return len(entries)

    def _decoded(self, entries: Iterable[bytes]) -> list[Receipt]:
        found = []
        for entry in entries:
            try:
                receipt = receipts.decode(entry, journal_id=self._journal.journal_id, secret_of=self._secret_of)
                bytes.fromhex(receipt.line_hash)
            except (errors.SignatureRefused, errors.DamagedLine, ValueError):
                self._tally.counted["receipts_refused"] += 1
                continue
            if receipt.state in (State.REPLAYED, State.DISCARDED):
                self._tally.counted["receipts_refused"] += 1  # an operator's words, not a worker's
                continue
            found.append(receipt)
        return found

    def _secret_of(self, key_id: str) -> bytes | None:
        return self._key.secret if key_id == self._key.id else None

    def _journal_those_that_tell(self, found: Sequence[Receipt]) -> None:
        telling = [receipt for receipt in found if self._tells_something(receipt)]
        if not telling:
            return
        for receipt in telling:
            self._tally.receipts[receipt.state.value] += 1
            if receipt.state is State.STORED:
                self._tally.stored_at_s = self._monotonic()
        try:
            self._journal.append_receipts(telling)
        except (errors.JournalFull, errors.JournalFailed, errors.SyncUnknown):
            # Without them on disk a restart delivers again, which is harmless; waiting for them would never heal a disk
            # that only compaction can empty.
            self._tally.counted["receipts_unjournaled"] += len(telling)
            for receipt in telling:
                self._index.settle(receipt)

    def _tells_something(self, receipt: Receipt) -> bool:
        """Whether it is of a line that is here, and says what the journal does not know."""
        entry = self._index.entries.get(bytes.fromhex(receipt.line_hash))
        if entry is None or not entry.copies:
            self._tally.counted["receipts_unknown"] += 1
            return False
        if entry.last is not None and entry.is_terminal and entry.state is receipt.state:
            return receipt.deaths > entry.deaths
        if entry.state is State.REPLAYED and receipt.state is State.DEAD and entry not in self._window:
            return False  # the answer to an older question or delivery: it must not undo the replay
        return receipts.outranks(receipt, entry.last)
