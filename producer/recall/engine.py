"""Recall: what a scope remembers that bears on a query, within one deadline, or nothing. It never raises.

    caller's thread      bounded threads
    ───────────────      ─────────────────────────────────────────────
    submit ────────────▶ episodes  search the store
           ────────────▶ facts     search the store
           ────────────▶ recent    read the recent-write cache
           ────────────▶ journal   the host's own lines that are not settled yet
    as soon as recent and journal are there:
           ────────────▶ copies    what the store says of the facts among them
           ────────────▶ marks     what it says ended of both: a cache may have missed that
    at the deadline, or when all are over: merge what there is

Every part may fail, be late, or be shed because all threads are busy; the others' results still count, `partial` says
so, and `sources` says which. Not without the journal: only it knows what this host ordered to forget, and nothing is
recalled until it says so (its first reading may take longer than a recall, and goes on after it).

Open the store with a timeout of twice the deadline (`store_timeout_s`): then sixteen threads are enough for a recall
after the other against a store that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from producer import errors
from producer.convergence import marks
from producer.convergence.content import EPISODE, FACT, ID, MARK, TEXT
from producer.journal import segments
from producer.recall import merging, ranking
from producer.recall import where as recall_where
from producer.recall.breaker import Breaker
from producer.recall.merging import Found, Memory
from producer.recall.recent import RecentWrites
from producer.recall.slots import Job, Slots
from producer.recall.standing import standing
from producer.recall.where import Session
from producer.scope import Scope
from producer.store.port import Record, Store

__all__ = ["Memory", "Recall", "Recalled", "Session", "store_timeout_s"]

MAX_QUERY_CHARS = 2000
MAX_LIMIT = 100
STORE_SLOTS = 16
LOCAL_SLOTS = 8
_OVERFETCH = 3  # duplicates, expired and superseded ones are dropped after the search
_SCAN = 200  # newest records per label that are ranked here when the store has no search of its own
_OF_LINE = ("lineKey", "sessionKey", "appendedAt")  # beside the event
_FINISH_S = 0.01  # of the deadline, kept for merging
_log = logging.getLogger(__name__)

Tail = Callable[[str], Sequence[Mapping[str, Any]]]
"""scopeKey -> bodies of that scope's lines that are not settled: {"event", "lineKey"?, "sessionKey"?} or {"order"}, and
"appendedAt"."""


class Embedder(Protocol):
    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...


def store_timeout_s(deadline_ms: float) -> float:
    """The timeout to open a store with that serves recalls of this deadline."""
    return max(0.2, 2 * deadline_ms / 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled:
    """What one recall brought. `sources` says of each part: ok, late, failed, shed or off."""

    memories: tuple[Memory, ...] = ()
    partial: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    took_ms: float = 0.0

    @property
    def failures(self) -> tuple[str, ...]:
        """The parts that did not come, as `part: state`."""
        return tuple(f"{part}: {state}" for part, state in self.sources.items() if state not in ("ok", "off"))


class Recall:
    """Recall of one store, for any scope. Threads may share it. `close` ends its threads; store and cache stay the
    caller's. A `store` that is callable is opened by the first search, on its thread: some take long to import."""

    def __init__(
        self,
        store: Store | Callable[[], Store],
        recent: RecentWrites | None = None,
        *,
        embedder: Embedder | None = None,
        tail: Tail | None = None,
        deadline_ms: float = 300,
        limit: int = 6,
        max_chars: int = 8000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._opened = _Once(store if callable(store) else lambda: store)
        self._recent = recent
        self._embedder = embedder
        self._tail = tail
        self._deadline_ms = deadline_ms
        self._limit = limit
        self._max_chars = max_chars
        self._clock = clock
        self._breaker = Breaker()
        self._searches = Slots(STORE_SLOTS, name="memory-recall")
        self._local = Slots(LOCAL_SLOTS, name="memory-recent")  # a store that hangs cannot take these
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("recalls", "empty", "partial", "failed"), 0)

    def recall(
        self,
        scope: Scope,
        query: str,
        *,
        session: Session | None = None,
        deadline_ms: float | None = None,
        limit: int | None = None,
        skip_ids: Collection[str] = (),
    ) -> Recalled:
        """Memories of exactly this scope, best first, none of `session`'s own and none of `skip_ids`."""
        started = time.monotonic()
        try:
            recalled = self._recall(
                scope,
                query,
                session,
                started + (self._deadline_ms if deadline_ms is None else deadline_ms) / 1000,
                self._limit if limit is None else limit,
                skip_ids,
                started,
            )
        except Exception as problem:  # noqa: BLE001 the edge to a host's turn: counted, logged, empty
            _log.error(
                "recall failed (%s); the turn goes on without",
                type(problem).__name__,
                extra={"action": "recall.failed"},
            )
            self._count("failed")
            recalled = Recalled(partial=True, took_ms=(time.monotonic() - started) * 1000)
        self._count("recalls")
        if not recalled.memories:
            self._count("empty")
        if recalled.partial:
            self._count("partial")
        return recalled

    def status(self) -> dict[str, Any]:
        """Counts since the start, and whether the store is being waited for."""
        with self._lock:
            counts: dict[str, Any] = dict(self._counts)
        return {**counts, "breakerOpen": self._breaker.is_open, "threads": self._searches.threads + self._local.threads}

    def close(self) -> None:
        self._searches.close()
        self._local.close()

    def _recall(
        self,
        scope: Scope,
        query: str,
        session: Session | None,
        deadline: float,
        limit: int,
        skip_ids: Collection[str],
        started: float,
    ) -> Recalled:
        asked = _cleaned(query)
        limit = min(limit, MAX_LIMIT)
        if not asked or limit < 1 or deadline <= started:
            return Recalled()
        wait_until = max(started, deadline - _FINISH_S)
        share = self._breaker.share()
        store_until = started + (wait_until - started) * share
        jobs: dict[str, Job | None] = {}
        if share:
            vector = _Once(lambda: self._embed(asked))
            wheres = {
                EPISODE: recall_where.episodes(scope, session),
                FACT: recall_where.facts(scope, session, now=self._now()),
            }
            for name, label in (("episodes", EPISODE), ("facts", FACT)):
                jobs[name] = self._search_job(
                    scope, label, wheres[label], asked, vector, limit * _OVERFETCH, wait_until
                )
        scope_key = scope.key
        if (recent := self._recent) is not None:
            jobs["recent"] = self._local.submit(lambda: recent.read(scope_key))
        if (tail := self._tail) is not None:
            jobs["journal"] = self._local.submit(lambda: tail(scope_key))

        found = Found()
        found.recent = _of_entries(_result(jobs.get("recent"), wait_until))
        knows_orders = tail is None or _is_there(jobs["journal"], wait_until)
        found.journal, found.orders = _of_bodies(_result(jobs.get("journal"), wait_until))
        told = {str(r.get(ID[FACT])) for r in (*found.recent, *found.journal) if r.label == FACT}
        if told and share:
            where = recall_where.copies_of(scope, told)
            jobs["copies"] = self._searches.submit(lambda: self._store.find(FACT, where).records)
        # While the store does not answer, threads are for what finds out that it does again.
        if share == 1.0 and (asked_of := merging.keys_of(scope, (*found.journal, *found.recent))):
            ending = {"what": {"$in": sorted(marks.ENDING)}, **recall_where.marks_on(scope, asked_of)}
            jobs["marks"] = self._searches.submit(lambda: self._store.find(MARK, ending).records)
        found.hits = [*_result(jobs.get("episodes"), store_until), *_result(jobs.get("facts"), store_until)]
        found.copies = _result(jobs.get("copies"), store_until)
        found.marks = _result(jobs.get("marks"), store_until)
        self._judge_store(jobs, share)
        if not knows_orders:
            found = Found()

        memories = merging.merge(
            found,
            scope=scope,
            session=session,
            query=asked,
            now=self._now(),  # later than that of the searches
            limit=limit,
            max_chars=self._max_chars,
            skip_ids=skip_ids,
        )
        sources = self._sources(jobs)
        return Recalled(
            memories=tuple(memories),
            partial=not knows_orders or any(state not in ("ok", "off") for state in sources.values()),
            sources=sources,
            took_ms=(time.monotonic() - started) * 1000,
        )

    def _now(self) -> str:
        return segments.iso_of_ms(int(self._clock() * 1000))

    # -- the store ----------------------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        store: Store = self._opened.value
        return store

    def _search_job(
        self, scope: Scope, label: str, where: Mapping[str, Any], query: str, vector: _Once, limit: int, in_time: float
    ) -> Job | None:
        def finished(job: Job) -> None:
            if not job.error and time.monotonic() <= in_time:
                self._breaker.succeeded()

        return self._searches.submit(lambda: self._search(scope, label, where, query, vector, limit), finished=finished)

    def _search(
        self, scope: Scope, label: str, where: Mapping[str, Any], query: str, vector: _Once, limit: int
    ) -> Sequence[Record]:
        found = self._by_search(label, where, query, vector, limit)
        if found is None:
            found = self._by_scan(label, where, query, limit)
        return standing(self._store, scope, found)

    def _by_search(
        self, label: str, where: Mapping[str, Any], query: str, vector: _Once, limit: int
    ) -> Sequence[Record] | None:
        """What the store's own search finds; None when it has none, or no index for it yet."""
        can = self._store.capabilities()
        values = vector.value if can.vector_search and self._embedder is not None else None
        if values is None and not (can.keyword_search or can.embeds):
            return None
        text = query if can.keyword_search or values is None else None
        try:
            return self._store.search(label, TEXT[label], where, text=text, vector=values, limit=limit)
        except (errors.StoreRefused, errors.Unsupported):
            return None

    def _by_scan(self, label: str, where: Mapping[str, Any], query: str, limit: int) -> Sequence[Record]:
        """The best of the newest records, ranked here."""
        records = self._store.find(label, where, limit=_SCAN, order_by=(("__id", "desc"),)).records
        texts = [str(record.get(TEXT[label]) or "") for record in records]
        scored = [
            Record(id=record.id, label=record.label, properties=record.properties, score=score)
            for record, score in zip(records, ranking.relevance(query, texts), strict=True)
            if score > 0
        ]
        scored.sort(key=lambda record: -(record.score or 0.0))
        return scored[:limit]

    def _embed(self, query: str) -> Sequence[float] | None:
        if self._embedder is None:
            return None
        try:
            vector = self._embedder.embed([query])[0]
            return vector if any(vector) else None
        except errors.IngestError:
            return None  # words alone, where the store knows them

    # -- what became of it --------------------------------------------------------------------------------------------

    def _judge_store(self, jobs: Mapping[str, Job | None], share: float) -> None:
        asked = [job for name in ("episodes", "facts") if (job := jobs.get(name)) is not None]
        if share == 1.0 and any(not job.succeeded for job in asked):
            was_open = self._breaker.is_open
            self._breaker.failed()
            if self._breaker.is_open and not was_open:
                _log.warning(
                    "recall: the store does not answer in time; until it does, turns get recent writes only",
                    extra={"action": "recall.breaker_open"},
                )

    def _sources(self, jobs: Mapping[str, Job | None]) -> dict[str, str]:
        asked = {"episodes": True, "facts": True, "recent": self._recent is not None, "journal": self._tail is not None}
        states = {}
        for name, wanted in asked.items():
            job = jobs.get(name)
            if not wanted:
                states[name] = "off"
            elif job is None:
                states[name] = "shed"
            else:
                states[name] = "ok" if job.succeeded else "failed" if job.error else "late"
        return states

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


