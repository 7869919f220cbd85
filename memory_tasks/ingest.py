"""What a worker does with one message.

    message ─▶ signature ─▶ breaker ─▶ lines, contract, grant, settling (handling) ─▶ verdicts ─▶ receipts, or again

Nothing here sleeps or retries, and no request is sent to the store once half of the visibility timeout has passed since
the message was received, by a clock that counts suspended time: another worker may have it by then.

What arrives unsure, or killed a process before, is handled `apart`, in a child of this process: from the first look at
its line. So are checks of dead lines. What arrives sure and kills this process comes back redelivered, which is unsure.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memory_tasks import breaker, handling, incoming, receipts, results, tenants, verdicts
from producer import errors, message, receipt
from producer.convergence import delivery

__all__ = ["Ingest"]

logger = logging.getLogger(__name__)


class Ingest:
    """Handles messages; safe between threads. Owns nothing: its parts are closed by who made them."""

    def __init__(
        self,
        *,
        tenants: tenants.Tenants,
        here: handling.Handles,
        apart: handling.Handles,
        breakers: breaker.Breakers,
        receipts: receipts.Receipts,
        policy: verdicts.Policy,
        wall_s: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._tenants = tenants
        self._here = here
        self._apart = apart
        self._breakers = breakers
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
            self._receipts.send(answer, key=grant.key, tenant=grant.tenant)
        except errors.RedisUnavailable:
            return self._unreceipted(asked, grant, answer)
        return answer.again

    def handle(self, asked: incoming.Message, grant: tenants.Grant) -> verdicts.Answer:
        """Settle what the message holds and say what became of each item; sends no receipt."""
        began_s = time.monotonic()
        gate = self._breakers.of(grant.tenant)
        turn = gate.enter()
        if turn is None:
            found = self._verdicts(asked, grant)
            held = results.Held(delay_s=gate.hold_s())
            handled = [results.Handled(entry=incoming.unopened(item), result=held) for item in asked.items]
        else:
            answered, asked_wait_s, begins = None, 0.0, False
            try:
                handled = self._handled(asked, grant)
                answered, asked_wait_s = _of_store(handled)
            finally:
                begins = gate.leave(turn, answered=answered, asked_wait_s=asked_wait_s)
            found = self._verdicts(asked, grant, hold_s=gate.hold_s())
            found.outage(begins)
        for one in handled:
            found.add(one)
        answer = found.answer()
        logger.info(
            "action=handled tenant=%s ids=%s lines=%d tries=%d look=%s redelivered=%s again=%s ms=%d %s",
            grant.tenant,
            ",".join(one.entry.id for one in handled[:3]),
            len(handled),
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
        for item in asked.items:
            # Not opened: it may be what the error came from.
            found.add(results.Handled(entry=incoming.unopened(item), result=results.Fault(kind=type(fault).__name__)))
        self._receipts.send(found.answer(), key=grant.key, tenant=grant.tenant)

    def _handled(self, asked: incoming.Message, grant: tenants.Grant) -> list[results.Handled]:
        """What became of each item, doubtful ones in a child."""
        until = asked.received_s + self._policy.visibility_timeout_s / 2
        is_doubtful = [asked.redelivered or item.unsure or item.deaths > 0 or item.check for item in asked.items]
        parts = {}
        for doubtful, way in ((False, self._here), (True, self._apart)):
            items = [item for item, is_ in zip(asked.items, is_doubtful, strict=True) if is_ is doubtful]
            parts[doubtful] = iter(way.handle(items, grant, received_s=asked.received_s, until=until) if items else ())
        return [next(parts[doubtful]) for doubtful in is_doubtful]

    def _verdicts(self, asked: incoming.Message, grant: tenants.Grant, *, hold_s: float = 0.0) -> verdicts.Verdicts:
        return verdicts.Verdicts(
            asked, grant.key, self._policy, hold_s=hold_s, wall_s=self._wall_s, chance=self._chance
        )

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


def _of_store(handled: Sequence[results.Handled]) -> tuple[bool | None, float]:
    """Whether the store answered, by what became of a message; None when that does not tell. And the wait it asked
    for."""
    failed, answered, asked_wait_s = False, False, 0.0
    for one in handled:
        match one.result:
            case delivery.Failed(error=errors.StoreUnavailable() | errors.StoreThrottled() as problem):
                failed, asked_wait_s = True, max(asked_wait_s, problem.retry_after_s)
            case delivery.Failed(error=errors.StoreRefused() | errors.StoreDenied()):
                answered = True
            case delivery.Settled(state=receipt.State.STORED | receipt.State.FORGOTTEN):
                answered = True
    return (True if answered else False if failed else None), asked_wait_s
