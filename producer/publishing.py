"""Publishing: lines that wait become signed messages.

Guarantees, each with a test of its name:

- a line is marked `sent` in the journal before it is published: a drainer that dies in between leaves an unsure line,
  never a published one that looks fresh. A full disk does not stop publishing
- after a failed publish a line is unsure
- lines noticed within the last ten seconds are fresh and go first, each by itself, under its own id; all others go in
  chunks on the backlog's queue, sure and unsure apart; what was deferred (producer.pending), or killed its process,
  goes singly
- the broker being away costs one message per attempt, at growing jittered intervals
- questions about dead lines (producer.checks) are neither marked nor in flight; one goes out when the queue is empty
- a bug that one line brings out holds up nobody but that line
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from producer import errors, message
from producer.backoff import BackOff
from producer.checks import Checks
from producer.journal import Journal
from producer.journal import line as lines
from producer.journal.index import Entry, Index
from producer.pending import Pending
from producer.tally import Tally

__all__ = ["Publication", "Publisher", "Publishing", "note_bug"]

_MESSAGES_PER_ROUND = 200
_CHUNK_MAX_BYTES = 1 << 20
_BACKLOG_LINES_PER_ROUND = 10 * message.CHUNK_LINES
_QUEUE_ASKED_EVERY_S = 10.0
_MARK_AGAIN_S = 60.0
_DISK_AGAIN_S = 5.0
_BUG_AGAIN_S = 30.0

_log = logging.getLogger(__name__)

Read = list[tuple[Entry, lines.Line]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """One message, signed and ready to send: Celery task `message.TASK_NAME` with these keyword arguments."""

    task_id: str
    queue: str
    kwargs: Mapping[str, Any]
    headers: Mapping[str, str]
    count: int  # lines in it, for the masks


class Publisher(Protocol):
    def publish(self, publications: Sequence[Publication]) -> None:
        """Send all of them. Raises `errors.BrokerUnavailable` when any may not have been sent; no retry inside."""

    def close(self) -> None: ...


def note_bug(problem: Exception, tally: Tally) -> None:
    """Count and log an error nobody foresaw, by its class."""
    tally.counted["failed_rounds"] += 1
    _log.error(
        "a dispatch round failed (%s); lines stay in the journal and are tried again",
        type(problem).__name__,
        extra={"action": "dispatch_round_failed"},
    )


class Publishing:
    """Publishes from one dispatcher's rounds; forgotten with what the dispatcher knows of its journal."""

    def __init__(
        self,
        journal: Journal,
        index: Index,
        pending: Pending,
        publisher: Publisher,
        *,
        queue_length: Callable[[], int],
        key: message.Key,
        tally: Tally,
        back_off: BackOff,
    ) -> None:
        """`queue_length` raises `errors.RedisUnavailable` or `errors.BrokerUnavailable`. `back_off` outlives this."""
        self._journal = journal
        self._index = index
        self._pending = pending
        self._publisher = publisher
        self._queue_length = queue_length
        self._key = key
        self._tally = tally
        self._back_off = back_off
        self._checks = Checks()
        self._queue_asked_s: float | None = None
        self._queue_was_empty = False

    def publish(self, now_s: float) -> bool:
        """Publish what may be published now. Whether there may be more."""
        if self._back_off.waits(now_s):
            return False
        picks = [self._pick_fresh, self._pick_due, self._pick_again, self._pick_backlog]
        limit = _MESSAGES_PER_ROUND
        if self._back_off.failures:
            picks.reverse()  # try with one line, one that was tried before: it is unsure already
            limit = 1
        busy = False
        for pick in picks:
            if picked := pick(now_s, limit):
                busy = True
                if not self._send_guarded(picked, now_s):
                    return False
                limit = _MESSAGES_PER_ROUND
        return busy

    def ask_about_dead(self, now_s: float) -> None:
        """Publish one message of questions, when it is time and the broker is there."""
        if self._back_off.waits(now_s) or self._back_off.failures or not self._checks.is_due(now_s):
            return
        if not self._queue_is_empty(now_s):
            return
        dead = self._pending.dead
        taken = self._checks.take(dead, now_s, max_lines=message.CHUNK_LINES, max_bytes=_CHUNK_MAX_BYTES)
        items = [
            message.Item(
                line=line.text,
                journal_id=self._journal.journal_id,
                deaths=entry.deaths,
                check=True,
                reason=entry.last.reason if entry.last is not None else "",
            )
            for entry in taken
            if (line := self._read_dead(entry)) is not None
        ]
        if not items:
            return
        if self._hand_over([self._message(items)], now_s):
            self._tally.counted["checked"] += len(items)
            self._queue_asked_s = None  # it is not empty now, and the next question waits until it is
        else:
            self._checks.put_back(taken)

    def ask_about_all_dead(self) -> None:
        """Ask about all of them again, from the next time on."""
        self._checks.start_over()

    # Picking

    def _fits_fresh(self, events: int, length: int) -> bool:
        return self._pending.window.has_room(events, length, fresh=True)

    def _fits_old(self, events: int, length: int) -> bool:
        return self._pending.window.has_room(events, length, fresh=False)

    def _pick_fresh(self, now_s: float, limit: int) -> list[list[Entry]]:
        return [[entry] for entry in self._pending.waiting.take_fresh(now_s, self._fits_fresh, limit)]

    def _pick_due(self, now_s: float, limit: int) -> list[list[Entry]]:
        """What was deferred or replayed, each by itself."""
        return [[entry] for entry in self._pending.waiting.take_due(now_s, self._fits_old, limit)]

    def _pick_again(self, now_s: float, limit: int) -> list[list[Entry]]:
        """Lines in flight that are to be published again; they have their room already."""
        queue_is_empty = lambda: self._queue_is_empty(now_s)  # noqa: E731
        due = self._pending.window.due_again(now_s, queue_is_empty=queue_is_empty, limit=limit)
        for entry in due:
            self._pending.known(entry).unsure = True
        return self._chunks(due)

    def _pick_backlog(self, now_s: float, limit: int) -> list[list[Entry]]:
        lines_ = limit if limit == 1 else _BACKLOG_LINES_PER_ROUND
        return self._chunks(self._pending.waiting.take_backlog(now_s, self._fits_old, lines_))

    def _chunks(self, picked: Sequence[Entry]) -> list[list[Entry]]:
        """Sure and unsure lines apart; what killed a process by itself."""
        chunks: list[list[Entry]] = []
        for unsure in (False, True):
            current: list[Entry] = []
            length = 0
            for entry in picked:
                if self._pending.is_unsure(entry) is not unsure:
                    continue
                if entry.deaths:
                    chunks.append([entry])
                    continue
                if current and (len(current) >= message.CHUNK_LINES or length + entry.length > _CHUNK_MAX_BYTES):
                    chunks.append(current)
                    current, length = [], 0
                current.append(entry)
                length += entry.length
            if current:
                chunks.append(current)
        return chunks

    def _queue_is_empty(self, now_s: float) -> bool:
        if self._queue_asked_s is None or now_s - self._queue_asked_s >= _QUEUE_ASKED_EVERY_S:
            self._queue_asked_s = now_s
            try:
                self._queue_was_empty = self._queue_length() == 0
            except (errors.RedisUnavailable, errors.BrokerUnavailable):
                self._queue_was_empty = False
        return self._queue_was_empty

    # Sending

    def _send_guarded(self, chunks: Sequence[Sequence[Entry]], now_s: float) -> bool:
        try:
            return self._send(chunks, now_s)
        except Exception as problem:  # noqa: BLE001
            # A bug, maybe one that a single line brings out: each goes by itself, and holds up nobody but itself.
            note_bug(problem, self._tally)
            entries = [entry for chunk in chunks for entry in chunk]
            for entry in entries:
                self._pending.known(entry).unsure = True
            if len(entries) == 1:
                self._pending.put_off(entries[0], now_s + _BUG_AGAIN_S)
                return True
            while entries:
                if not self._send_guarded([[entries.pop(0)]], now_s):
                    for entry in entries:
                        self._pending.wait_first(entry)
                    return False
            return True

    def _send(self, chunks: Sequence[Sequence[Entry]], now_s: float) -> bool:
        """Mark and publish; whether the broker took them."""
        publications: list[Publication] = []
        sent: Read = []
        for chunk in chunks:
            read = [(entry, line) for entry in chunk if (line := self._read(entry, now_s)) is not None]
            if read:
                sent += read
                publications.append(self._publication(read))
        if not publications:
            return True
        self._mark_sent(sent, now_s)
        if not self._hand_over(publications, now_s):
            for entry, _ in reversed(sent):
                self._pending.take_back(entry, now_s)
            return False
        self._tally.counted["published"] += len(sent)
        for entry, _ in sent:
            self._tally.counted["republished"] += self._pending.published(entry, now_s)
        return True

    def _hand_over(self, publications: Sequence[Publication], now_s: float) -> bool:
        """Whether the broker took them."""
        try:
            self._publisher.publish(publications)
        except errors.BrokerUnavailable as problem:
            self._tally.counted["broker_failures"] += 1
            if self._back_off.fail(now_s):
                _log.warning(
                    "the broker is away (%s); lines wait in the journal and are published when it is back",
                    problem,
                    extra={"action": "broker_unavailable"},
                )
            return False
        self._back_off.succeed()
        return True

    def _read(self, entry: Entry, now_s: float) -> lines.Line | None:
        """The line of an entry; None when the disk does not give it now (it waits) or any more (it is lost)."""
        try:
            return self._index.read_line(entry)
        except errors.DamagedLine:
            self._tally.counted["unreadable"] += 1
            self._index.lose(entry)
        except OSError:
            self._pending.put_off(entry, now_s + _DISK_AGAIN_S)
        return None

    def _read_dead(self, entry: Entry) -> lines.Line | None:
        try:
            return self._index.read_line(entry)
        except (errors.DamagedLine, OSError):
            return None  # it is asked about tomorrow, or lost when somebody replays it

    def _publication(self, read: Read) -> Publication:
        items = [
            message.Item(
                line=line.text,
                journal_id=self._journal.journal_id,
                unsure=self._pending.is_unsure(entry),
                deaths=entry.deaths,
            )
            for entry, line in read
        ]
        entry, line = read[0]
        if len(read) > 1:
            return self._message(items)
        is_fresh = self._pending.is_untouched(entry)
        return self._message(items, task_id=line.id, queue=message.QUEUE if is_fresh else message.BACKLOG_QUEUE)

    def _message(
        self, items: Sequence[message.Item], *, task_id: str | None = None, queue: str = message.BACKLOG_QUEUE
    ) -> Publication:
        kwargs = message.arguments(items)
        return Publication(
            task_id=task_id or f"chunk-{uuid.uuid4()}",
            queue=queue,
            kwargs=kwargs,
            headers=message.sign(kwargs, self._key),
            count=len(items),
        )

    def _mark_sent(self, sent: Read, now_s: float) -> None:
        """Write `sent`, except where a publish that failed a moment ago did so."""
        unmarked: Read = []
        for entry, line in sent:
            if not self._pending.is_untouched(entry):
                known = self._pending.known(entry)
                if known.marked_s is not None and now_s - known.marked_s <= _MARK_AGAIN_S:
                    continue
                known.marked_s = None
            unmarked.append((entry, line))
        try:
            self._journal.append_sent([line for _, line in unmarked])
        except (errors.JournalFull, errors.JournalFailed, errors.SyncUnknown):
            self._tally.counted["unmarked"] += len(unmarked)
            for entry, _ in unmarked:  # it stays for five minutes all the same
                entry.sent_ms, entry.sent_s = self._journal.now_ms(), now_s
