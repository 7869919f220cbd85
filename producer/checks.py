"""When a drainer asks workers about its dead lines: about all of them at its start, every day, and when an order of its
own to forget was settled.

A dead line may have been forgotten meanwhile, and a listing of dead letters that Redis lost is filled again. An
unanswered question costs nothing: it is asked again the next day. One message a second, and only into an empty queue,
so that ten thousand of them keep nothing waiting and never pile up in the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from producer.journal.index import Entry
from producer.receipt import State

__all__ = ["EVERY_S", "Checks"]

EVERY_S = 86_400.0
_PAUSE_S = 1.0


class Checks:
    def __init__(self) -> None:
        self._waiting: deque[Entry] = deque()
        self._all_at_s = float("-inf")
        self._next_at_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Whether there may be something to ask."""
        return now_s >= self._all_at_s or (bool(self._waiting) and now_s >= self._next_at_s)

    def take(self, dead: Iterable[Entry], now_s: float, *, max_lines: int, max_bytes: int) -> list[Entry]:
        """The dead lines to ask about now, in one message; none when it is not time."""
        if now_s >= self._all_at_s:
            self._all_at_s = now_s + EVERY_S
            self._waiting = deque(sorted(dead, key=lambda entry: entry.number))
        if not self._waiting or now_s < self._next_at_s:
            return []
        self._next_at_s = now_s + _PAUSE_S
        taken: list[Entry] = []
        length = 0
        while self._waiting and len(taken) < max_lines:
            entry = self._waiting[0]
            if taken and length + entry.length > max_bytes:
                break
            self._waiting.popleft()
            if entry.state is State.DEAD and entry.copies:  # else replayed, discarded or gone since
                taken.append(entry)
                length += entry.length
        return taken

    def start_over(self) -> None:
        """Now, and every day from now on."""
        self._all_at_s = float("-inf")

    def put_back(self, taken: Iterable[Entry]) -> None:
        """They could not be asked about: they are the next ones."""
        self._waiting.extendleft(reversed(list(taken)))
