"""What became of every line of a journal: an index in memory, built by reading and followed by reading on.

One entry per line hash: where the line stands (no text), and the state that its receipts give it. About 300 bytes each.
`poll` reads what any process has appended since, so the index is never told anything that is not on disk; `settle` is
the one exception, for receipts that a full disk refused.

                     (event or order read)
                             │
                             ▼      deferred, replayed
                          pending ◀──────────────────┐
                             │                       │
               ┌─────────┬───┴─────┬──────────┐      │ any of these, by receipt.outranks
               ▼         ▼         ▼          ▼      │
            stored   forgotten    dead ─▶ discarded ─┘

Receipts of a line are applied in the order of their stamps, whatever segments they stand in. `sent` and receipts may be
read before the line they name; one whose line is in no segment is an orphan (its line was compacted).

Not for several threads at once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from producer import errors
from producer import receipt as receipts
from producer.journal import line as lines
from producer.journal import quarantine, segments
from producer.journal.journal import Journal
from producer.receipt import Receipt, State

__all__ = ["RECENTLY_SENT_S", "Changes", "Entry", "Index", "JournalStatus", "SegmentView"]

RECENTLY_SENT_S = 300.0  # a line stays for so long after its last `sent`: another copy of it may still be on its way


class _Stamped(NamedTuple):
    at_ms: int
    receipt: Receipt  # its lineHash and id are left empty: the entry's key and the line have them


class Entry:
    """A line, where it stands, and what became of it. Compared by identity."""

    __slots__ = (
        "_receipts",
        "appended_ms",
        "copies",
        "deaths",
        "hash",
        "is_order",
        "last",
        "last_ms",
        "length",
        "number",
        "offset",
        "segment",
        "sent_ms",
        "sent_s",
        "state",
    )

    def __init__(self, hash_: bytes, number: int) -> None:
        self.hash = hash_
        self.number = number  # grows in the order of noticing
        self.segment = ""  # of the copy read last
        self.offset = 0
        self.length = 0
        self.appended_ms = 0
        self.is_order = False
        self.copies = 0  # in how many places the line stands; 0: an orphan
        self.sent_ms = 0  # stamp of the last `sent`; 0: never
        self.sent_s = 0.0  # the same on our monotonic clock
        self.state: State | None = None  # None: no receipt yet
        self.last: Receipt | None = None  # the receipt that holds
        self.last_ms = 0  # its stamp
        self.deaths = 0
        self._receipts: tuple[_Stamped, ...] = ()

    @property
    def is_terminal(self) -> bool:
        return self.state in receipts.TERMINAL

    @property
    def is_open(self) -> bool:
        """In the journal, and waiting for a terminal receipt."""
        return self.copies > 0 and self.state not in receipts.TERMINAL

    def is_removable(self, now_s: float) -> bool:
        """Whether the line may leave the journal: terminal, not dead, and not sent a moment ago."""
        if not self.is_terminal or self.state is State.DEAD:
            return False
        return not self.sent_ms or now_s - self.sent_s >= RECENTLY_SENT_S

    def needs(self, at_ms: int, receipt: Receipt) -> bool:
        """Whether this receipt, read from disk, still says something."""
        return not any(_says_as_much(later, _Stamped(at_ms, receipt)) for later in self._receipts)

    def _add(self, at_ms: int, receipt: Receipt) -> None:
        new = _Stamped(at_ms, receipt)
        if new in self._receipts:
            return  # a copy made by compaction
        all_ = sorted((*self._receipts, new), key=lambda one: one.at_ms)
        self._receipts = tuple(one for one in all_ if not any(_says_as_much(later, one) for later in all_))
        self.last, self.deaths = None, 0
        for one in self._receipts:
            if receipts.outranks(one.receipt, self.last):
                self.last, self.last_ms = one.receipt, one.at_ms
            self.deaths = 0 if one.receipt.state is State.REPLAYED else max(self.deaths, one.receipt.deaths)
        self.state = self.last.state if self.last is not None else None


def _says_as_much(later: _Stamped, earlier: _Stamped) -> bool:
    """Whether a deferral makes an earlier one superfluous, whatever other receipts there are before or between."""
    return (
        later.at_ms > earlier.at_ms
        and later.receipt.state is State.DEFERRED
        and earlier.receipt.state is State.DEFERRED
        and later.receipt.deaths >= earlier.receipt.deaths
        and (later.receipt.is_unsure or not earlier.receipt.is_unsure)
    )


class SegmentView:
    """What the index knows of a segment."""

    __slots__ = (
        "entries",
        "failed_removals",
        "later",
        "looked_at_s",
        "name",
        "offset",
        "others",
        "sealed",
        "size",
        "unreadable",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = 0  # read up to here
        self.size = 0
        self.entries: list[Entry] = []  # its event and order lines, once per copy
        self.others = 0  # its sent and receipt lines
        self.later = 0  # its lines of a later version
        self.sealed = False
        self.unreadable = False
        self.looked_at_s = 0.0  # by compaction
        self.failed_removals = 0  # by compaction

    @property
    def has_tail(self) -> bool:
        return self.size > self.offset and not self.unreadable


class Changes(NamedTuple):
    """What polls found. Lines that are new or got a receipt may be terminal already."""

    appeared: list[Entry]
    receipted: list[Entry]
    vanished: list[Entry]


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalStatus:
    pending: int  # lines without a terminal receipt
    deferred: int  # of those, lines whose last receipt deferred them
    dead: int  # until an operator replays or discards them
    settled: int  # stored, forgotten or discarded, not yet compacted
    oldest_pending_at: str | None
    segments: int
    bytes: int  # of segments and quarantine
    max_bytes: int
    damaged: int  # different damaged pieces: in the quarantine, or still in a segment
    quarantined_bytes: int
    unreadable_segments: int  # of a later version
    unreadable_lines: int  # of a later version, in segments of this one


class Index:
    """Follow a journal. `poll` from time to time, then `take_changes`; entries are live objects."""

    def __init__(
        self,
        journal: Journal,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        on_damage: Callable[[bytes], object] | None = None,
    ) -> None:
        self.journal = journal
        self.entries: dict[bytes, Entry] = {}
        self.views: dict[str, SegmentView] = {}
        self.failed_reads = 0
        self._damaged: set[str] = set()
        self._monotonic = monotonic
        self._on_damage = on_damage
        self._numbers = 0
        self._without_line: set[bytes] = set()  # named by a `sent` or a receipt, and not seen
        self._orphans: set[bytes] = set()  # those of the last poll
        self._changes = Changes([], [], [])
        self._read_once = False
        self._last_failed = False

    @property
    def damaged(self) -> int:
        """Different pieces found damaged."""
        return len(self._damaged)

    @property
    def is_behind(self) -> bool:
        """Whether the last poll could not read all that there is of this version."""
        return self._last_failed

    @property
    def complete(self) -> bool:
        """Whether everything on disk could be read: only then is an orphan known to be one."""
        is_known = not any(view.unreadable or view.later for view in self.views.values())
        return self._read_once and not self._last_failed and is_known

    def read_all(self) -> Index:
        """Itself, after a poll that reads whatever there is, torn tails too."""
        self.poll(to_end=True)
        return self

    def poll(self, *, to_end: bool = False) -> None:
        """Read what is new. An unreadable segment is counted and tried again next time, never fatal."""
        self._last_failed = False
        names = self._read_listed(to_end)
        if any(name not in names for name in self.views):
            # Compaction copies before it removes: the copies stand in segments that a listing made now shows.
            names = self._read_listed(to_end)
            for name in [name for name in self.views if name not in names]:
                self._lose_segment(self.views.pop(name))
        self._read_once = True
        self._drop_orphans()

    def take_changes(self) -> Changes:
        """What was found since the last call, by whichever poll."""
        taken, self._changes = self._changes, Changes([], [], [])
        return taken

    def _read_listed(self, to_end: bool) -> dict[str, int]:
        try:
            names = self.journal.segment_names()
        except OSError:
            self.failed_reads += 1
            self._last_failed = True
            return dict.fromkeys(self.views, 0)
        if any(size < self.views[name].offset for name, size in names.items() if name in self.views):
            self._start_over()
        for name, size in names.items():
            view = self.views.get(name)
            if view is None:
                view = self.views[name] = SegmentView(name)
            view.size = size
            if size > view.offset and not view.unreadable:
                try:
                    self._read(view, to_end or view.sealed)
                except FileNotFoundError:
                    continue  # the next listing will not have it
                except OSError:
                    self.failed_reads += 1
                    self._last_failed = True
        return names

    def _start_over(self) -> None:
        """A file got shorter, which only somebody else can have done to it: believe nothing, read everything again."""
        self.failed_reads += 1
        self._changes.vanished.extend(entry for entry in self.entries.values() if entry.copies)
        for entry in self.entries.values():
            entry.copies = 0
        self.entries, self.views = {}, {}
        self._without_line, self._orphans = set(), set()

    def _read(self, view: SegmentView, to_end: bool) -> None:
        fs = self.journal.fs
        descriptor = fs.open_to_read(f"{self.journal.directory}/{view.name}")
        reader = segments.Reader(fs, descriptor, offset=view.offset, sealed=view.sealed)
        try:
            for piece in reader.pieces(to_end=to_end):
                if piece.is_later:
                    view.later += 1
                elif piece.line is None:
                    self._damaged.add(quarantine.name_of(piece.raw))
                    if self._on_damage is not None:
                        self._on_damage(piece.raw)
                else:
                    self._take(view, piece.offset, piece.line)
        finally:
            # Lines taken before an error are not read again.
            view.offset, view.sealed, view.unreadable = reader.offset, reader.sealed, reader.unreadable
            fs.close(descriptor)

    def _take(self, view: SegmentView, offset: int, line: lines.Line) -> None:
        at_ms = segments.ms_of_iso(line.appended_at)
        if line.kind in ("event", "order"):
            entry = self._entry(bytes.fromhex(line.hash))
            entry.segment, entry.offset, entry.length, entry.appended_ms = view.name, offset, len(line.text), at_ms
            entry.copies += 1
            entry.is_order = line.kind == "order"
            view.entries.append(entry)
            self._without_line.discard(entry.hash)
            if entry.copies == 1:
                self._changes.appeared.append(entry)
            return
        view.others += 1
        try:
            entry = self._entry(bytes.fromhex(line.body["lineHash"]))
            if line.kind == "sent":
                sent_s = self._on_our_clock(at_ms)  # a clock that went back gives the last one an earlier stamp
                entry.sent_s = max(entry.sent_s, sent_s) if entry.sent_ms else sent_s
                entry.sent_ms = max(entry.sent_ms, at_ms)
                return
            self.journal.saw_receipt(at_ms)
            self._settle(entry, at_ms, receipts.of_body("", line.body))
        except (KeyError, TypeError, ValueError, errors.DamagedLine):
            self._damaged.add(quarantine.name_of(line.text.encode("ascii")))

    def _on_our_clock(self, at_ms: int) -> float:
        """When this was, for the rule of five minutes: never in the future, and long ago counts as five minutes."""
        age_s = (self.journal.now_ms() - at_ms) / 1000
        return self._monotonic() - min(max(age_s, 0.0), RECENTLY_SENT_S)

    def _settle(self, entry: Entry, at_ms: int, receipt: Receipt) -> None:
        before = entry.last
        entry._add(at_ms, dataclasses.replace(receipt, line_hash="", id=""))
        if entry.last is not before:
            self._changes.receipted.append(entry)

    def settle(self, receipt: Receipt) -> None:
        """Apply a receipt that could not be journaled; it is lost with this process."""
        entry = self.entries.get(bytes.fromhex(receipt.line_hash))
        if entry is not None and entry.copies:
            self._settle(entry, self.journal.now_ms(), receipt)

    def _entry(self, hash_: bytes) -> Entry:
        entry = self.entries.get(hash_)
        if entry is None:
            if len(hash_) != 32:
                raise ValueError("not a line hash")
            self._numbers += 1
            entry = self.entries[hash_] = Entry(hash_, self._numbers)
            self._without_line.add(hash_)
        return entry

    def _lose_segment(self, view: SegmentView) -> None:
        """The segment was removed: its copies are gone."""
        for entry in view.entries:
            entry.copies -= 1
            if entry.copies < 0:
                continue  # lost before
            if entry.copies == 0:
                self._changes.vanished.append(entry)
                self.entries.pop(entry.hash, None)

    def _drop_orphans(self) -> None:
        """Forget what is said of lines that are nowhere; one that is being appended gets until the next poll. A line
        that the disk does not give now is somewhere."""
        if self._last_failed:
            return
        for hash_ in self._orphans & self._without_line:
            del self.entries[hash_]
        self._without_line -= self._orphans
        self._orphans = set(self._without_line)

    def read_line(self, entry: Entry) -> lines.Line:
        """The line of an entry, read and checked again; of one that stands twice, whichever copy is whole.

        Raises `OSError` (try again after the next poll) and `errors.DamagedLine` (`lose` it).
        """
        if entry.segment in self.views:
            try:
                return self._read_copy(entry)
            except errors.DamagedLine:
                if entry.copies < 2:
                    raise
                self._damaged.add(f"{entry.hash.hex()[:32]}.copy")
        self._find_again(entry)
        return self._read_copy(entry)

    def _read_copy(self, entry: Entry) -> lines.Line:
        fs = self.journal.fs
        descriptor = fs.open_to_read(f"{self.journal.directory}/{entry.segment}")
        try:
            line = lines.parse(fs.read(descriptor, entry.length, entry.offset))
        finally:
            fs.close(descriptor)
        if bytes.fromhex(line.hash) != entry.hash:
            raise errors.DamagedLine("another line stands there")
        return line

    def _find_again(self, entry: Entry) -> None:
        """Point it at a copy that is whole, now that the one read last is damaged or gone.

        Rare: two copies come from a failed sync, or from a crash in compaction. A damaged one stays in `copies` until
        its segment goes, as in the segment's `entries`.
        """
        for view in self.views.values():
            if not any(other is entry for other in view.entries):
                continue
            for located in self.journal.scan_segment(view.name):
                if located.line.kind in ("event", "order") and bytes.fromhex(located.line.hash) == entry.hash:
                    entry.segment, entry.offset = view.name, located.offset
                    return
        raise errors.DamagedLine("no copy of it is whole")

    def lose(self, entry: Entry) -> None:
        """Its bytes, of every copy, were damaged since they were read: nobody can deliver it. Counted; it is gone."""
        self._damaged.add(f"{entry.hash.hex()[:32]}.lost")
        self.entries.pop(entry.hash, None)
        entry.copies = 0
        self._changes.vanished.append(entry)

    def open_entries(self) -> Iterator[Entry]:
        return (entry for entry in self.entries.values() if entry.is_open)

    def is_open(self, hash_: bytes) -> bool:
        """Whether a line of this hash is in the journal, and waits for a terminal receipt."""
        entry = self.entries.get(hash_)
        return entry is not None and entry.is_open

    def status(self) -> JournalStatus:
        standing = [entry for entry in self.entries.values() if entry.copies]
        pending = [entry for entry in standing if not entry.is_terminal]
        kept = quarantine.kept(self.journal.fs, self.journal.directory)
        oldest = min((entry.appended_ms for entry in pending), default=None)
        return JournalStatus(
            pending=len(pending),
            deferred=sum(entry.state is State.DEFERRED for entry in pending),
            dead=sum(entry.state is State.DEAD for entry in standing),
            settled=sum(entry.is_terminal and entry.state is not State.DEAD for entry in standing),
            oldest_pending_at=None if oldest is None else segments.iso_of_ms(oldest),
            segments=len(self.views),
            bytes=sum(view.size for view in self.views.values()) + sum(kept.values()),
            max_bytes=self.journal.budget.max_bytes,
            damaged=len(self._damaged | set(kept)),
            quarantined_bytes=sum(kept.values()),
            unreadable_segments=sum(view.unreadable for view in self.views.values()),
            unreadable_lines=sum(view.later for view in self.views.values()),
        )