class _Once:
    """A value that both searches need, computed by the one that comes first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[Any] = []

    @property
    def value(self) -> Any:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


def _is_there(job: Job | None, until: float) -> bool:
    return job is not None and job.wait(until) and not job.error


def _result(job: Job | None, until: float) -> Sequence[Any]:
    return job.value or () if job is not None and _is_there(job, until) else ()


def _cleaned(query: str) -> str:
    """Bounded, and text that every store and encoder takes."""
    return query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode("utf-8").replace("\x00", " ").strip()


def _of_entries(entries: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Entries of another version that lack something are left out."""
    return [
        Record(id="", label=entry["label"], properties=entry["record"])
        for entry in entries
        if isinstance(entry.get("record"), Mapping) and entry.get("label") in ID
    ]


def _of_bodies(bodies: Sequence[Mapping[str, Any]]) -> tuple[list[Record], list[Mapping[str, Any]]]:
    records, orders = [], []
    for body in bodies:
        if isinstance(event := body.get("event"), Mapping):
            label = FACT if event.get("eventType") == "fact" else EPISODE
            keys_of_line = {name: body[name] for name in _OF_LINE if body.get(name)}
            records.append(Record(id="", label=label, properties={**event, **keys_of_line}))
        elif isinstance(order := body.get("order"), Mapping):
            orders.append(order)
    return records, orders
