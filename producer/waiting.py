"""Lines that wait to be published, each in one of four queues.

    fresh     noticed within the last FRESH_S seconds; older ones join the backlog
    backlog   in the order of the journal
    later     deferred or put off: not before their time, and each by itself
    held      not before their time either; then they join the backlog

A line waits once, whatever is said of it how often; the last word counts. Memory: about 200 bytes per line.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from producer.journal.index import Entry

__all__ = ["FRESH_S", "Waiting"]

FRESH_S = 10.0

Fits = Callable[[int, int], bool]  # so many lines, so many bytes in all: may they go?


class Waiting:
    """The four queues. An entry that moves leaves a stale item behind, known by its ticket and skipped later."""

    def __init__(self) -> None:
        self._tickets: dict[Entry, int] = {}
        self._last_ticket = 0
        self._fresh: deque[tuple[float, int, Entry]] = deque()
        self._backlog: deque[tuple[int, Entry]] = deque()
        self._later: list[tuple[float, int, Entry]] = []
        self._held: list[tuple[float, int, Entry]] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._tickets)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._tickets

    def _ticket(self, entry: Entry) -> int:
        self._last_ticket += 1
        self._tickets[entry] = self._last_ticket
        return self._last_ticket

    def add_fresh(self, entry: Entry, now_s: float) -> None:
        self._fresh.append((now_s, self._ticket(entry), entry))

    def add(self, entry: Entry, *, first: bool = False) -> None:
        """To the backlog; `first`: before all others."""
        item = (self._ticket(entry), entry)
        if first:
            self._backlog.appendleft(item)
        else:
            self._backlog.append(item)

    def put_off(self, entry: Entry, until_s: float, *, alone: bool = True) -> None:
        """It waits until then, wherever it waited before. Not `alone`: then it is backlog."""
        heapq.heappush(self._later if alone else self._held, (until_s, self._ticket(entry), entry))

    def remove(self, entry: Entry) -> None:
        self._tickets.pop(entry, None)

    def take_fresh(self, now_s: float, fits: Fits, limit: int) -> list[Entry]:
        """Up to so many fresh lines that may go together; they wait no more. The old ones join the backlog first."""
        while self._fresh and now_s - self._fresh[0][0] > FRESH_S:
            _, ticket, entry = self._fresh.popleft()
            if self._tickets.get(entry) == ticket:
                self._backlog.append((ticket, entry))
        return self._take(self._fresh, self._fresh.popleft, fits, limit)

    def take_due(self, now_s: float, fits: Fits, limit: int) -> list[Entry]:
        """The same of lines whose time has come."""
        pop = lambda: heapq.heappop(self._later)  # noqa: E731
        return self._take(self._later, pop, fits, limit, until=lambda: self._later[0][0] > now_s)

    def take_backlog(self, now_s: float, fits: Fits, limit: int) -> list[Entry]:
        """The same of the backlog. Held lines whose time has come join it first."""
        while self._held and self._held[0][0] <= now_s:
            _, ticket, entry = heapq.heappop(self._held)
            if self._tickets.get(entry) == ticket:
                self._backlog.append((ticket, entry))
        return self._take(self._backlog, self._backlog.popleft, fits, limit)

    def _take(
        self,
        queue: deque[tuple[float, int, Entry]] | deque[tuple[int, Entry]] | list[tuple[float, int, Entry]],
        pop: Callable[[], object],
        fits: Fits,
        limit: int,
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> list[Entry]:
        taken: list[Entry] = []
        length = 0
        while queue and len(taken) < limit and not until():
            ticket, entry = queue[0][-2:]
            if self._tickets.get(entry) == ticket:
                if not entry.is_open:
                    del self._tickets[entry]
                elif not fits(len(taken) + 1, length + entry.length):
                    break
                else:
                    del self._tickets[entry]
                    taken.append(entry)
                    length += entry.length
            pop()
        return taken
