"""What became of every acknowledged event: counted once, at the end, from the files of hosts, journals and store.

acknowledged = stored + dead + forgotten         anything else is lost
one record per id                                anything more is doubled
verdicts, sessions, edges                        as the facts that the store holds ask for
journals                                         nothing pending, and empty once compacted, but for dead lines
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producer.journal import Journal, compaction
from producer.journal import line as lines
from producer.journal.index import Index
from producer.receipt import State
from producer.store import port, sqlite

__all__ = ["Count", "JournalWatch", "count", "promises", "records"]

_LATER_S = 3 * 3600.0  # nothing was sent for long, and segments are old, also those of a clock an hour ahead
_KEYS = {"EPISODE": "eventId", "MEMORY_FACT": "factId", "SESSION": "sessionKey"}


@dataclass(kw_only=True)
class Count:
    """The end of a scenario. `problems` says what else is not as it must be."""

    events: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    dead: int = 0
    forgotten: int = 0
    stored: int = 0
    problems: list[str] = field(default_factory=list)


class JournalWatch:
    """Follows a journal from outside: what is pending, and at the end what stands in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ahead_s = 0.0  # how far our clocks are ahead
        self._journal = Journal.open(
            directory,
            max_bytes=1 << 34,
            reserve_bytes=0,
            segment_max_bytes=8 << 20,
            segment_max_age_s=0.0,
            clock=lambda: time.time() + self._ahead_s,
            monotonic=self._now_s,
        )
        self._index = Index(self._journal, monotonic=self._now_s)

    def _now_s(self) -> float:
        return time.monotonic() + self._ahead_s

    def pending(self) -> int:
        self._index.poll()
        self._index.take_changes()
        return self._index.status().pending

    def lines(self) -> int:
        """Events and orders that stand in it; one that was captured twice in a millisecond is one line."""
        self._index.poll()
        return sum(entry.copies > 0 for entry in self._index.entries.values())

    def states(self) -> dict[str, set[State | None]]:
        """Event, fact or order id to the states of its lines that still stand in the journal."""
        self._index.read_all()
        found: defaultdict[str, set[State | None]] = defaultdict(set)
        for located in self._journal.scan():
            if located.line.kind in ("event", "order"):
                entry = self._index.entries.get(bytes.fromhex(located.line.hash))
                found[located.line.id].add(entry.state if entry is not None else None)
        return dict(found)

    def compacted(self) -> list[str]:
        """Seal and compact as a drainer does hours later; the ids of the lines that stay."""
        self._ahead_s += _LATER_S
        compaction.heal_tails(self._journal, self._index)
        self._index.poll()
        compaction.seal_finished(self._journal, self._index)
        for _ in range(3):  # what named a line goes after it
            compaction.compact(self._journal, self._index, now_s=self._now_s(), everything=True)
        return [found.line.id for found in self._journal.scan() if found.line.kind in ("event", "order")]

    def unparsed(self) -> int:
        """Whole lines of segments that are no line of ours."""
        bad = 0
        for path in self.directory.glob("segment-*.jsonl"):
            for raw in path.read_bytes().split(b"\n"):
                if raw.startswith(b'{"v":'):
                    try:
                        lines.parse(raw)
                    except Exception:  # noqa: BLE001 whatever is wrong with it
                        bad += 1
        return bad

    def close(self) -> None:
        self._journal.close()


