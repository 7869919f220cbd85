"""The dead lines of the journal on this host: their content stays here until an operator replays or discards them.

    dead ──replay──▶ published again as unsure, deaths 0; the line and its appendedAt stay
    dead ──discard─▶ discarded: it leaves with the next compaction

Both are receipts of the journal's own; whoever drains the directory acts on them, now or at its next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from producer import errors
from producer.journal import Journal, segments
from producer.journal.index import Entry, Index
from producer.journal.line import Line
from producer.receipt import Receipt, State

__all__ = ["SHORTEST_PREFIX", "DeadLine", "DeadLines", "named"]

SHORTEST_PREFIX = 8
_AT_ONCE = 1000  # receipts of one append


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLine:
    """What may be told of a dead line without its content."""

    id: str  # eventId, factId or order id
    line_hash: str
    kind: str  # event or order
    reason: str
    deaths: int
    appended_at: str
    died_at: str  # when its receipt was journaled

    def is_named(self, name: str) -> bool:
        """Whether this is its id or its line's hash, or how one of them begins (`SHORTEST_PREFIX` digits or more)."""
        wanted = name.lower()
        return len(wanted) >= SHORTEST_PREFIX and (self.id.startswith(wanted) or self.line_hash.startswith(wanted))

    def died_of(self, reason: str) -> bool:
        """Whether this is its reason, or how the parts of it begin: `store_refused` of `store_refused:422`."""
        return self.reason == reason or self.reason.startswith(f"{reason}:")


class DeadLines:
    """A look at a journal, made once. Raises `errors.JournalFailed` when it cannot be read whole."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._index = Index(journal).read_all()
        if not self._index.complete:
            raise errors.JournalFailed(
                "a segment cannot be read; try again, or see `memory-tasks status`"
                if self._index.is_behind
                else "it holds what a later version wrote; use the `memory-tasks` of that version"
            )
        self._entries: dict[str, Entry] = {
            entry.hash.hex(): entry
            for entry in self._index.entries.values()
            if entry.copies and entry.state is State.DEAD
        }

    def all(self) -> list[DeadLine]:
        """All of them, the one that died last first; one whose bytes are damaged by now is left out."""
        found = []
        for line_hash, entry in self._entries.items():
            line = self._read(entry)
            if line is not None and entry.last is not None:
                found.append(
                    DeadLine(
                        id=line.id,
                        line_hash=line_hash,
                        kind=line.kind,
                        reason=entry.last.reason,
                        deaths=entry.deaths,
                        appended_at=line.appended_at,
                        died_at=segments.iso_of_ms(entry.last_ms),
                    )
                )
        return sorted(found, key=lambda dead: (dead.died_at, dead.line_hash), reverse=True)

    def line(self, dead: DeadLine) -> Line:
        """Its line, content and all. Raises `errors.DamagedLine`."""
        line = self._read(self._entries[dead.line_hash])
        if line is None:
            raise errors.DamagedLine("its bytes cannot be read any more")
        return line

    def replay(self, chosen: Iterable[DeadLine]) -> None:
        """Return once it is durable that these are to be published again."""
        self._say(chosen, State.REPLAYED)

    def discard(self, chosen: Iterable[DeadLine]) -> None:
        """Return once it is durable that these are given up."""
        self._say(chosen, State.DISCARDED)

    def _say(self, chosen: Iterable[DeadLine], state: State) -> None:
        said = [Receipt(line_hash=one.line_hash, id=one.id, state=state, reason="operator") for one in chosen]
        for start in range(0, len(said), _AT_ONCE):
            self._journal.append_receipts(said[start : start + _AT_ONCE])

    def _read(self, entry: Entry) -> Line | None:
        try:
            return self._index.read_line(entry)
        except (errors.DamagedLine, OSError):
            return None


def named(dead: Sequence[DeadLine], names: Sequence[str]) -> tuple[list[DeadLine], list[str]]:
    """Those that are named, and the names that name none."""
    chosen = [one for one in dead if any(one.is_named(name) for name in names)]
    return chosen, [name for name in names if not any(one.is_named(name) for one in dead)]
