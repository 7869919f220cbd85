"""What a worker does with one message.

    message ─▶ signature ─▶ lines, contract, grant (incoming) ─▶ settle ─▶ verdicts ─▶ receipts, or again

Nothing here sleeps or retries, and no request is sent to the store once half of the visibility timeout has passed since
the message was received, by a clock that counts suspended time: another worker may have it by then.

`settle` is how deliveries are settled, in this process or in a child of it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from memory_tasks import incoming, receipts, tenants, verdicts
from producer import errors, message
from producer.convergence import delivery

__all__ = ["Ingest", "Settle"]

logger = logging.getLogger(__name__)


class Settle(Protocol):
    def __call__(
        self, tenant: str, deliveries: Sequence[delivery.Delivery], *, until: float
    ) -> list[verdicts.Result]: ...


class Ingest:
    """Handles messages; safe between threads. Owns nothing: its parts are closed by who made them."""

    def __init__(
        self,
        *,
        tenants: tenants.Tenants,
        settle: Settle,
        receipts: receipts.Receipts,
        policy: verdicts.Policy,
        wall_s: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._tenants = tenants
        self._settle = settle
        self._receipts = receipts
        self._policy = policy
        self._wall_s = wall_s
        self._chance = chance  # 0 to 1: spreads what would otherwise come back at once

    def receive(
        self, arguments: Mapping[str, Any], headers: Mapping[str, Any], *, redelivered: bool, received_s: float
    ) -> verdicts.Again | None:
        """Do all that one message asks for. Returns what is to come again, or None when the message is done with.

        A message that no known key signed is counted and gone: no journal of ours waits for it. A receipt that cannot
        be sent is no loss either: its journal publishes the line again.
        """
        try:
            key_id = message.verify(arguments, headers, self._tenants.secret_of)
            asked = incoming.Message.of(arguments, redelivered=redelivered, received_s=received_s)
        except errors.SignatureRefused as refusal:
            self._refuse(refusal.reason)
            return None
        grant = self._tenants.grant_of(key_id)
        answer = self.handle(asked, grant)
        try:
            self._receipts.send(answer.receipts, key=grant.key, tenant=grant.tenant, counted=answer.counted)
        except errors.RedisUnavailable:
            return self._unreceipted(asked, grant, answer)
        return answer.again

    def handle(self, asked: incoming.Message, grant: tenants.Grant) -> verdicts.Answer:
        """Settle what the message holds and say what became of each item; sends no receipt."""
        began_s = time.monotonic()
        entries = self._opened(asked, grant)
        live = [entry.delivery for entry in entries if entry.delivery is not None]
        until = asked.received_s + self._policy.visibility_timeout_s / 2
        results = iter(self._settle(grant.tenant, live, until=until) if live else ())
        found = self._verdicts(asked, grant)
        for entry in entries:
            if entry.delivery is None:
                found.refuse(entry)
            else:
                found.add(entry, next(results))
        answer = found.answer()
        logger.info(
            "action=handled tenant=%s ids=%s lines=%d tries=%d look=%s redelivered=%s again=%s ms=%d %s",
            grant.tenant,
            ",".join(entry.id for entry in entries[:3]),
            len(entries),
            asked.tries,
            asked.is_look,
            asked.redelivered,
            answer.again.reason if answer.again else "-",
            (time.monotonic() - began_s) * 1000,
            " ".join(f"{name}={number}" for name, number in sorted(answer.counted.items())),
        )
        return answer

    def answer_fault(self, arguments: Mapping[str, Any], headers: Mapping[str, Any], fault: Exception) -> None:
        """Answer a message that ended in an error nobody foresaw: all of it is deferred as unsure.

        Raises `errors.SignatureRefused` or `errors.RedisUnavailable`: there is nobody to tell, or no way to.
        """
        grant = self._tenants.grant_of(message.verify(arguments, headers, self._tenants.secret_of))
        asked = incoming.Message.of(arguments, redelivered=False, received_s=0.0)
        found = self._verdicts(asked, grant)
        for entry in self._opened(asked, grant):
            if entry.delivery is None:
                found.refuse(entry)
            else:
                found.fault(entry, fault)
        answer = found.answer()
        self._receipts.send(answer.receipts, key=grant.key, tenant=grant.tenant, counted=answer.counted)

    def _opened(self, asked: incoming.Message, grant: tenants.Grant) -> list[incoming.Entry]:
        return [
            incoming.open_item(item, grant, poison_deaths=self._policy.poison_deaths, received_s=asked.received_s)
            for item in asked.items
        ]

    def _verdicts(self, asked: incoming.Message, grant: tenants.Grant) -> verdicts.Verdicts:
        return verdicts.Verdicts(asked, grant.key, self._policy, wall_s=self._wall_s, chance=self._chance)

    def _refuse(self, reason: str) -> None:
        logger.warning("action=message_refused reason=%s; counted, not retried", reason)
        try:
            self._receipts.refused(reason)
        except errors.RedisUnavailable:
            logger.warning("action=count_lost reason=%s; Redis did not take it", reason)

    def _unreceipted(
        self, asked: incoming.Message, grant: tenants.Grant, answer: verdicts.Answer
    ) -> verdicts.Again | None:
        """The work is done and cannot be told. One event comes again, within its retries; a chunk only for what was to
        come again anyway, and the journals publish the rest again."""
        if answer.again is not None or len(asked.items) > 1 or asked.tries >= self._policy.retry_limit:
            logger.warning(
                "action=receipts_lost tenant=%s receipts=%d; their journals publish these lines again",
                grant.tenant,
                len(answer.receipts),
            )
            return answer.again
        return verdicts.Again(
            items=asked.items,
            tries=asked.tries + 1,
            unsure_until=asked.unsure_until,
            countdown_s=verdicts.backoff_s(self._policy, asked.tries, self._chance),
            reason="receipts_unavailable",
            key=grant.key,
        )
