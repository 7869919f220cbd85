"""Expired facts leave the store: what one run of `memory.expire` does, and the message that asks for it. No Celery.

A fact has expired once its `validUntil` has passed, and recall shows it no more from that moment. For history it stays
`MEMORY_EXPIRED_KEPT_S` longer. Then it is removed as if its host had ordered it away: a `forgotten` mark on its id (by
"expired", at its validUntil) is written and found, and the id settled (ops/convergence.md). So a late replay never
brings it back, and what it had superseded stays superseded. What a late request brings back all the same is found and
removed by the next run. Facts only, and only records of ours: those of another adapter are its own to remove. An id
under which any content is still to be kept is left alone.

A run removes batches of up to `BATCH` facts until nothing is left, its time is over, or the store fails; it may be cut
off anywhere and may run beside others. Message, task `memory.expire`, keyword arguments, JSON:

    {"tenant": name, "orderedAtMs": unix ms}

signed as `memory.ingest` is (`producer.message`), with a key of that tenant. Whoever may write for a tenant may ask:
what has expired is said by the records and the worker's own clock, so that asking early or again removes nothing more.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from memory_tasks import clock, counts, expiry_turns, incoming, redis_errors, tenants
from producer import errors, identity, keys, message
from producer.convergence import content, delivery, marks
from producer.convergence.content import FACT
from producer.journal import segments
from producer.scope import Scope
from producer.store import port

__all__ = ["BATCH", "COUNTED", "RUN_S", "TASK_NAME", "Expiry", "Outcome", "arguments"]

logger = logging.getLogger(__name__)

TASK_NAME = "memory.expire"
BATCH = 100  # facts settled together
RUN_S = 20.0  # a run holds a thread that deliveries want too; the next one goes on
COUNTED = "expired"

_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)  # of others a mark may never be found again (RushDB and "constructor")
_Place = tuple[Any, str | None]  # factId and scopeKey


def arguments(tenant: str, *, at_ms: int) -> dict[str, Any]:
    """The keyword arguments of `memory.expire`."""
    return {"tenant": tenant, "orderedAtMs": at_ms}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to. `ids`: of a dry run, what it found. `kept`: records that could not be removed alone: other
    content under their id is to stay, or the store refuses. `more`: it ended before it had seen all. `problem`: why, as
    a code; "" when its time was over."""

    removed: int = 0
    kept: int = 0
    more: bool = False
    problem: str = ""
    ids: tuple[str, ...] = ()


class Settles(Protocol):
    """What a run needs of `settler.Settler`."""

    def settle(
        self, tenant: str, deliveries: Sequence[delivery.Delivery], *, until: float
    ) -> list[delivery.Settled | delivery.Failed]: ...

    def store(self, tenant: str, *, until: float) -> port.Store: ...


