"""The dispatcher: pending lines of a journal go to the broker, receipts come back, settled lines leave.

    ┌─────────┐ fresh, one per message ┌───────────┐ receipt: stored, forgotten, dead
    │ journal │ ─────────────────────▶ │ in flight │ ─────────────────────────────────▶ terminal, compacted later
    │ (index) │ backlog, in chunks     │ (window)  │ receipt: deferred
    └─────────┘ ─────────────────────▶ └───────────┘ ───▶ waits delayS and a growing, jittered interval ─▶ again
         ▲                                   │
         └──── no receipt: see producer.window (published again as unsure)

Guarantees, each with a test of its name:

- a line is marked `sent` in the journal before it is published: a drainer that dies in between leaves an unsure line,
  never a published one that looks fresh. A full disk does not stop publishing
- receipts are verified, journaled and only then acted upon; when the disk refuses them they still count, in memory
- at start receipts are read first; then every line with a `sent` and no terminal receipt is published as unsure
- a line that comes back deferred to the drainer that published it is sure again; after a failed publish it is unsure
- lines noticed within the last ten seconds are fresh; all others go in chunks on the backlog's queue, sure and unsure
  apart; what was deferred, or killed its process, goes singly. Only what was `held` goes in chunks again: the store was
  away and nothing was sent, so no member of a chunk can have been the reason, and none can hold up the others
- the broker being away costs one message per attempt, at growing jittered intervals
- workers are asked about dead lines at the start and every day (see producer.checks): these are neither marked nor in
  flight, and only `forgotten` changes anything
- only the drainer compacts; a deputy (see producer.drainer) publishes
- memory: about half a kilobyte per pending line, no texts

One daemon thread; nothing here runs on a host's thread. Publishing and receipts are passed in, this module knows
neither kombu nor redis.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from producer import drainer, errors, message
from producer import receipt as receipts
from producer.checks import Checks
from producer.drainer import Role
from producer.journal import Journal, compaction, quarantine
from producer.journal import line as lines
from producer.journal.index import Entry, Index
from producer.receipt import Receipt, State
from producer.waiting import Waiting
from producer.window import Window

__all__ = ["Dispatcher", "DispatcherStatus", "Publication", "Publisher", "ReceiptSource"]

_MESSAGES_PER_ROUND = 200
_CHUNK_MAX_BYTES = 1 << 20
_BACKLOG_LINES_PER_ROUND = 10 * message.CHUNK_LINES
_RECEIPTS_AT_ONCE = 1000
_RECEIPTS_IDLE_S = 5.0
_QUEUE_ASKED_EVERY_S = 10.0
_MAINTAIN_EVERY_S = 5.0
_MARK_AGAIN_S = 60.0
_BACK_OFF_S, _BACK_OFF_MAX_S = 0.5, 30.0
_DEFER_S, _DEFER_MAX_S = 5.0, 300.0
_HELD_STEP_S = 5.0

_log = logging.getLogger(__name__)
_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


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


class ReceiptSource(Protocol):
    def pop(self, journal_id: str, max_entries: int) -> list[bytes]:
        """Take signed receipts off this journal's list, the oldest first. Raises `errors.RedisUnavailable`."""

    def queue_length(self) -> int:
        """Messages waiting in both queues. Raises `errors.RedisUnavailable` or `errors.BrokerUnavailable`."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatcherStatus:
    """Counts since this dispatcher began. A second old at most while its thread runs."""

    role: str
    pending: int = 0
    in_flight: int = 0
    in_flight_bytes: int = 0
    deferred: int = 0
    dead: int = 0
    oldest_pending_s: float = 0.0
    published: int = 0
    republished: int = 0
    receipts: Mapping[str, int]  # by state
    receipts_refused: int = 0  # not signed by our key, or not a receipt
    receipts_unjournaled: int = 0
    unmarked: int = 0  # published although the journal had no room for their `sent`
    broker_failures: int = 0
    redis_failures: int = 0
    failed_rounds: int = 0
    damaged: int = 0
    checked: int = 0  # questions about dead lines
    unreadable: int = 0  # pending lines whose bytes were gone or damaged when they were to be published
    segments_removed: int = 0
    journal_bytes: int = 0
    last_stored_s: float | None = None  # how long ago a line was stored


class _Line:
    """What the dispatcher knows of a line beside its entry; only of lines that were published or deferred."""

    __slots__ = ("deferrals", "marked_s", "publishes", "unsure")

    def __init__(self) -> None:
        self.publishes = 0
        self.unsure = False
        self.deferrals = 0
        self.marked_s: float | None = None  # `sent` was written for a publish that then failed


class _Flush:
    __slots__ = ("done", "target")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.target: int | None = None


class Dispatcher:
    """Drain a journal. `start` and `close` it, or call `run_once`; publisher and receipt source are closed with it.

    A forked child does not dispatch: its captures are dispatched by whoever drains the directory, or after its own
    `start`.
    """

    def __init__(
        self,
        journal: Journal,
        publisher: Publisher,
        receipt_source: ReceiptSource,
        *,
        key: message.Key,
        in_flight_events: int = 1000,
        in_flight_bytes: int = 8 << 20,
        republish_after_s: float = 300.0,
        poll_interval_s: float = 0.1,
        monotonic: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.journal = journal
        self._publisher = publisher
        self._source = receipt_source
        self._key = key
        self._in_flight_events = in_flight_events
        self._in_flight_bytes = in_flight_bytes
        self._republish_after_s = republish_after_s
        self._poll_interval_s = poll_interval_s
        self._monotonic = monotonic
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._lock = drainer.DrainerLock(journal.fs, journal.directory)
        self._counts: Counter[str] = Counter()
        self._by_state: Counter[str] = Counter()
        self._stored_at_s: float | None = None
        self._start_fresh()
        journal.add_listener(self._wake_up)
        _dispatchers.add(self)

    def _start_fresh(self) -> None:
        """The state that a forked child may not share with its parent."""
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failed_rounds_in_a_row = 0
        self._flushes: list[_Flush] = []
        self._role = Role.NONE
        self._broker_failures_in_a_row = 0
        self._redis_failures_in_a_row = 0
        self._broker_back_at_s = 0.0
        self._redis_back_at_s = 0.0
        self._forget()
        self._status = DispatcherStatus(role=Role.NONE.value, receipts={})

    def _forget(self) -> None:
        """Know nothing of any line: the next poll reads the journal from its start."""
        self._index = Index(self.journal, monotonic=self._monotonic, on_damage=self._quarantine)
        self._window = Window(
            max_events=self._in_flight_events,
            max_bytes=self._in_flight_bytes,
            republish_after_s=self._republish_after_s,
        )
        self._has_looked = False
        self._is_starting = True
        self._waiting = Waiting()
        self._lines: dict[Entry, _Line] = {}
        self._dead: set[Entry] = set()
        self._checks = Checks()
        self._receipts_at_s = 0.0
        self._queue_asked_s: float | None = None
        self._queue_was_empty = False
        self._maintained_s = float("-inf")
        self._reported_s = float("-inf")

    # Life

    def start(self) -> None:
        """Run the thread. Nothing happens when it runs. Raises `RuntimeError` when the machine has none left: call it
        again."""
        with self._guard:
            if self._thread is None and not self._stop.is_set():
                thread = threading.Thread(target=self._run, name="memory-dispatcher", daemon=True)
                thread.start()
                self._thread = thread

    def close(self, deadline_s: float = 5.0) -> bool:
        """Stop; whether the thread ended in time. What is not settled stays in the journal and is dispatched later."""
        with self._guard:
            self._stop.set()
            thread = self._thread
        self._wake.set()
        if thread is None:
            self._clean_up()
            return True
        thread.join(deadline_s)
        return not thread.is_alive()

    def flush(self, deadline_s: float) -> bool:
        """Whether everything captured so far got a terminal receipt in time. Starts the thread when it does not run."""
        flush = _Flush()
        with self._guard:
            self._flushes.append(flush)
        self.start()
        self._wake.set()
        try:
            return flush.done.wait(deadline_s)
        finally:
            with self._guard:
                if flush in self._flushes:
                    self._flushes.remove(flush)

    def status(self) -> DispatcherStatus:
        """Counts as of now, or of the last second while a round is waiting for the broker."""
        if self._turn.acquire(timeout=0.1):
            try:
                self._report(self._monotonic())
            finally:
                self._turn.release()
        return self._status

    def _wake_up(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._failed_rounds_in_a_row:
                    self._stop.wait(self._back_off(self._failed_rounds_in_a_row))
                if not self._run_guarded() and not self._stop.is_set():
                    self._wake.wait(self._poll_interval_s)
                self._wake.clear()
        finally:
            self._clean_up()

    def _run_guarded(self) -> bool:
        try:
            busy = self.run_once()
            self._failed_rounds_in_a_row = 0
            return busy
        except Exception as problem:  # noqa: BLE001
            # The edge of this thread. What the round knew is not to be trusted: the journal is read again.
            self._note_bug(problem)
            self._failed_rounds_in_a_row += 1
            with self._turn:
                self._forget()
            return False

    def _note_bug(self, problem: Exception) -> None:
        self._counts["failed_rounds"] += 1
        _log.error(
            "a dispatch round failed (%s); lines stay in the journal and are tried again",
            type(problem).__name__,
            extra={"action": "dispatch_round_failed"},
        )

    def _clean_up(self) -> None:
        self.journal.remove_listener(self._wake_up)
        self._lock.drop()
        self._publisher.close()
        self._source.close()

    # A round

    def run_once(self) -> bool:
        """One round: follow the journal, take receipts, publish, now and then compact. Whether another one pays now."""
        with self._turn:
            now_s = self._monotonic()
            with self._guard:
                flushes = list(self._flushes)  # asked for before this round reads the journal
            role = self._lock.role(now_s)
            if role is not self._role:
                if Role.NONE in (role, self._role):
                    self._forget()
                self._role = role
            busy = False
            if role is Role.NONE:
                if flushes:
                    self._follow(now_s)
            else:
                self._follow(now_s)
                busy = self._take_receipts(now_s)
                # At the start all receipts that wait come first: what they settle need not be published again.
                self._is_starting = self._is_starting and busy
                if not self._is_starting:
                    busy |= self._publish(now_s)
                if role is Role.DRAINER:
                    if not self._is_starting:
                        self._ask_about_dead(now_s)
                    self._maintain(now_s)
            self._answer(flushes)
            if role is Role.NONE and self._has_looked and not self._flushes:
                self._forget()  # another process drains: nothing need be known here
            if now_s - self._reported_s >= 1.0:
                self._report(now_s)
            return busy

    def _follow(self, now_s: float) -> None:
        """Read what is new in the journal. What a drainer finds at its first look is backlog."""
        self._index.poll()
        changes = self._index.take_changes()
        fresh, self._has_looked = self._has_looked, True
        for entry in changes.appeared:
            self._note(entry, now_s, fresh=fresh)
        new = set(changes.appeared)
        for entry in changes.receipted:
            if entry not in new:
                self._on_receipt(entry, now_s)
        for entry in changes.vanished:
            self._window.remove(entry, receipted=False)
            self._waiting.remove(entry)
            self._lines.pop(entry, None)
            self._dead.discard(entry)

    def _note(self, entry: Entry, now_s: float, *, fresh: bool) -> None:
        """Queue a line that was not here before."""
        if not entry.is_open:
            if entry.state is State.DEAD:
                self._dead.add(entry)
            return
        if not entry.sent_ms and entry.state is None:
            if fresh:
                self._waiting.add_fresh(entry, now_s)
            else:
                self._waiting.add(entry)
            return
        self._line(entry).unsure = True
        if entry.last is not None and entry.state is State.DEFERRED:
            left_s = entry.last.delay_s - max(0.0, (self.journal.now_ms() - entry.last_ms) / 1000)
            self._wait_deferred(entry, now_s + max(0.0, left_s))
        else:
            self._waiting.add(entry)

    def _line(self, entry: Entry) -> _Line:
        found = self._lines.get(entry)
        if found is None:
            found = self._lines[entry] = _Line()
        return found

    # Receipts

    def _take_receipts(self, now_s: float) -> bool:
        """Read receipts in bulk, journal them, act. Whether there are more."""
        idle = not self._window and not self._flushes
        if now_s < self._redis_back_at_s or (idle and now_s < self._receipts_at_s):
            return False
        self._receipts_at_s = now_s + _RECEIPTS_IDLE_S
        try:
            entries = self._source.pop(self.journal.journal_id, _RECEIPTS_AT_ONCE)
        except errors.RedisUnavailable as problem:
            self._redis_failures_in_a_row += 1
            self._counts["redis_failures"] += 1
            self._redis_back_at_s = now_s + self._back_off(self._redis_failures_in_a_row)
            if self._redis_failures_in_a_row == 1:
                _log.warning(
                    "receipts cannot be read (%s); lines stay in the journal until they can",
                    problem,
                    extra={"action": "receipts_unavailable"},
                )
            return False
        self._redis_failures_in_a_row = 0
        if entries:
            self._journal_receipts(self._decoded(entries))
            self._follow(now_s)
        return len(entries) == _RECEIPTS_AT_ONCE

    def _decoded(self, entries: Iterable[bytes]) -> list[Receipt]:
        found = []
        for entry in entries:
            try:
                receipt = receipts.decode(entry, journal_id=self.journal.journal_id, secret_of=self._secret_of)
                bytes.fromhex(receipt.line_hash)
            except (errors.SignatureRefused, errors.DamagedLine, ValueError):
                self._counts["receipts_refused"] += 1
                continue
            if receipt.state in (State.REPLAYED, State.DISCARDED):
                self._counts["receipts_refused"] += 1  # an operator's words, not a worker's
                continue
            found.append(receipt)
        return found

    def _secret_of(self, key_id: str) -> bytes | None:
        return self._key.secret if key_id == self._key.id else None

    def _journal_receipts(self, found: Sequence[Receipt]) -> None:
        telling = [receipt for receipt in found if self._tells_something(receipt)]
        for receipt in telling:
            self._by_state[receipt.state.value] += 1
            if receipt.state is State.STORED:
                self._stored_at_s = self._monotonic()
        try:
            self.journal.append_receipts(telling)
        except (errors.JournalFull, errors.JournalFailed, errors.SyncUnknown):
            # Without them on disk a restart delivers again, which is harmless; waiting for them would never heal a disk
            # that only compaction can empty.
            self._counts["receipts_unjournaled"] += len(telling)
            for receipt in telling:
                self._index.settle(receipt)

    def _tells_something(self, receipt: Receipt) -> bool:
        """Whether it is of a line that is here, and says what the journal does not know."""
        entry = self._index.entries.get(bytes.fromhex(receipt.line_hash))
        if entry is None or not entry.copies:
            return False
        if entry.last is not None and entry.is_terminal and entry.state is receipt.state:
            return receipt.deaths > entry.deaths
        if entry.state is State.REPLAYED and receipt.state is State.DEAD and entry not in self._window:
            return False  # the answer to an older question or delivery: it must not undo the replay
        return receipts.outranks(receipt, entry.last)

    def _on_receipt(self, entry: Entry, now_s: float) -> None:
        """The receipt that holds for this line changed."""
        if entry.state is not State.DEAD:
            self._dead.discard(entry)
        if not entry.copies:
            return
        is_replay = entry.state is State.REPLAYED
        was_in_flight = self._window.remove(entry, receipted=not is_replay)
        if entry.is_terminal:
            self._lines.pop(entry, None)
            self._waiting.remove(entry)
            if entry.state is State.DEAD:
                self._dead.add(entry)
            return
        line = self._line(entry)
        if is_replay or entry.last is None:
            line.unsure, line.deferrals = True, 0
            self._waiting.put_off(entry, now_s)
        else:
            line.unsure = line.unsure and not was_in_flight
            line.deferrals += 1
            interval_s = self._growing(line.deferrals, _DEFER_S, _DEFER_MAX_S)
            self._wait_deferred(entry, now_s + max(entry.last.delay_s, interval_s))

    def _wait_deferred(self, entry: Entry, until_s: float) -> None:
        """Until then; held lines a little longer, so that many come back at the same moment and fill chunks."""
        is_held = entry.last is not None and entry.last.is_held and not entry.deaths
        if is_held:
            until_s = math.ceil(until_s / _HELD_STEP_S) * _HELD_STEP_S
        self._waiting.put_off(entry, until_s, alone=not is_held)

    def _growing(self, times: int, first_s: float, most_s: float) -> float:
        return min(most_s, first_s * 2.0 ** min(times - 1, 16)) * self._rng.uniform(0.5, 1.0)

    def _back_off(self, times: int) -> float:
        return self._growing(times, _BACK_OFF_S, _BACK_OFF_MAX_S)

    # Publishing

    def _publish(self, now_s: float) -> bool:
        """Publish what may be published now. Whether there may be more."""
        if now_s < self._broker_back_at_s:
            return False
        picks = [self._pick_fresh, self._pick_due, self._pick_again, self._pick_backlog]
        limit = _MESSAGES_PER_ROUND
        if self._broker_failures_in_a_row:
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

    def _fits_fresh(self, events: int, length: int) -> bool:
        return self._window.has_room(events, length, fresh=True)

    def _fits_old(self, events: int, length: int) -> bool:
        return self._window.has_room(events, length, fresh=False)

    def _pick_fresh(self, now_s: float, limit: int) -> list[list[Entry]]:
        return [[entry] for entry in self._waiting.take_fresh(now_s, self._fits_fresh, limit)]

    def _pick_due(self, now_s: float, limit: int) -> list[list[Entry]]:
        """What was deferred or replayed, each by itself."""
        return [[entry] for entry in self._waiting.take_due(now_s, self._fits_old, limit)]

    def _pick_again(self, now_s: float, limit: int) -> list[list[Entry]]:
        """Lines in flight that are to be published again; they have their room already."""
        due = self._window.due_again(now_s, queue_is_empty=lambda: self._queue_is_empty(now_s), limit=limit)
        for entry in due:
            self._line(entry).unsure = True
        return self._chunks(due)

    def _pick_backlog(self, now_s: float, limit: int) -> list[list[Entry]]:
        lines_ = limit if limit == 1 else _BACKLOG_LINES_PER_ROUND
        return self._chunks(self._waiting.take_backlog(now_s, self._fits_old, lines_))

    def _chunks(self, picked: Sequence[Entry]) -> list[list[Entry]]:
        """Sure and unsure lines apart; what killed a process by itself."""
        chunks: list[list[Entry]] = []
        for unsure in (False, True):
            current: list[Entry] = []
            length = 0
            for entry in picked:
                if self._is_unsure(entry) is not unsure:
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

    def _is_unsure(self, entry: Entry) -> bool:
        line = self._lines.get(entry)
        return line is not None and line.unsure

    def _queue_is_empty(self, now_s: float) -> bool:
        if self._queue_asked_s is None or now_s - self._queue_asked_s >= _QUEUE_ASKED_EVERY_S:
            self._queue_asked_s = now_s
            try:
                self._queue_was_empty = self._source.queue_length() == 0
            except (errors.RedisUnavailable, errors.BrokerUnavailable):
                self._queue_was_empty = False
        return self._queue_was_empty

    def _send_guarded(self, chunks: Sequence[Sequence[Entry]], now_s: float) -> bool:
        try:
            return self._send(chunks, now_s)
        except Exception as problem:  # noqa: BLE001
            # A bug, maybe one that a single line brings out: each goes by itself, and holds up nobody but itself.
            self._note_bug(problem)
            entries = [entry for chunk in chunks for entry in chunk]
            for entry in entries:
                self._line(entry).unsure = True
            if len(entries) == 1:
                if entries[0] not in self._window:
                    self._waiting.put_off(entries[0], now_s + _BACK_OFF_MAX_S)
                return True
            while entries:
                if not self._send_guarded([[entries.pop(0)]], now_s):
                    for entry in entries:
                        if entry not in self._window:
                            self._waiting.add(entry, first=True)
                    return False
            return True

    def _send(self, chunks: Sequence[Sequence[Entry]], now_s: float) -> bool:
        """Mark and publish; whether the broker took them."""
        publications, sent = [], []
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
                self._take_back(entry, now_s)
            return False
        self._counts["published"] += len(sent)
        for entry, _ in sent:
            known = self._line(entry)
            known.publishes += 1
            known.marked_s = None
            self._counts["republished"] += entry in self._window
            self._window.add(entry, now_s, only_once=known.publishes == 1 and not known.unsure)
        return True

    def _hand_over(self, publications: Sequence[Publication], now_s: float) -> bool:
        """Whether the broker took them."""
        try:
            self._publisher.publish(publications)
        except errors.BrokerUnavailable as problem:
            self._broker_failures_in_a_row += 1
            self._counts["broker_failures"] += 1
            self._broker_back_at_s = now_s + self._back_off(self._broker_failures_in_a_row)
            if self._broker_failures_in_a_row == 1:
                _log.warning(
                    "the broker is away (%s); lines wait in the journal and are published when it is back",
                    problem,
                    extra={"action": "broker_unavailable"},
                )
            return False
        self._broker_failures_in_a_row = 0
        return True

    def _ask_about_dead(self, now_s: float) -> None:
        """Publish one message of questions, when it is time and the broker is there."""
        if now_s < self._broker_back_at_s or self._broker_failures_in_a_row:
            return
        taken = self._checks.take(self._dead, now_s, max_lines=message.CHUNK_LINES, max_bytes=_CHUNK_MAX_BYTES)
        items = [
            message.Item(
                line=line.text,
                journal_id=self.journal.journal_id,
                deaths=entry.deaths,
                check=True,
                reason=entry.last.reason if entry.last is not None else "",
            )
            for entry in taken
            if (line := self._read_dead(entry)) is not None
        ]
        if not items:
            return
        if self._hand_over([self._chunk_of(items)], now_s):
            self._counts["checked"] += len(items)
        else:
            self._checks.put_back(taken)

    def _read_dead(self, entry: Entry) -> lines.Line | None:
        try:
            return self._index.read_line(entry)
        except (errors.DamagedLine, OSError):
            return None  # it is asked about tomorrow, or lost when somebody replays it

    def _chunk_of(self, items: Sequence[message.Item]) -> Publication:
        kwargs = message.arguments(items)
        return Publication(
            task_id=f"chunk-{uuid.uuid4()}",
            queue=message.BACKLOG_QUEUE,
            kwargs=kwargs,
            headers=message.sign(kwargs, self._key),
            count=len(items),
        )

    def _read(self, entry: Entry, now_s: float) -> lines.Line | None:
        """The line of an entry; None when the disk does not give it now (it waits) or any more (it is lost)."""
        try:
            return self._index.read_line(entry)
        except errors.DamagedLine:
            self._counts["unreadable"] += 1
            self._index.lose(entry)
        except OSError:
            if entry not in self._window:
                self._waiting.put_off(entry, now_s + _MAINTAIN_EVERY_S)
        return None

    def _publication(self, read: Sequence[tuple[Entry, lines.Line]]) -> Publication:
        items = [
            message.Item(
                line=line.text,
                journal_id=self.journal.journal_id,
                unsure=self._is_unsure(entry),
                deaths=entry.deaths,
            )
            for entry, line in read
        ]
        kwargs = message.arguments(items)
        entry, line = read[0]
        is_fresh = len(read) == 1 and entry not in self._lines
        return Publication(
            task_id=line.id if len(read) == 1 else f"chunk-{uuid.uuid4()}",
            queue=message.QUEUE if is_fresh else message.BACKLOG_QUEUE,
            kwargs=kwargs,
            headers=message.sign(kwargs, self._key),
            count=len(items),
        )

    def _mark_sent(self, sent: Sequence[tuple[Entry, lines.Line]], now_s: float) -> None:
        """Write `sent`, except where a publish that failed a moment ago did so."""
        unmarked = []
        for entry, line in sent:
            known = self._lines.get(entry)
            if known is None or known.marked_s is None or now_s - known.marked_s > _MARK_AGAIN_S:
                unmarked.append((entry, line))
                if known is not None:
                    known.marked_s = None
        try:
            self.journal.append_sent([line for _, line in unmarked])
        except (errors.JournalFull, errors.JournalFailed, errors.SyncUnknown):
            self._counts["unmarked"] += len(unmarked)
            for entry, _ in unmarked:  # it stays for five minutes all the same
                entry.sent_ms, entry.sent_s = self.journal.now_ms(), now_s

    def _take_back(self, entry: Entry, now_s: float) -> None:
        """The broker may or may not have this line."""
        line = self._line(entry)
        line.unsure = True
        if line.marked_s is None:
            line.marked_s = now_s
        if entry not in self._window:
            self._waiting.add(entry, first=True)

    # Housekeeping

    def _quarantine(self, data: bytes) -> None:
        if self._role is Role.DRAINER and not quarantine.keep(self.journal.fs, self.journal.directory, data):
            self._counts["not_quarantined"] += 1

    def _maintain(self, now_s: float) -> None:
        if now_s - self._maintained_s < _MAINTAIN_EVERY_S:
            return
        self._maintained_s = now_s
        compaction.heal_tails(self.journal, self._index)
        compaction.seal_finished(self.journal, self._index)
        done = compaction.compact(self.journal, self._index, now_s=now_s)
        self._counts["segments_removed"] += done.segments_removed
        compaction.sweep_drafts(self.journal)
        self.journal.budget.refill()

    def _answer(self, flushes: Iterable[_Flush]) -> None:
        for flush in flushes:
            if flush.target is None:
                flush.target = self._index.numbers
            if not any(entry.is_open and entry.number <= flush.target for entry in self._index.entries.values()):
                flush.done.set()

    def _report(self, now_s: float) -> None:
        self._reported_s = now_s
        pending = [entry.appended_ms for entry in (*self._waiting, *self._window)]
        counts = self._counts
        self._status = DispatcherStatus(
            role=self._role.value,
            pending=len(pending),
            in_flight=len(self._window),
            in_flight_bytes=self._window.bytes,
            deferred=sum(entry.state is State.DEFERRED for entry in self._waiting),
            dead=len(self._dead),
            oldest_pending_s=max(0.0, (self.journal.now_ms() - min(pending)) / 1000) if pending else 0.0,
            published=counts["published"],
            republished=counts["republished"],
            receipts=dict(self._by_state),
            receipts_refused=counts["receipts_refused"],
            receipts_unjournaled=counts["receipts_unjournaled"],
            unmarked=counts["unmarked"],
            broker_failures=counts["broker_failures"],
            redis_failures=counts["redis_failures"],
            failed_rounds=counts["failed_rounds"],
            checked=counts["checked"],
            damaged=self._index.damaged,
            unreadable=counts["unreadable"],
            segments_removed=counts["segments_removed"],
            journal_bytes=sum(view.size for view in self._index.views.values()),
            last_stored_s=None if self._stored_at_s is None else now_s - self._stored_at_s,
        )

    def _after_fork_in_child(self) -> None:
        self._start_fresh()


def _after_fork_in_child() -> None:
    for dispatcher in list(_dispatchers):
        dispatcher._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
