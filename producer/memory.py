"""The facade that a Python agent host uses: capture turns and facts, recall, flush, close.

    with AgentMemory(config.load(os.environ), scope=scope) as memory:
        context = memory.recall("which editor?", session_id="s-1")     # quoted text for the prompt, or ""
        outcome = memory.capture_turn(session_id="s-1", user_text="…", assistant_text="…")   # Durable or Refused

What a host may rely on:

- nothing raises but the constructor and misuse of its arguments' types; captures answer `Durable` or `Refused`
- a capture returns when its line is on disk, or refused within the disk's budget; it talks to no network
- recall returns within its deadline, with what there is
- constructing is cheap: no file is touched, no thread started, nothing beside the standard library imported, before
  the first call needs it; kombu, redis and the store's SDK are imported on threads of ours
- publishing happens on one daemon thread, and only while no other process drains the journal's directory
- one object serves many threads; a forked child starts its own threads and connections at its first call
- `close` is bounded, and so is every thread, queue and buffer behind it
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from producer import capture, counts, errors, keys, outcomes, refusals
from producer import scope as scopes
from producer.convergence.content import OBJECT_KEY
from producer.journal import Journal, segments
from producer.journal.line import Line
from producer.outcomes import Durable, Outcome
from producer.recall.where import Session

if TYPE_CHECKING:
    from producer.config import ProducerConfig
    from producer.dispatcher import Dispatcher, Publication, Publisher
    from producer.recall.engine import Recall, Recalled
    from producer.recall.history import History
    from producer.store.port import Store

__all__ = ["AgentMemory", "ScopeGiven", "forget_group"]

_COUNT_EVERY_S = 5.0
_log = logging.getLogger(__name__)
_all: weakref.WeakSet[AgentMemory] = weakref.WeakSet()

ScopeGiven = scopes.Scope | scopes.HostContext


class AgentMemory:
    """Memory of one journal, for any scope. `scope` is the default of every call: a `Scope`, or the host's own words
    about a conversation, from which the scope is proven or refused each time."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        scope: ScopeGiven | None = None,
        runtime: str = "custom",
        host: str = "python",
        dispatches: bool = True,
    ) -> None:
        self.config = config
        self._scope = scope
        self._runtime = runtime
        self._host = host
        self._dispatches = dispatches
        self._inherited: list[Any] = []  # in a forked child: the parent's parts, kept from being closed
        self._start_fresh()
        _all.add(self)

    def _start_fresh(self) -> None:
        """The state that a forked child may not share with its parent."""
        self._lock = threading.Lock()
        self._closed = False
        self._journal: Journal | None = None
        self._dispatcher: Dispatcher | None = None
        self._recall: Recall | None = None
        self._opened: list[Callable[[], None]] = []  # how to close what recall and look-ups opened
        self._look_up_lock = threading.Lock()
        self._look_up_store: Store | None = None
        self._counted: Counter[str] = Counter()
        self._uncounted: Counter[str] = Counter()
        self._counted_at = 0.0

    # -- capture -----------------------------------------------------------------------------------------------------

    def capture_turn(
        self,
        *,
        session_id: str,
        user_text: str | bytes,
        assistant_text: str | bytes,
        scope: ScopeGiven | None = None,
        source_event_id: str | None = None,
        turn_index: int = 0,
        observed_at: str | None = None,
        replaces_earlier: bool = False,
        conversation_kind: str | None = None,
        visibility: str = "participant",
        trust_class: str = "mixed",
        origin_class: str = "conversation",
        provenance: str = "",
    ) -> Outcome:
        """A completed turn. Give the host's own stable id of the turn as `source_event_id` where there is one; without
        it the turn gets an id of its own, and capturing it twice makes two.

        `replaces_earlier`: a later capture with this `source_event_id` in this session takes the place of the earlier.
        """

        def write() -> Line:
            owner, runtime, kind = self._owner(scope)
            captured = capture.build_episode(
                scope=owner,
                runtime=runtime,
                external_session_id=session_id,
                source_event_id=source_event_id,
                turn_index=turn_index,
                user_text=user_text,
                assistant_text=assistant_text,
                observed_at=observed_at or _now(),
                conversation_kind=conversation_kind or kind,
                visibility=visibility,
                trust_class=trust_class,
                origin_class=origin_class,
                provenance=provenance or f"{self._host}:capture_turn",
                max_units=self.config.max_turn_units,
            )
            event = captured.event
            session_key = Session(runtime=runtime, external_session_id=event["externalSessionId"]).key(owner)
            line_key = None
            if replaces_earlier and source_event_id:
                line_key = keys.line_key_of_prompt(session_key=session_key, source_event_id=event["sourceEventId"])
            return self._opened_journal().append_event(event, line_key=line_key, session_key=session_key)

        return self._captured(write)

    def remember(
        self,
        *,
        text: str | bytes,
        kind: str,
        subject_key: str,
        supersedes: str | None = None,
        session_id: str | None = None,
        scope: ScopeGiven | None = None,
        source_event_id: str | None = None,
        confidence: float = 1.0,
        active: bool = True,
        valid_from: str | None = None,
        valid_until: str | None = None,
        visibility: str = "participant",
        trust_class: str = "trusted",
        provenance: str = "",
    ) -> Outcome:
        """A fact. `supersedes` names the fact (its id) that this one replaces. Of a kind that the settings call
        single-valued a later fact about the same subject replaces an earlier one without naming it.

        Without `valid_until` it holds as long as the settings say of its kind and scope, counted from `valid_from`: who
        may capture one `source_event_id` twice names that time, or the second end makes it another content."""

        def write() -> Line:
            owner, runtime, _ = self._owner(scope)
            captured = capture.build_fact(
                scope=owner,
                runtime=runtime,
                text=text,
                kind=kind,
                subject_key=subject_key,
                source_event_id=source_event_id,
                valid_from=valid_from or _now(),
                visibility=visibility,
                trust_class=trust_class,
                provenance=provenance or f"{self._host}:remember",
                confidence=confidence,
                active=active,
                supersedes_fact_id=supersedes,
                valid_until=valid_until,
                max_units=self.config.max_turn_units,
            )
            event = captured.event
            if valid_until is None and (end := self._end_of(event)) is not None:
                event["validUntil"] = end
            line_key = None
            if supersedes is None and event["kind"] in self.config.single_valued_kinds:
                line_key = keys.line_key_of_subject(
                    scope_key=owner.key, subject_key=event["subjectKey"], kind=event["kind"]
                )
            session_key = None if session_id is None else Session.named(runtime, session_id).key(owner)
            return self._opened_journal().append_event(event, line_key=line_key, session_key=session_key)

        return self._captured(write)

    def _end_of(self, event: Mapping[str, Any]) -> str | None:
        """When a fact of this kind and scope ends by the settings."""
        return self.config.time_to_live.end_of(
            kind=event["kind"],
            agent_id=event["agentId"],
            profile_id=event["profileId"],
            valid_from=event["validFrom"],
        )

    def retract(self, fact_id: str, *, scope: ScopeGiven | None = None) -> Outcome:
        """Order that a fact of this scope no longer holds. It stays for history and leaves recall."""

        def write() -> Line:
            owner, runtime, _ = self._owner(scope)
            order = capture.build_retract_order(scope=owner, runtime=runtime, target=fact_id, at=_now())
            return self._opened_journal().append_order(order)

        return self._captured(write)

    def forget(
        self,
        target: str | None = None,
        *,
        session_id: str | None = None,
        everything: bool = False,
        entity_key: str | None = None,
        label: str = "ENTITY",
        runtime: str | None = None,
        scope: ScopeGiven | None = None,
    ) -> Outcome:
        """Order to forget, within this scope: an eventId or factId, a conversation (of `runtime`, if not this host's),
        everything, or all versions of a thing by its `entity_key` (`label` says what it is). Exactly one of them.

        What it names leaves recall on this host at once, and everything else when the order is delivered: store, recent
        writes, dead letters, and what other hosts still hold when they bring it. It never comes back."""

        def write() -> Line:
            owner, own_runtime, _ = self._owner(scope)
            group = forget_group(
                owner,
                runtime=runtime or own_runtime,
                session_id=session_id,
                everything=everything,
                entity_key=entity_key,
                label=label,
            )
            order = capture.build_forget_order(scope=owner, runtime=own_runtime, at=_now(), target=target, group=group)
            return self._opened_journal().append_order(order)

        return self._captured(write)

    def entity(
        self,
        *,
        kind: str,
        name: str,
        label: str = "ENTITY",
        properties: Mapping[str, str | int | float | bool] | None = None,
        scope: ScopeGiven | None = None,
        source_event_id: str | None = None,
        trust_class: str = "trusted",
        provenance: str = "",
    ) -> Outcome:
        """State a thing of this scope: an ENTITY, a TASK or an ARTIFACT, known by label, kind and name. Each call is a
        version of it, and the latest is current; the same `source_event_id` again is the same version. For trusted
        callers: nothing of it is guessed from text."""

        def write() -> Line:
            owner, runtime, _ = self._owner(scope)
            order = capture.build_entity_order(
                scope=owner,
                runtime=runtime,
                label=label,
                kind=kind,
                name=name,
                properties=properties or {},
                source_event_id=source_event_id,
                trust_class=trust_class,
                provenance=provenance or f"{self._host}:entity",
                at=_now(),
                max_units=self.config.max_turn_units,
            )
            return self._opened_journal().append_order(order)

        return self._captured(write)

    def entity_key(self, *, kind: str, name: str, label: str = "ENTITY", scope: ScopeGiven | None = None) -> str:
        """The key that links name a thing of this scope by. Raises `errors.ContractViolation`, `errors.ScopeRefused`
        for what `entity` would refuse."""
        owner, _, _ = self._owner(scope)
        return keys.object_key(
            label=label, scope_key=owner.key, kind=capture.safe_name(kind), name=capture.safe_name(name)
        )

    def link(
        self, type: str, source: tuple[str, str], target: tuple[str, str], *, scope: ScopeGiven | None = None
    ) -> Outcome:
        """Link two records of this scope, each given as (label, key): an eventId, a factId, or an `entity_key`. They
        need not be there yet. `type` is an UPPER_CASE name of yours. There is no order to undo a link."""

        def write() -> Line:
            owner, runtime, _ = self._owner(scope)
            order = capture.build_link_order(
                scope=owner, runtime=runtime, type=type, source=source, target=target, at=_now()
            )
            return self._opened_journal().append_order(order)

        return self._captured(write)

    def _captured(self, write: Callable[[], Line]) -> Outcome:
        """The edge to the host: an answer in any case, counted."""
        outcome: Outcome
        try:
            outcome = Durable(write().id)
        except errors.IngestError as problem:
            outcome = refusals.of(problem)
        except Exception as problem:  # noqa: BLE001 the edge to a host's turn: counted, logged, refused
            outcome = refusals.of(problem)
            _log.error(
                "capture failed (%s); the turn goes on", type(problem).__name__, extra={"action": "capture.failed"}
            )
        if isinstance(outcome, outcomes.Refused):
            self._count({"seen": 1, f"refused.{outcome.reason}": 1})
        else:
            self._count({"seen": 1, "captured": 1})
            self._start_dispatching()
        return outcome

    # -- recall ------------------------------------------------------------------------------------------------------

    def recall(
        self,
        query: str,
        *,
        session_id: str | None = None,
        scope: ScopeGiven | None = None,
        deadline_ms: float | None = None,
        limit: int | None = None,
    ) -> str:
        """What this scope remembers that bears on `query`, as one block of quoted text for the prompt; "" when there is
        nothing, or not in time. Nothing of the conversation `session_id` itself."""
        from producer.recall import formatting

        found = self.recall_memories(query, session_id=session_id, scope=scope, deadline_ms=deadline_ms, limit=limit)
        try:
            return formatting.format_context(
                [memory.quotable() for memory in found.memories], max_chars=self.config.recall_max_chars
            )
        except Exception as problem:  # noqa: BLE001 the edge to a host's turn
            _log.error(
                "recall failed (%s); the turn goes on", type(problem).__name__, extra={"action": "recall.failed"}
            )
            return ""

    def recall_memories(
        self,
        query: str,
        *,
        session_id: str | None = None,
        scope: ScopeGiven | None = None,
        deadline_ms: float | None = None,
        limit: int | None = None,
        skip_ids: Collection[str] = (),
        runtime: str | None = None,
    ) -> Recalled:
        """The same as records, with what was missing. Raises nothing: `failures` of the answer says why it is empty.
        `skip_ids` are left out, as if they were not there; `runtime` is that of the session, if not this host's."""
        from producer.recall.engine import Recalled

        try:
            owner, own_runtime, _ = self._owner(scope)
            session = None if session_id is None else Session.named(runtime or own_runtime, session_id)
            budget_ms = self.config.recall_deadline_ms if deadline_ms is None else deadline_ms
            found = self._opened_recall(budget_ms).recall(
                owner, query, session=session, deadline_ms=budget_ms, limit=limit, skip_ids=skip_ids
            )
        except errors.IngestError as problem:
            reason = refusals.of(problem).reason
            self._count({"asked": 1, f"recallRefused.{reason}": 1})
            return Recalled(partial=True, sources={"scope": reason})
        except Exception as problem:  # noqa: BLE001 the edge to a host's turn
            _log.error(
                "recall failed (%s); the turn goes on", type(problem).__name__, extra={"action": "recall.failed"}
            )
            self._count({"asked": 1, "recallRefused.internal": 1})
            return Recalled(partial=True, sources={"recall": "failed"})
        self._count({"asked": 1, "recalled": 1} if found.memories else {"asked": 1})
        return found

    def history(self, fact_id: str, *, scope: ScopeGiven | None = None) -> History:
        """Every version of a fact of this scope, the oldest first: what it said, since when, and what ended it. Asks
        the store, with its own timeout: not for the path of a turn. Raises nothing: `failure` says why it is empty."""

        def ask(store: Store, owner: scopes.Scope, now: str) -> History:
            from producer.recall import history

            return history.history(store, owner, fact_id, now=now)

        return self._looked_up(ask, scope)

    def look_up(self, id_: str, *, scope: ScopeGiven | None = None) -> History:
        """The fact or event of this scope with this id, whatever became of it: one version, or none. As `history`."""

        def ask(store: Store, owner: scopes.Scope, now: str) -> History:
            from producer.recall import history

            found = history.by_id(store, owner, id_, now=now)
            return history.History(versions=() if found is None else (found,))

        return self._looked_up(ask, scope)

    def _looked_up(self, ask: Callable[[Store, scopes.Scope, str], History], scope: ScopeGiven | None) -> History:
        from producer.recall.history import History

        try:
            owner, _, _ = self._owner(scope)
            with self._look_up_lock:
                if self._look_up_store is None:
                    self._look_up_store = self._opened_store(self.config.store_timeout_s)
                store = self._look_up_store
            return ask(store, owner, _now())
        except (errors.StoreUnavailable, errors.StoreThrottled):
            return History(failure="store_unavailable")
        except (errors.StoreDenied, errors.StoreRefused):
            return History(failure="store_refused")
        except errors.IngestError as problem:
            return History(failure=refusals.of(problem).reason)
        except Exception as problem:  # noqa: BLE001 the edge to a host
            _log.error("a look-up failed (%s)", type(problem).__name__, extra={"action": "look_up.failed"})
            return History(failure="internal")

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the journal and dispatch what is in it, before anything is captured. Raises `errors.JournalFailed`."""
        self._opened_journal()
        self._start_dispatching()

    def flush(self, deadline_s: float) -> bool:
        """Whether everything captured so far is settled (stored, dead or forgotten by receipt) within `deadline_s`."""
        dispatcher = self._start_dispatching()
        return dispatcher is not None and dispatcher.flush(deadline_s)

    def close(self, deadline_s: float = 2.0) -> bool:
        """Stop; whether all threads ended in time. What is not settled stays in the journal: another process, or the
        next start, delivers it."""
        until = time.monotonic() + deadline_s
        with self._lock:
            self._closed = True
            dispatcher, recall, journal = self._dispatcher, self._recall, self._journal
            opened, self._opened = self._opened, []
        ended = dispatcher is None or dispatcher.close(max(0.0, until - time.monotonic()))
        if recall is not None:
            recall.close()
        for close in opened:
            close()
        self._write_counts()
        if journal is not None:
            journal.close()
        return ended

    def status(self) -> dict[str, Any]:
        """Counts of this process, and how dispatch and recall do."""
        with self._lock:
            dispatcher, recall = self._dispatcher, self._recall
            counted = dict(self._counted)
        return {
            "counts": counted,
            "dispatcher": None if dispatcher is None else dataclasses.asdict(dispatcher.status()),
            "recall": None if recall is None else recall.status(),
        }

    def __enter__(self) -> AgentMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- parts, each made by the first call that needs it --------------------------------------------------------------

    def _owner(self, given: ScopeGiven | None) -> tuple[scopes.Scope, str, str]:
        """The scope of a call, its runtime and its kind of conversation. Fails closed."""
        chosen = self._scope if given is None else given
        if isinstance(chosen, scopes.Scope):
            return chosen, self._runtime, "local"
        if isinstance(chosen, scopes.HostContext):
            proven = scopes.scope_of(chosen, salt=self.config.scope_salt, salt_required=not self.config.local)
            return proven, chosen.runtime, scopes.conversation_kind(chosen)
        raise errors.ScopeRefused("scope_invalid", "no scope was given")

    def _opened_journal(self) -> Journal:
        with self._lock:
            if self._closed:
                raise errors.JournalFailed("this memory is closed")
            if self._journal is None:
                self._journal = Journal.open(
                    self.config.journal_dir,
                    max_bytes=self.config.journal_max_bytes,
                    reserve_bytes=self.config.journal_reserve_bytes,
                    segment_max_bytes=self.config.segment_max_bytes,
                    sync_budget_s=self.config.sync_budget_s,
                )
            return self._journal

    def _start_dispatching(self) -> Dispatcher | None:
        """The running dispatcher; None where this process does not dispatch, or cannot."""
        if not self._dispatches:
            return None
        try:
            if (running := self._dispatcher) is not None:
                running.start()  # the machine may have had no thread for it
                return running
            journal = self._opened_journal()
            with self._lock:
                if self._dispatcher is None and not self._closed:
                    self._dispatcher = self._made_dispatcher(journal)
                    self._dispatcher.start()
                return self._dispatcher
        except Exception as problem:  # noqa: BLE001 the edge to a host's turn: the line is durable, others deliver it
            _log.error(
                "the dispatcher does not start (%s); captures stay in the journal until another process delivers them",
                type(problem).__name__,
                extra={"action": "dispatch.not_started"},
            )
            return None

    def _made_dispatcher(self, journal: Journal) -> Dispatcher:
        from producer import (  # lazy: a host that only recalls, or never captures, pays nothing
            broker,
            dispatcher,
            receipt_source,
        )

        return dispatcher.Dispatcher(
            journal,
            _LazyPublisher(lambda: broker.KombuPublisher(self.config.broker_url)),
            receipt_source.RedisReceipts(self.config.redis_url, broker_url=self.config.broker_url),
            key=self.config.key,
            in_flight_events=self.config.in_flight_events,
            in_flight_bytes=self.config.in_flight_bytes,
            republish_after_s=self.config.republish_after_s,
        )

    def _opened_recall(self, deadline_ms: float) -> Recall:
        from producer.recall import engine, recent, tail

        with self._lock:
            if self._closed:
                raise errors.JournalFailed("this memory is closed")
            if self._recall is not None:
                return self._recall
        journal_tail = None
        try:
            journal_tail = tail.JournalTail(self._opened_journal())
        except errors.JournalFailed:
            pass  # recall does without
        cache = recent.RecentWrites(
            self.config.redis_url,
            tenant=self.config.tenant,
            cache_key=self.config.cache_key,
            ttl_s=self.config.recent_ttl_s,
            max_entries=self.config.recent_max_entries,
            timeout_s=engine.store_timeout_s(deadline_ms) / 2,
        )
        with self._lock:
            if self._recall is None:
                self._opened.append(cache.close)
                self._recall = engine.Recall(
                    lambda: self._opened_store(engine.store_timeout_s(deadline_ms)),
                    cache,
                    embedder=self._embedder(deadline_ms / 1000),
                    tail=journal_tail,
                    deadline_ms=self.config.recall_deadline_ms,
                    limit=self.config.recall_limit,
                    max_chars=self.config.recall_max_chars,
                )
            return self._recall

    def _opened_store(self, timeout_s: float) -> Store:
        """Called by the first search, on its own thread, and by the first look-up."""
        from producer import store

        opened = store.open_store(self.config.store_url, token=self.config.store_token, timeout_s=timeout_s)
        with self._lock:
            if not self._closed:
                self._opened.append(opened.close)
                return opened
        opened.close()
        return opened

    def _embedder(self, timeout_s: float) -> Any:
        from producer import embedding

        embedder = embedding.open_embedder(
            url=self.config.embed_url,
            model=self.config.embed_model,
            dimensions=self.config.embed_dimensions,
            token=self.config.embed_token,
            timeout_s=timeout_s,
        )
        if embedder is not None:
            self._opened.append(embedder.close)
        return embedder

    # -- counts ------------------------------------------------------------------------------------------------------

    def _count(self, changes: Mapping[str, int]) -> None:
        with self._lock:
            self._counted.update(changes)
            self._uncounted.update(changes)
            is_due = time.monotonic() - self._counted_at >= _COUNT_EVERY_S
        if is_due:
            self._write_counts()

    def _write_counts(self) -> None:
        """Add what is not written yet to the counts of the journal's directory; what is busy or broken waits."""
        with self._lock:
            changes, self._uncounted = self._uncounted, Counter()
            self._counted_at = time.monotonic()
        if changes and not counts.add(self.config.journal_dir, self._host, changes, wait_s=0.0):
            with self._lock:
                self._uncounted.update(changes)


