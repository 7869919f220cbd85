"""The receipt of an order to forget: every place, and what is still pending there; a place that is away is told too.

    done                    nothing of it is there
    pending_until           it is gone by `until`, with nobody doing anything more than running what always runs
    pending_until_drained   it goes when what holds it is next delivered: then it finds the mark
    unknown                 nobody can tell from here; the detail says why

    place                what it is
    store                records that the order's own where finds and that are no younger than its mark
    recent_writes        entries in Redis
    queues               messages that wait, that workers have, or that wait for a retry; each finds the mark
    dead_letters         dead lines of this host's journal
    dead_letters_listed  the listing in Redis, which names lines of other hosts by id and code only
    journal              lines of this host that are not settled
    journal_bytes        settled lines of this host that are on disk until compaction
    prompts              prompts that a hook saved for its Stop
    quarantine           damaged bytes of this host's journal
    other_journals       journals of other hosts that Redis knows of
    backups              what was copied away

An order that is not settled has a receipt too: then nothing of it is done. Saved prompts are removed here; all else
only reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memory_tasks import dead_letters, redis_errors
from memory_tasks import status as status_module
from memory_tasks.forget_survey import Here, Survey, names
from memory_tasks.settings import Settings
from producer import errors, receipt, receipt_source, redis_url
from producer.journal import Journal, prompts, quarantine, segments
from producer.receipt import State

__all__ = ["Place", "PlaceState", "places"]

_NOT_SETTLED = "the order waits in this host's journal"


class PlaceState(StrEnum):
    DONE = "done"
    PENDING_UNTIL = "pending_until"
    PENDING_UNTIL_DRAINED = "pending_until_drained"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One place of a receipt. `count`: how much of it is there; None where nobody can count."""

    place: str
    state: PlaceState
    count: int | None = 0
    until_ms: int = 0  # of PENDING_UNTIL
    detail: str = ""

    def row(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "state": str(self.state),
            "count": self.count,
            "until": segments.iso_of_ms(self.until_ms) if self.until_ms else None,
            "detail": self.detail,
        }


def places(
    settings: Settings,
    found: Survey,
    here: Here,
    *,
    settled_ms: int | None,
    forgotten: Iterable[Mapping[str, Any]],
    is_group: bool,
) -> list[Place]:
    """The receipt of an order that was settled then, or is not (None). `found`: a survey made after that. `forgotten`:
    the episodes that it took, as records or events; their saved prompts are removed."""
    now = int(time.time() * 1000)
    listed, redis_problem = _listing(settings)
    return [
        _store_place(found, settled_ms),
        _recent_place(settings, found, settled_ms, now),
        _queues_place(settings, settled_ms),
        _dead_place(here),
        _listed_place(here, listed, redis_problem),
        _journal_place(here),
        _bytes_place(here, now),
        _prompts_place(here.journal, forgotten, is_group=is_group),
        _quarantine_place(here.journal),
        _others_place(settings, here.journal.journal_id, listed),
        Place(
            place="backups",
            state=PlaceState.UNKNOWN,
            count=None,
            detail="not reachable from here: copies of the store, of Redis and of journals are removed by hand, or age",
        ),
    ]


def _store_place(found: Survey, settled_ms: int | None) -> Place:
    if problem := found.unreachable.get("store"):
        return Place(place="store", state=PlaceState.UNKNOWN, count=None, detail=problem)
    left = len(found.records) + found.sessions
    if settled_ms is None:
        return Place(place="store", state=PlaceState.PENDING_UNTIL_DRAINED, count=left, detail=_NOT_SETTLED)
    kept = f"{len(found.newer)} captured after the order stay" if found.newer else ""
    if not left:
        return Place(place="store", state=PlaceState.DONE, detail=kept)
    return Place(
        place="store",
        state=PlaceState.PENDING_UNTIL_DRAINED,
        count=left,
        detail=f"deliveries under way take them: look again with --dry-run. {kept}".strip(),
    )


def _recent_place(settings: Settings, found: Survey, settled_ms: int | None, now: int) -> Place:
    if problem := found.unreachable.get("recent_writes"):
        return Place(place="recent_writes", state=PlaceState.UNKNOWN, count=None, detail=problem)
    if not found.entries:
        return Place(place="recent_writes", state=PlaceState.DONE)
    until_ms = now + settings.producer.recent_ttl_s * 1000
    return Place(
        place="recent_writes",
        state=PlaceState.PENDING_UNTIL,
        count=len(found.entries),
        until_ms=until_ms,
        detail="they age",
    )


# -- the broker, and what Redis knows ----------------------------------------------------------------------------------


def _queues_place(settings: Settings, settled_ms: int | None) -> Place:
    """What was sent before the mark may be applied for `MEMORY_STORE_LATE_S`, and is looked at again after it. What a
    worker died with comes back after the visibility timeout, and is looked at again too."""
    given = settings.producer
    try:
        waiting, hides = _in_flight(given.redis_url, given.broker_url)
    except (errors.RedisUnavailable, errors.BrokerUnavailable, errors.Permanent) as problem:
        return Place(place="queues", state=PlaceState.UNKNOWN, count=None, detail=str(problem))
    if settled_ms is None:
        return Place(place="queues", state=PlaceState.PENDING_UNTIL_DRAINED, count=waiting, detail=_NOT_SETTLED)
    back_s = settings.visibility_timeout_s + settings.restore_interval_s if waiting or hides else 0.0
    return Place(
        place="queues",
        state=PlaceState.PENDING_UNTIL,
        count=waiting,
        until_ms=settled_ms + int((back_s + given.store_late_s) * 1000),
        detail="of anybody: what is in flight finds the mark, and what was being written is looked at again",
    )


