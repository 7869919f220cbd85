"""Sending receipts: signed entries in one bounded Redis list per journal, with what is counted and listed beside them.

One transaction per message: receipts, counts and dead letters are all there or none; what its answers tell (who was
first, how many attempts a line took, what is over a bound) follows at once. A receipt that is lost (Redis
forgot it, or the list was full) costs an idempotent redelivery and nothing else, so the list is bounded and expires.

Redis keys of the whole service, beside Celery's own:

    memory:receipts:<journalId>                     expires `MEMORY_RECEIPTS_TTL_S` after the last receipt
    memory:recent:<tenant>:<scopeKey>               expires; see producer.recall.recent
    memory:counts:<tenant>, memory:refused          without a time to live; see memory_tasks.counts
    memory:stored:<tenant>                          expires; see memory_tasks.firsts
    memory:dead:<tenant>, memory:dead:<tenant>:at   without a time to live; see memory_tasks.dead_letters
    memory:trouble:<tenant> and two beside it       expire; see memory_tasks.troubles
    memory:workers                                  expires; see memory_tasks.lease
    memory:expiry:<tenant>                          expires; see memory_tasks.expiry_turns
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from memory_tasks import counts, dead_letters, firsts, redis_errors, troubles, verdicts
from producer import errors, message, receipt

__all__ = ["KEYS_WITHOUT_TTL", "Receipts"]

# What a check for leaking keys may find without a time to live (prefixes).
KEYS_WITHOUT_TTL = ("memory:counts:", "memory:refused", "memory:dead:")


class Receipts:
    """Sends receipts through a redis-py client that is shared between threads. Raises `errors.RedisUnavailable`."""

    def __init__(
        self,
        client: Any,
        *,
        ttl_s: int,
        dead_letters_kept: int,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._ttl_s = ttl_s
        self._dead_letters_kept = dead_letters_kept
        self._wall_s = wall_s

    def send(self, answer: verdicts.Answer, *, key: message.Key, tenant: str) -> None:
        """Send receipts, each to its journal's list, count, and list. Signed with the key that signed the message."""
        now_ms = int(self._wall_s() * 1000)
        entries: defaultdict[str, list[str]] = defaultdict(list)
        for journal_id, one in answer.receipts:
            entries[journal_id].append(receipt.encode(one, journal_id=journal_id, key=key))
        dead = [
            dead_letters.DeadLetter(
                id=one.id,
                line_hash=one.line_hash,
                journal_id=journal_id,
                reason=one.reason,
                at_ms=now_ms,
                deaths=one.deaths,
            )
            for journal_id, one in answer.receipts
            if one.state is receipt.State.DEAD
        ]
        receipts = [one for _, one in answer.receipts]
        well = [one.line_hash for one in receipts if one.state in (receipt.State.STORED, receipt.State.FORGOTTEN)]
        ended = [one for one in receipts if one.state in receipt.TERMINAL and one.line_hash not in answer.known_dead]
        counted = answer.counted
        if any(one.state is receipt.State.STORED for one in receipts):
            counted = {**counted, counts.LAST_STORED: now_ms}
        with redis_errors.translated(), self._client.pipeline(transaction=True) as pipeline:
            if answer.stored:
                firsts.add(pipeline, tenant, answer.stored, at_ms=now_ms)
            for journal_id, texts in entries.items():
                name = receipt.list_name(journal_id)
                pipeline.rpush(name, *texts)
                pipeline.ltrim(name, -receipt.MAX_LISTED, -1)
                pipeline.expire(name, self._ttl_s)
            counts.add(pipeline, counts.key_name(tenant), counted, at_ms=now_ms)
            dead_letters.add(pipeline, tenant, (one for one in dead if one.line_hash not in answer.known_dead))
            dead_letters.add_known(pipeline, tenant, (one for one in dead if one.line_hash in answer.known_dead))
            dead_letters.discard(pipeline, tenant, well)
            troubles.add(pipeline, tenant, answer.troubles, at_ms=now_ms)
            if ended:
                troubles.ask(pipeline, tenant, ended)
            answers = pipeline.execute()
        with contextlib.suppress(errors.RedisUnavailable):  # receipts are sent; the rest is for people to look at
            if answer.stored and answers[0] < len(answer.stored):
                self._recount(tenant, stored=answers[0] - len(answer.stored), at_ms=now_ms)
            if ended:
                self._count_untold(tenant, answer, ended, answers[-1], at_ms=now_ms)
                failed = [one.line_hash for one in answer.troubles]
                troubles.end(self._client, tenant, ended, answers[-1], failed=failed, at_ms=now_ms)
            if dead:
                dead_letters.trim(self._client, tenant, keep=self._dead_letters_kept)
            if answer.troubles:
                troubles.trim(self._client, tenant)

    def _count_untold(
        self,
        tenant: str,
        answer: verdicts.Answer,
        ended: Sequence[receipt.Receipt],
        known: Sequence[Any],
        *,
        at_ms: int,
    ) -> None:
        """Of lines that were found settled and had failed before, an earlier delivery may have written them: it could
        not tell. Those that were never counted as stored are no duplicates."""
        failed = {one.line_hash for one, trouble in zip(ended, known, strict=True) if trouble is not None}
        untold = [id_ for line_hash, id_ in answer.found.items() if line_hash in failed]
        if untold:
            with redis_errors.translated(), self._client.pipeline(transaction=True) as pipeline:
                firsts.add(pipeline, tenant, untold, at_ms=at_ms)
                added = pipeline.execute()[0]
            self._recount(tenant, stored=added, at_ms=at_ms)

    def _recount(self, tenant: str, *, stored: int, at_ms: int) -> None:
        """So many more are stored, and so many fewer duplicates; or the other way round."""
        with redis_errors.translated(), self._client.pipeline(transaction=True) as pipeline:
            changes = {counts.STORED: stored, counts.DUPLICATES: -stored}
            counts.add(pipeline, counts.key_name(tenant), changes, at_ms=at_ms)
            pipeline.execute()

    def refused(self, reason: str) -> None:
        """Count a message that no tenant answers for."""
        with redis_errors.translated():
            self._client.hincrby(counts.REFUSED, reason, 1)