def forget_group(
    owner: scopes.Scope,
    *,
    runtime: str,
    session_id: str | None = None,
    everything: bool = False,
    entity_key: str | None = None,
    label: str = "ENTITY",
) -> dict[str, str] | None:
    """The group of an order to forget; None when none is named. Raises `errors.ContractViolation` for more than one,
    `errors.ScopeRefused` for a session id that names no conversation."""
    groups = []
    if session_id is not None:
        groups.append({"session": Session.named(runtime, session_id).key(owner)})
    if everything:
        groups.append({"participant": owner.participant_scope_hash})
    if entity_key is not None:
        if label not in OBJECT_KEY:
            raise errors.ContractViolation("is not ENTITY, TASK or ARTIFACT", field="label")
        groups.append({OBJECT_KEY[label]: entity_key})
    if len(groups) > 1:
        raise errors.ContractViolation("names more than one group", field="group")
    return groups[0] if groups else None


class _LazyPublisher:
    """Imports kombu on the dispatcher's thread: it takes longer than a turn may wait."""

    def __init__(self, make: Callable[[], Publisher]) -> None:
        self._make = make
        self._made: Publisher | None = None

    def publish(self, publications: Sequence[Publication]) -> None:
        if self._made is None:
            self._made = self._make()
        self._made.publish(publications)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _now() -> str:
    return segments.iso_of_ms(int(time.time() * 1000))


def _after_fork_in_child() -> None:
    for memory in list(_all):
        memory._inherited += (memory._journal, memory._dispatcher, memory._recall, memory._opened)
        memory._start_fresh()


os.register_at_fork(after_in_child=_after_fork_in_child)
