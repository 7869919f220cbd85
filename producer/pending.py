"""The lines of a journal that have no terminal receipt: which wait, which are in flight, what is known of each.

    appeared ──▶ waiting ──published──▶ in flight ──receipt: stored, forgotten, dead──▶ gone from here
                    ▲                       │
                    ├──── taken back ───────┤   the broker may or may not have it: unsure
                    └──── deferred ─────────┘   waits delayS and a growing, jittered interval

- what a drainer finds at its first look is backlog, and unsure where it was sent before
- a line that comes back deferred to the drainer that published it is sure again: time enough has passed. Not one that
  hung a worker's child: unsure from then on, it goes to a child every time
- what was deferred waits to go singly, also when the next drainer finds it. Members of a chunk share its requests, so
  one that the store fails on could hold up the others for ever. Only what was `held` goes in chunks again: the store
  was away, nothing was sent, and no line can have been the reason
- dead lines are remembered for questions about them (producer.checks)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from producer.backoff import growing_s
from producer.journal.index import Entry
from producer.receipt import State
from producer.waiting import Waiting
from producer.window import Window

__all__ = ["Known", "Pending"]

_DEFER_S, _DEFER_MAX_S = 5.0, 300.0
_HELD_STEP_S = 5.0


class Known:
    """What is known of a line beside its entry; only of lines that were published or deferred."""

    __slots__ = ("deferrals", "hung", "marked_s", "publishes", "unsure")

    def __init__(self) -> None:
        self.publishes = 0
        self.unsure = False
        self.hung = False  # a worker's child, once: unsure from then on
        self.deferrals = 0
        self.marked_s: float | None = None  # `sent` was written for a publish that then failed


class Pending:
    def __init__(self, window: Window, *, now_ms: Callable[[], int], rng: random.Random) -> None:
        self.window = window
        self.waiting = Waiting()
        self.dead: set[Entry] = set()
        self._known: dict[Entry, Known] = {}
        self._now_ms = now_ms
        self._rng = rng

    def known(self, entry: Entry) -> Known:
        """What is known of it from now on."""
        found = self._known.get(entry)
        if found is None:
            found = self._known[entry] = Known()
        return found

    def is_untouched(self, entry: Entry) -> bool:
        """Whether it was never published or deferred."""
        return entry not in self._known

    def is_unsure(self, entry: Entry) -> bool:
        found = self._known.get(entry)
        return found is not None and found.unsure

    # What the journal says

    def appeared(self, entry: Entry, now_s: float, *, fresh: bool) -> None:
        """Queue a line that was not here before."""
        if not entry.is_open:
            if entry.state is State.DEAD:
                self.dead.add(entry)
            return
        if not entry.sent_ms and entry.state is None:
            if fresh:
                self.waiting.add_fresh(entry, now_s)
            else:
                self.waiting.add(entry)
            return
        line = self.known(entry)
        line.unsure = True
        line.hung = entry.last is not None and entry.last.is_hung
        if entry.last is not None and entry.state is State.DEFERRED:
            left_s = entry.last.delay_s - max(0.0, (self._now_ms() - entry.last_ms) / 1000)
            self._wait_deferred(entry, now_s + max(0.0, left_s))
        else:
            self.waiting.add(entry)

    def is_in_flight(self, entry: Entry, published_s: float) -> None:
        """The broker has got a line that was not here before: it was published then. It comes again by the window's
        rules, and is unsure."""
        self.known(entry).unsure = True
        self.window.add(entry, published_s, only_once=False)

    def receipted(self, entry: Entry, now_s: float) -> None:
        """The receipt that holds for this line changed."""
        if entry.state is not State.DEAD:
            self.dead.discard(entry)
        if not entry.copies:
            return
        is_replay = entry.state is State.REPLAYED
        was_in_flight = self.window.remove(entry, receipted=not is_replay)
        if entry.is_terminal:
            self._known.pop(entry, None)
            self.waiting.remove(entry)
            if entry.state is State.DEAD:
                self.dead.add(entry)
            return
        line = self.known(entry)
        if is_replay or entry.last is None:
            line.unsure, line.deferrals = True, 0
            self.waiting.put_off(entry, now_s)
        else:
            line.hung = line.hung or entry.last.is_hung
            line.unsure = line.hung or (line.unsure and not was_in_flight)
            line.deferrals += 1
            interval_s = growing_s(line.deferrals, _DEFER_S, _DEFER_MAX_S, self._rng)
            self._wait_deferred(entry, now_s + max(entry.last.delay_s, interval_s))

    def vanished(self, entry: Entry) -> None:
        """It stands nowhere any more."""
        self.window.remove(entry, receipted=False)
        self.waiting.remove(entry)
        self._known.pop(entry, None)
        self.dead.discard(entry)

    def _wait_deferred(self, entry: Entry, until_s: float) -> None:
        """Until then; held lines a little longer, so that many come back at the same moment and fill chunks."""
        is_held = entry.last is not None and entry.last.is_held and not entry.deaths
        if is_held:
            until_s = math.ceil(until_s / _HELD_STEP_S) * _HELD_STEP_S
        self.waiting.put_off(entry, until_s, alone=not is_held)

    # What the broker says

    def published(self, entry: Entry, now_s: float) -> bool:
        """The broker has it; whether it had it before."""
        line = self.known(entry)
        line.publishes += 1
        line.marked_s = None
        is_again = entry in self.window
        self.window.add(entry, now_s, only_once=line.publishes == 1 and not line.unsure)
        return is_again

    def take_back(self, entry: Entry, now_s: float) -> None:
        """The broker may or may not have it: it is the next one, and unsure."""
        line = self.known(entry)
        line.unsure = True
        if line.marked_s is None:
            line.marked_s = now_s
        self.wait_first(entry)

    def wait_first(self, entry: Entry) -> None:
        """Before all other backlog, unless it is in flight."""
        if entry not in self.window:
            self.waiting.add(entry, first=True)

    def put_off(self, entry: Entry, until_s: float) -> None:
        """It cannot be published before then. One that was in flight, and due again, leaves the window: else it would
        be due in every round."""
        self.window.remove(entry, receipted=False)
        self.waiting.put_off(entry, until_s)