class Expiry:
    """Removes expired facts of any tenant. Safe between threads. Owns nothing; `client` is redis-py."""

    def __init__(
        self,
        *,
        tenants: tenants.Tenants,
        settler: Settles,
        client: Any,
        turns: expiry_turns.Turns,
        kept_s: float,
        visibility_timeout_s: float,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._tenants = tenants
        self._settler = settler
        self._client = client
        self._turns = turns
        self._kept_s = kept_s
        self._visibility_timeout_s = visibility_timeout_s
        self._wall_s = wall_s

    def receive(self, given: Mapping[str, Any], headers: Mapping[str, Any], *, received_s: float) -> Outcome | None:
        """Do what one message asks for; None when no known key of that tenant signed it: counted, and gone."""
        try:
            tenant = self._verified(given, headers)
        except errors.SignatureRefused as refusal:
            logger.warning("action=message_refused task=expire reason=%s; counted, not retried", refusal.reason)
            self._count_refused(refusal.reason)
            return None
        outcome = self.run(tenant, until=received_s + self._visibility_timeout_s / 2)
        if outcome.more:
            try:
                self._turns.again_soon(self._client, tenant)
            except errors.RedisUnavailable:
                logger.warning("action=turn_not_shortened tenant=%s; the rest is removed at the next one", tenant)
        return outcome

    def run(self, tenant: str, *, until: float) -> Outcome:
        """Remove what is to go of one tenant. No request is sent after `until` on the delivery clock."""
        began_s = time.monotonic()
        outcome = self._removed(tenant, until)
        logger.log(
            logging.WARNING if outcome.problem else logging.INFO,
            "action=expired tenant=%s removed=%d kept=%d more=%s problem=%s ms=%d",
            tenant,
            outcome.removed,
            outcome.kept,
            outcome.more,
            outcome.problem or "-",
            (time.monotonic() - began_s) * 1000,
        )
        if outcome.removed:
            self._count_removed(tenant, outcome.removed)
        return outcome

    def look(self, tenant: str, *, limit: int) -> Outcome:
        """What a run would remove, up to so many; changes nothing. Raises what the store raises."""
        store = self._settler.store(tenant, until=float("inf"))
        due = self._due()
        found: dict[str, None] = {}
        kept = seen = 0
        while len(found) <= limit:
            page = store.find(FACT, _where(due), skip=seen, limit=port.FIND_LIMIT)
            seen += len(page.records)
            going, staying = _judged(store, page.records, due)
            kept += len(staying)
            found |= {str(record.get("factId")): None for record in going}
            if not page.records or seen >= page.total:
                break
        return Outcome(kept=kept, ids=tuple(found)[:limit], more=len(found) > limit)

    def _removed(self, tenant: str, until: float) -> Outcome:
        until = min(until, clock.now_s() + RUN_S)
        store = self._settler.store(tenant, until=until)
        due = self._due()
        removed = kept = 0
        try:
            while True:
                page = store.find(FACT, _where(due), skip=kept, limit=port.FIND_LIMIT)
                if not page.records:
                    return Outcome(removed=removed, kept=kept)
                for start in range(0, len(page.records), BATCH):
                    going, staying = _judged(store, page.records[start : start + BATCH], due)
                    results = self._settled(tenant, going, until)
                    refused = {place for place, result in results.items() if _is_refused(result)}
                    # Who finds it gone already, and its mark there, has not removed it.
                    removed += sum(isinstance(one, delivery.Settled) and not one.duplicate for one in results.values())
                    kept += len(staying) + sum(_place(record) in refused for record in going)
                    for result in results.values():
                        if isinstance(result, delivery.Failed) and not _is_refused(result):
                            raise result.error
        except errors.DeliveryTooOld:
            return Outcome(removed=removed, kept=kept, more=True)
        except errors.IngestError as problem:
            return Outcome(removed=removed, kept=kept, more=True, problem=incoming.code_of(problem))

    def _settled(
        self, tenant: str, records: Sequence[port.Record], until: float
    ) -> dict[_Place, delivery.Settled | delivery.Failed]:
        """What became of each fact that these are records of, as if its host had ordered it away."""
        if not records:
            return {}
        orders = {_place(record): _order(record) for record in records}
        results = self._settler.settle(tenant, list(orders.values()), until=until)
        return dict(zip(orders, results, strict=True))

    def _due(self) -> str:
        """The latest `validUntil` that goes now."""
        return segments.iso_of_ms(max(0, int((self._wall_s() - self._kept_s) * 1000)))

    def _verified(self, given: Mapping[str, Any], headers: Mapping[str, Any]) -> str:
        key_id = message.verify(given, headers, self._tenants.secret_of)
        tenant, at_ms = given.get("tenant"), given.get("orderedAtMs")
        if set(given) != {"tenant", "orderedAtMs"} or not isinstance(at_ms, int) or isinstance(at_ms, bool):
            raise errors.SignatureRefused("malformed")
        if tenant != self._tenants.tenant_of(key_id):
            raise errors.SignatureRefused("other_tenant")
        return str(tenant)

    def _count_removed(self, tenant: str, number: int) -> None:
        try:
            with redis_errors.translated(), self._client.pipeline(transaction=True) as pipeline:
                now_ms = int(self._wall_s() * 1000)
                counts.add(pipeline, counts.key_name(tenant), {COUNTED: number}, at_ms=now_ms)
                pipeline.execute()
        except errors.RedisUnavailable:
            logger.warning("action=count_lost count=%s number=%d; Redis did not take it", COUNTED, number)

    def _count_refused(self, reason: str) -> None:
        try:
            with redis_errors.translated():
                self._client.hincrby(counts.REFUSED, reason, 1)
        except errors.RedisUnavailable:
            logger.warning("action=count_lost reason=%s; Redis did not take it", reason)


def _where(due: str) -> dict[str, Any]:
    return {"validUntil": {"$lte": due}, "contentHash": {"$exists": True}, "scopeKey": {"$exists": True}}


def _judged(store: port.Store, records: Sequence[port.Record], due: str) -> tuple[list[port.Record], list[port.Record]]:
    """Which of these go, and which stay: those whose mark would not count for them, and those under whose id there is
    content in their scope that is to be kept."""
    named = [record for record in records if _scope_of(record) is not None]
    contents: defaultdict[_Place, list[port.Record]] = defaultdict(list)
    if ids := sorted({str(record.get("factId")) for record in named}):
        for one in _all(store, {"factId": {"$in": ids}}):
            contents[_place(one)].append(one)
    over = {place for place, found in contents.items() if all(_is_over(one, due) for one in found)}
    going = [record for record in named if _place(record) in over]
    gone = {record.id for record in going}
    return going, [record for record in records if record.id not in gone]


def _place(record: port.Record) -> _Place:
    return record.get("factId"), content.scope_of(record)


def _scope_of(record: port.Record) -> Scope | None:
    """The scope of a record whose id could be ours and whose five fields make its scopeKey."""
    id_ = record.get("factId")
    if not isinstance(id_, str) or not _ID.fullmatch(id_):
        return None
    try:
        scope = Scope.of_fields({name: record.get(name) for name in keys.SCOPE_FIELDS})
    except errors.ScopeRefused:
        return None
    return scope if scope.key == record.get("scopeKey") else None


def _is_over(record: port.Record, due: str) -> bool:
    try:
        return identity.normal_time(record.get("validUntil")) <= due
    except errors.ContractViolation:  # none, or another adapter's
        return False


def _is_refused(result: delivery.Settled | delivery.Failed) -> bool:
    """Whether the store will refuse this one again."""
    return isinstance(result, delivery.Failed) and isinstance(result.error, errors.Permanent)


def _order(record: port.Record) -> delivery.Delivery:
    scope = _scope_of(record)
    assert scope is not None
    until = identity.normal_time(record.get("validUntil"))
    order = {"what": "forget", "target": record.get("factId"), "scope": scope.fields(), "at": until}
    return delivery.Delivery(line_hash="", id=marks.EXPIRY, kind="order", event=order, appended_at=until)


def _all(store: port.Store, where: port.Where) -> Iterator[port.Record]:
    skip = 0
    while True:
        page = store.find(FACT, where, skip=skip)
        yield from page.records
        skip += len(page.records)
        if not page.records or skip >= page.total:
            return