def _in_flight(redis_url_: str, broker_url: str) -> tuple[int, bool]:
    """Messages that wait, that workers have, and that wait for a retry; and whether the broker does not tell all."""
    source = receipt_source.RedisReceipts(redis_url_, broker_url=broker_url)
    try:
        waiting = source.queue_length()
    finally:
        source.close()
    if not redis_url.is_redis(broker_url):
        return waiting, True
    client = status_module.open_redis(broker_url)
    try:
        with redis_errors.translated():
            return waiting + int(client.hlen("memory:unacked")), False
    finally:
        client.close()


def _listing(settings: Settings) -> tuple[list[dead_letters.DeadLetter], str]:
    try:
        client = status_module.open_redis(settings.producer.redis_url)
    except errors.Permanent as problem:
        return [], str(problem)
    try:
        return dead_letters.read(client, settings.producer.tenant, limit=settings.dead_letters_kept), ""
    except errors.RedisUnavailable as problem:
        return [], str(problem)
    finally:
        client.close()


def _dead_place(here: Here) -> Place:
    dead = here.in_state(State.DEAD)
    if not dead:
        return Place(place="dead_letters", state=PlaceState.DONE)
    return Place(
        place="dead_letters",
        state=PlaceState.PENDING_UNTIL_DRAINED,
        count=len(dead),
        detail="workers were asked about them, and have not answered yet",
    )


def _listed_place(here: Here, listed: Iterable[dead_letters.DeadLetter], problem: str) -> Place:
    if problem:
        return Place(place="dead_letters_listed", state=PlaceState.UNKNOWN, count=None, detail=problem)
    ours = {one.entry.hash.hex() for one in here.covered}
    left = [one for one in listed if one.line_hash in ours or one.journal_id != here.journal.journal_id]
    if not left:
        return Place(place="dead_letters_listed", state=PlaceState.DONE)
    return Place(
        place="dead_letters_listed",
        state=PlaceState.PENDING_UNTIL_DRAINED,
        count=len(left),
        detail="of anybody, ids and codes without text: each host asks about its own at its start and every day",
    )


def _others_place(settings: Settings, own: str, listed: Iterable[dead_letters.DeadLetter]) -> Place:
    try:
        client = status_module.open_redis(settings.producer.redis_url)
        try:
            prefix = receipt.list_name("")
            known = {name.removeprefix(prefix) for name in names(client, f"{prefix}*")}
        finally:
            client.close()
    except errors.IngestError as problem:
        return Place(place="other_journals", state=PlaceState.UNKNOWN, count=None, detail=str(problem))
    known |= {one.journal_id for one in listed}
    return Place(
        place="other_journals",
        state=PlaceState.PENDING_UNTIL_DRAINED,
        count=len(known - {own}),
        detail="with receipts or dead letters in Redis; others are not known from here. What any of them holds finds "
        "the mark when it next drains, and leaves its disk with its segment",
    )


# -- this host ---------------------------------------------------------------------------------------------------------


def _journal_place(here: Here) -> Place:
    if not here.open:
        return Place(place="journal", state=PlaceState.DONE)
    return Place(
        place="journal",
        state=PlaceState.PENDING_UNTIL_DRAINED,
        count=len(here.open),
        detail="not recalled any more; each ends as forgotten when it is delivered",
    )


def _bytes_place(here: Here, now: int) -> Place:
    if not here.settled:
        return Place(place="journal_bytes", state=PlaceState.DONE)
    return Place(
        place="journal_bytes",
        state=PlaceState.PENDING_UNTIL,
        count=len(here.settled),
        until_ms=here.gone_ms(now),
        detail="while an agent, or a host's process, drains this journal",
    )


def _prompts_place(journal: Journal, forgotten: Iterable[Mapping[str, Any]], *, is_group: bool) -> Place:
    pairs = {(str(one.get("externalSessionId")), str(one.get("sourceEventId"))) for one in forgotten}
    prompts.remove_prompts(journal.directory, pairs)
    kept = prompts.kept(journal.directory)
    if not kept or not is_group:
        return Place(place="prompts", state=PlaceState.DONE)
    return Place(
        place="prompts",
        state=PlaceState.PENDING_UNTIL,
        count=len(kept),
        until_ms=int((max(kept) + prompts.MAX_AGE_S) * 1000),
        detail="of anybody: one whose turn never ended names nobody; after a day the next prompt sweeps it",
    )


def _quarantine_place(journal: Journal) -> Place:
    kept = quarantine.kept(journal.fs, journal.directory)
    if not kept:
        return Place(place="quarantine", state=PlaceState.DONE)
    return Place(
        place="quarantine",
        state=PlaceState.UNKNOWN,
        count=len(kept),
        detail="damaged bytes name nobody: look at them, or remove the directory's files",
    )
