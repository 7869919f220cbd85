"""The dispatcher: pending lines of a journal go to the broker, receipts come back, settled lines leave.

    ┌─────────┐ fresh, one per message ┌───────────┐ receipt: stored, forgotten, dead
    │ journal │ ─────────────────────▶ │ in flight │ ─────────────────────────────────▶ terminal, compacted later
    │ (index) │ backlog, in chunks     │ (window)  │ receipt: deferred
    └─────────┘ ─────────────────────▶ └───────────┘ ───▶ waits delayS and a growing, jittered interval ─▶ again
         ▲                                   │
         └──── no receipt: see producer.window (published again as unsure)

Its parts, each with its guarantees:

    producer.drainer          who drains a directory: the drainer, or a deputy, which publishes and never compacts
    producer.pending          which lines wait, which are in flight, what is known of them (waiting, window)
    producer.publishing       lines become messages
    producer.receipt_intake   receipts become lines of the journal
    producer.checks           when to ask about dead lines
    producer.forgotten_lines  what a settled order to forget means for the lines that are here

What stands here: the thread, the order of a round, roles, `flush`, compaction and the status. Guarantees, each with a
test of its name:

- at start receipts are read first (as many as a list can hold); then every line with a `sent` and no terminal receipt
  is published as unsure
- only the drainer compacts and asks about dead lines
- a drainer whose broker or Redis does not answer for a minute stands aside for a moment, later after two, four and
  every five minutes: another process may reach it. What was in flight still is when it comes back
- a round that failed loses nothing: the journal is read again from its start. What was in flight still is, so rounds
  that go on failing publish nothing again and again
- memory: about half a kilobyte per pending line, no texts

One daemon thread; nothing here runs on a host's thread. Publishing and receipts are passed in, this module knows
neither kombu nor redis.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from producer import drainer, message, receipt_intake
from producer.backoff import BackOff
from producer.drainer import Role
from producer.forgotten_lines import ForgottenLines
from producer.journal import Journal, compaction, quarantine
from producer.journal.index import Entry, Index
from producer.pending import Pending
from producer.publishing import Publication, Publisher, Publishing, note_bug
from producer.receipt import MAX_LISTED, State
from producer.receipt_intake import ReceiptIntake, ReceiptSource
from producer.tally import DispatcherStatus, Tally
from producer.window import Window

__all__ = ["Dispatcher", "DispatcherStatus", "Publication", "Publisher", "ReceiptSource"]

_MAINTAIN_EVERY_S = 5.0
_REPORT_EVERY_S = 1.0
_DEAF_AFTER_S = 60.0
_DEAF_AFTER_MOST_S = 300.0
_STARTING_ROUNDS = MAX_LISTED // receipt_intake.AT_ONCE

_log = logging.getLogger(__name__)

_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


class _Flush:
    __slots__ = ("awaited", "done")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.awaited: set[bytes] | None = None  # line hashes: they outlive what a dispatcher knows of its journal


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
        self._tally = Tally.new()
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
        self._flushes: list[_Flush] = []
        self._role = Role.NONE
        self._role_since_s = 0.0
        self._deaf_after_s = _DEAF_AFTER_S
        self._is_aside = False
        self._flights_before: dict[bytes, float] = {}
        self._rounds = BackOff(self._rng)
        self._broker = BackOff(self._rng)
        self._redis = BackOff(self._rng)
        self._forget()
        self._status = DispatcherStatus(role=Role.NONE.value, receipts={})

    def _forget(self) -> None:
        """Know nothing of any line: the next poll reads the journal from its start."""
        self._index = Index(self.journal, monotonic=self._monotonic, on_damage=self._quarantine)
        window = Window(
            max_events=self._in_flight_events,
            max_bytes=self._in_flight_bytes,
            republish_after_s=self._republish_after_s,
        )
        self._pending = Pending(window, now_ms=self.journal.now_ms, rng=self._rng)
        self._publishing = Publishing(
            self.journal,
            self._index,
            self._pending,
            self._publisher,
            queue_length=self._source.queue_length,
            key=self._key,
            tally=self._tally,
            back_off=self._broker,
        )
        self._intake = ReceiptIntake(
            self.journal,
            self._index,
            window,
            self._source,
            key=self._key,
            tally=self._tally,
            back_off=self._redis,
            monotonic=self._monotonic,
        )
        self._forgotten = ForgottenLines(self.journal, self._index)
        self._has_looked = False
        self._starting_rounds_left = _STARTING_ROUNDS
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
                if self._rounds.failures:
                    self._stop.wait(self._rounds.wait_s())
                if not self._run_guarded() and not self._stop.is_set():
                    self._wake.wait(self._poll_interval_s)
                self._wake.clear()
        finally:
            self._clean_up()

    def _run_guarded(self) -> bool:
        try:
            busy = self.run_once()
            self._rounds.succeed()
            return busy
        except Exception as problem:  # noqa: BLE001
            # The edge of this thread. What the round knew is not to be trusted: the journal is read again.
            note_bug(problem, self._tally)
            self._rounds.fail(self._monotonic())
            with self._turn:
                # When what is in flight was published is known all the same: rounds that go on failing would publish
                # it each time.
                self._flights_before |= self._pending.window.flights()
                self._forget()
            return False

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
            stands_aside = self._stand_aside_when_deaf(now_s)
            role = self._lock.role(now_s)
            if role is not self._role:
                if Role.NONE in (role, self._role):
                    if stands_aside:
                        self._flights_before |= self._pending.window.flights()
                    elif not self._is_aside:
                        self._flights_before = {}
                    self._is_aside = stands_aside
                    self._role_since_s = now_s
                    self._forget()
                self._role = role
            busy = False
            if role is Role.NONE:
                if flushes:
                    self._follow(now_s)
            else:
                self._follow(now_s)
                busy = self._take_receipts(now_s)
                # At the start all receipts that wait come first: what they settle need not be published again. No more
                # than a list may hold, so that whoever floods it keeps nothing from being published.
                self._starting_rounds_left = self._starting_rounds_left - 1 if busy else 0
                is_starting = self._starting_rounds_left > 0
                if not is_starting:
                    busy |= self._publishing.publish(now_s)
                if role is Role.DRAINER:
                    if self._forgotten.begin():
                        self._publishing.ask_about_all_dead()
                        self._maintained_s = float("-inf")
                    if not is_starting:
                        self._publishing.ask_about_dead(now_s)
                    self._maintain(now_s)
            self._answer(flushes)
            if role is Role.NONE and self._has_looked and not self._flushes:
                self._forget()  # another process drains: nothing need be known here
            if now_s - self._reported_s >= _REPORT_EVERY_S:
                self._report(now_s)
            return busy

    def _stand_aside_when_deaf(self, now_s: float) -> bool:
        """Give the role up when this process has long not reached what others may reach; whether it did."""
        failing = [service for service in (self._broker, self._redis) if service.failures]
        if not failing:
            self._deaf_after_s = _DEAF_AFTER_S
            return False
        since_s = max(self._role_since_s, min(service.since_s for service in failing))
        if self._role is Role.NONE or not (self._pending.waiting or self._pending.window):
            return False
        if now_s - since_s < self._deaf_after_s:
            return False
        self._deaf_after_s = min(2 * self._deaf_after_s, _DEAF_AFTER_MOST_S)
        self._lock.stand_aside(now_s)
        _log.warning(
            "broker or Redis have not answered this process for %d s; another one may drain the journal now",
            now_s - since_s,
            extra={"action": "drainer_stands_aside"},
        )
        return True

    def _follow(self, now_s: float) -> None:
        """Read what is new in the journal. What a drainer finds at its first look is backlog."""
        self._index.poll()
        changes = self._index.take_changes()
        fresh, self._has_looked = self._has_looked, True
        flights, self._flights_before = self._flights_before, {}
        for published_s, entry in _still_in_flight(changes.appeared, flights):
            self._pending.is_in_flight(entry, published_s)
        for entry in changes.appeared:
            if entry not in self._pending.window:
                self._pending.appeared(entry, now_s, fresh=fresh)
            self._forgotten.receipted(entry)
        new = set(changes.appeared)
        for entry in changes.receipted:
            if entry not in new:
                self._pending.receipted(entry, now_s)
                self._forgotten.receipted(entry)
        for entry in changes.vanished:
            self._pending.vanished(entry)

    def _take_receipts(self, now_s: float) -> bool:
        """Take receipts and act on them. Whether there are more."""
        is_awaited = bool(self._pending.window or self._flushes) or self._starting_rounds_left > 0
        taken = self._intake.take(now_s, is_awaited=is_awaited)
        if taken:
            self._follow(now_s)
        return taken == receipt_intake.AT_ONCE

    # Housekeeping

    def _quarantine(self, data: bytes) -> None:
        if self._role is Role.DRAINER and not quarantine.keep(self.journal.fs, self.journal.directory, data):
            self._tally.counted["not_quarantined"] += 1

    def _maintain(self, now_s: float) -> None:
        if now_s - self._maintained_s < _MAINTAIN_EVERY_S:
            return
        self._maintained_s = now_s
        self._forgotten.sweep()
        compaction.heal_tails(self.journal, self._index)
        compaction.seal_finished(self.journal, self._index)
        done = compaction.compact(self.journal, self._index, now_s=now_s)
        self._tally.counted["segments_removed"] += done.segments_removed
        compaction.sweep_drafts(self.journal)
        self.journal.budget.refill()

    def _answer(self, flushes: Sequence[_Flush]) -> None:
        if flushes and self._index.is_behind:
            return  # a line that the disk does not give may be waited for
        for flush in flushes:
            if flush.awaited is None:
                flush.awaited = {entry.hash for entry in self._index.open_entries()}
            flush.awaited = {hash_ for hash_ in flush.awaited if self._index.is_open(hash_)}
            if not flush.awaited:
                flush.done.set()

    def _report(self, now_s: float) -> None:
        if self._role is not Role.NONE and not self._has_looked:  # a round failed: of lines, what was known before
            counted: dict[str, Any] = dict(self._tally.counted)
            self._status = dataclasses.replace(self._status, **counted)
            return
        self._reported_s = now_s
        waiting, window = self._pending.waiting, self._pending.window
        appended_ms = [entry.appended_ms for entry in (*waiting, *window)]
        stored_at_s = self._tally.stored_at_s
        self._status = DispatcherStatus(
            role=self._role.value,
            pending=len(appended_ms),
            in_flight=len(window),
            in_flight_bytes=window.bytes,
            deferred=sum(entry.state is State.DEFERRED for entry in waiting),
            dead=len(self._pending.dead),
            oldest_pending_s=max(0.0, (self.journal.now_ms() - min(appended_ms)) / 1000) if appended_ms else 0.0,
            receipts=dict(self._tally.receipts),
            damaged=self._index.damaged,
            journal_bytes=sum(view.size for view in self._index.views.values()),
            last_stored_s=None if stored_at_s is None else now_s - stored_at_s,
            **self._tally.counted,
        )

    def _after_fork_in_child(self) -> None:
        self._start_fresh()


def _still_in_flight(appeared: Iterable[Entry], flights: Mapping[bytes, float]) -> list[tuple[float, Entry]]:
    """Which of these were published, and when, and got no word since; those published first at the front."""
    found = [
        (flights[entry.hash], entry)
        for entry in appeared
        if entry.hash in flights and entry.is_open and entry.sent_ms >= entry.last_ms
    ]
    return sorted(found, key=lambda one: one[0])


def _after_fork_in_child() -> None:
    for dispatcher in list(_dispatchers):
        dispatcher._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