def promises(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """What hosts wrote down. A last line without newline was not promised yet."""
    found = []
    for path in paths:
        if path.exists():
            whole, _, _ = path.read_bytes().rpartition(b"\n")
            found += [json.loads(line) for line in whole.split(b"\n") if line]
    return found


def records(store: sqlite.SqliteStore, label: str) -> list[port.Record]:
    found: list[port.Record] = []
    while True:
        page = store.find(label, {}, skip=len(found))
        found += page.records
        if not page.records or len(found) >= page.total:
            return found


def count(
    promised: Iterable[Mapping[str, Any]],
    watches: Iterable[JournalWatch],
    store_file: Path,
    *,
    torn: frozenset[str] = frozenset(),
) -> Count:
    """Count now. `torn`: acknowledged ids whose bytes a scenario destroyed itself."""
    made = Count()
    acknowledged = {one["id"]: one for one in promised if "id" in one and one["id"] not in torn}
    made.events = len(acknowledged)
    store = sqlite.SqliteStore(store_file)
    try:
        by_label = {label: records(store, label) for label in (*_KEYS, "MEMORY_MARK")}
        edges = store.edges("EPISODE", {})
    finally:
        store.close()
    states: defaultdict[str, set[State | None]] = defaultdict(set)
    for watch in watches:
        for id_, found in watch.states().items():
            states[id_] |= found
    _count_ids(made, acknowledged, by_label, states)
    _check_facts(made, by_label)
    _check_sessions(made, by_label, edges)
    _check_journals(made, watches, states)
    return made


def _count_ids(
    made: Count,
    acknowledged: Mapping[str, Mapping[str, Any]],
    by_label: Mapping[str, list[port.Record]],
    states: Mapping[str, set[State | None]],
) -> None:
    copies = Counter(
        str(record.get(_KEYS[label])) for label in ("EPISODE", "MEMORY_FACT") for record in by_label[label]
    )
    made.doubled = [id_ for id_, number in copies.items() if number > 1]
    marks = {(str(m.get("what")), str(m.get("target")), str(m.get("by"))) for m in by_label["MEMORY_MARK"]}
    forgotten = {target for what, target, _ in marks if what == "forgotten"}
    orders = {"retract": "retracted", "forget": "forgotten"}
    for id_, promise in acknowledged.items():
        kind = promise["kind"]
        if kind in orders:
            is_there = (orders[kind], promise["target"], id_) in marks
            # An order that says again what was said needs no mark of its own.
            is_there = is_there or any(w == orders[kind] and t == promise["target"] for w, t, _ in marks)
        else:
            is_there = copies[id_] > 0
        if is_there:
            made.stored += 1
        elif id_ in forgotten:
            made.forgotten += 1
        elif State.DEAD in states.get(id_, ()):
            made.dead += 1
        else:
            made.lost.append(id_)
    if back := [id_ for id_ in forgotten if copies[id_]]:
        made.problems.append(f"{len(back)} forgotten ids are there")


def _check_facts(made: Count, by_label: Mapping[str, list[port.Record]]) -> None:
    """A fact is active unless a mark replaces or retracts it; whoever names another has marked it; heirs are there.

    Two that replace the same one compete, so a fact may be replaced by one that does not name it.
    """
    facts = {str(r.get("factId")): r for r in by_label["MEMORY_FACT"]}
    by_target: defaultdict[str, set[str]] = defaultdict(set)
    for mark in by_label["MEMORY_MARK"]:
        if mark.get("what") == "superseded":
            by_target[str(mark.get("target"))].add(str(mark.get("by")))
    retracted = {str(m.get("target")) for m in by_label["MEMORY_MARK"] if m.get("what") == "retracted"}
    wrong = sum(bool(r.get("active")) is (id_ in by_target or id_ in retracted) for id_, r in facts.items())
    if wrong:
        made.problems.append(f"{wrong} facts have the wrong verdict")
    named = {id_: str(r.get("supersedesFactId")) for id_, r in facts.items() if r.get("supersedesFactId")}
    if unmarked := sum(id_ not in by_target[target] for id_, target in named.items()):
        made.problems.append(f"{unmarked} facts have not marked what they replace")
    if orphans := sum(bool(by) and not by & facts.keys() for by in by_target.values()):
        made.problems.append(f"{orphans} facts are replaced by what is not there")


def _check_sessions(made: Count, by_label: Mapping[str, list[port.Record]], edges: Iterable[port.Edge]) -> None:
    sessions = Counter(str(r.get("sessionKey")) for r in by_label["SESSION"])
    if doubled := sum(number > 1 for number in sessions.values()):
        made.problems.append(f"{doubled} sessions are doubled")
    linked = Counter(edge.source_id for edge in edges if edge.type == "IN_SESSION")
    wrong = sum(linked[r.id] != 1 for r in by_label["EPISODE"])
    if wrong:
        made.problems.append(f"{wrong} episodes are not in exactly one session")


def _check_journals(made: Count, watches: Iterable[JournalWatch], states: Mapping[str, set[State | None]]) -> None:
    for watch in watches:
        if pending := watch.pending():
            made.problems.append(f"{pending} lines are pending in {watch.directory.name}")
        left = [id_ for id_ in watch.compacted() if State.DEAD not in states.get(id_, ())]
        if left and not pending:
            made.problems.append(f"{len(left)} settled lines stay in {watch.directory.name} after compaction")
        if bad := watch.unparsed():  # damage leaves too, for the quarantine
            made.problems.append(f"{bad} lines do not parse in {watch.directory.name}")
