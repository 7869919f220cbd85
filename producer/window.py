"""The in-flight window: which lines of a journal are in the broker, and when one may be published again.

At most `max_events` lines and `max_bytes` of text at once, so that a long outage fills the journal's disk and not the
broker. Lines that are not fresh may use three quarters of it: a backlog never keeps a fresh event waiting.

A line without a receipt is published again when one of these holds, because a backlog must not grow itself:

- a message that was published `republish_after_s` later has got its receipt: ours was overtaken
- `republish_after_s` has passed and the broker says that the queue is empty: ours is not in it
- an hour has passed

Each time a line is published again it waits twice as long for the next time, up to that hour: where deliveries take
longer than `republish_after_s` (many hosts, a slow store), copies would otherwise be made faster than they are worked
off.

The receipt of a line that was published more than once proves nothing about when: it overtakes nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from producer.journal.index import Entry

__all__ = ["Window"]

REPUBLISH_ANYWAY_S = 3600.0
_SHARE_OF_OLD = 0.75


class _Flight(NamedTuple):
    published_s: float
    only_once: bool
    again: int = 0  # how often it was published again since it is in flight


class Window:
    """Lines in flight, the one published first at the front."""

    def __init__(self, *, max_events: int, max_bytes: int, republish_after_s: float) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.bytes = 0
        self._republish_after_s = republish_after_s
        self._flights: dict[Entry, _Flight] = {}
        self._overtaken_before_s = float("-inf")

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._flights)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._flights

    def flights(self) -> dict[bytes, float]:
        """When each was published, by the hash of its line."""
        return {entry.hash: flight.published_s for entry, flight in self._flights.items()}

    def has_room(self, events: int, length: int, *, fresh: bool) -> bool:
        """Whether so many more lines, of this length in all, may be published; when nothing is in flight one may."""
        share = 1.0 if fresh else _SHARE_OF_OLD
        if not self._flights and events <= 1:
            return True
        return len(self._flights) + events <= self.max_events * share and self.bytes + length <= self.max_bytes * share

    def add(self, entry: Entry, now_s: float, *, only_once: bool) -> None:
        """It was published now, maybe again."""
        before = self._flights.pop(entry, None)
        if before is None:
            self.bytes += entry.length
        self._flights[entry] = _Flight(now_s, only_once, 0 if before is None else before.again + 1)

    def remove(self, entry: Entry, *, receipted: bool) -> bool:
        """Whether it was in flight. `receipted`: a receipt came, which overtakes what was published long before it."""
        flight = self._flights.pop(entry, None)
        if flight is None:
            return False
        self.bytes -= entry.length
        if receipted and flight.only_once:
            self._overtaken_before_s = max(self._overtaken_before_s, flight.published_s - self._republish_after_s)
        return True

    def due_again(self, now_s: float, *, queue_is_empty: Callable[[], bool], limit: int) -> list[Entry]:
        """Lines to publish again now, those published first at the front."""
        due: list[Entry] = []
        for entry, flight in self._flights.items():
            age_s = now_s - flight.published_s
            if age_s < self._republish_after_s or len(due) >= limit:
                break
            if age_s < min(self._republish_after_s * 2.0 ** min(flight.again, 32), REPUBLISH_ANYWAY_S):
                continue
            if flight.published_s <= self._overtaken_before_s or age_s >= REPUBLISH_ANYWAY_S or queue_is_empty():
                due.append(entry)
        return due
