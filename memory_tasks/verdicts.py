"""From what became of each delivery of a message to its answer: receipts, what comes again, what is counted.

A delivery is *unsure* if its item says so, if the broker says redelivered, or if a write in it got no complete answer.

    ended, sure          receipt stored, forgotten or dead
    ended, unsure        later look: made once more, whole, after `MEMORY_STORE_LATE_S`. That one is final, and gives
                         the receipt, unless it was unsure by a redelivery or a write of its own
    not ended, unsure    receipt deferred, reason `unsure`, for at least that long; so is a later look that did not end
    not ended, sure      one event: Celery retry, at most `MEMORY_RETRY_LIMIT` of them, then deferred; a member of a
                         chunk: deferred at once, so that it comes back singly
    held                 deferred, reason `held` (`unsure:held` when unsure): the store is known to be away and nothing
                         was sent (memory_tasks.breaker). No word against the line: it may come back among others
    died                 deferred, reason `unsure`, with one death more; dead (`poison`) at `MEMORY_POISON_DEATHS`
    hung                 deferred, reason `unsure:hung`: its child was killed at the deadline. It goes to a child again
    checked              a dead line: forgotten, or dead as before. Where it could not be asked about there is no
                         receipt, since any other would take it out of the dead ones

A wait the store asked for that is longer than `MEMORY_RETRY_MAX_COUNTDOWN_S` goes to the journal as `delayS`. *Ended*
is settled, or refused for good. A wrong key of the store or a wrong setting is not: it is the deployment's fault, and
no event may be given up for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memory_tasks import children, counts, incoming, results
from producer import errors, message
from producer.convergence import delivery
from producer.receipt import HELD, UNSURE, UNSURE_HELD, UNSURE_HUNG, Receipt, State

__all__ = ["LATER_LOOK", "Again", "Answer", "Policy", "Trouble", "Verdicts", "backoff_s"]

LATER_LOOK = "later_look"
POISON = "poison"
_FAULT_OF_DEPLOYMENT = (errors.StoreDenied, errors.SettingsRefused)
_DEPLOYMENT_DELAY_S = 300.0  # a person must act first
_FIRST_COUNTDOWN_S = 2.0
_STORE_AWAY = (errors.StoreUnavailable, errors.StoreThrottled)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Bounds and waits, from the settings."""

    visibility_timeout_s: float = 600.0
    store_late_s: float = 60.0
    retry_max_countdown_s: float = 30.0
    retry_limit: int = 3
    poison_deaths: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """The message is to come again: a Celery retry with these arguments, signed with this key."""

    items: Sequence[message.Item]
    tries: int
    unsure_until: float | None  # set on a later look; see producer.message
    countdown_s: float
    reason: str  # a code; Flower shows it
    key: message.Key

    def arguments(self) -> dict[str, Any]:
        return message.arguments(self.items, tries=self.tries, unsure_until=self.unsure_until)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """An attempt at a line that failed."""

    line_hash: str
    id: str
    error: str  # a code


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one message led to. Each receipt stands with its journal's id."""

    receipts: Sequence[tuple[str, Receipt]]
    again: Again | None
    counted: Mapping[str, int]
    troubles: Sequence[Trouble] = ()
    known_dead: frozenset[str] = frozenset()  # lines that were dead before, as receipts say again
    stored: Sequence[str] = ()  # ids that are counted as stored, by their first delivery as far as it can know
    found: Mapping[str, str] = field(default_factory=dict)  # line hash -> id, counted as duplicates: settled already


def backoff_s(policy: Policy, tries: int, chance: Callable[[], float]) -> float:
    """Wait before the next Celery retry: growing, jittered down by up to half, at most the longest countdown."""
    return min(_FIRST_COUNTDOWN_S * 4.0**tries, policy.retry_max_countdown_s) * (0.5 + chance() / 2)


class Verdicts:
    """Collects the results of one message; `answer` tells what they come to."""

    def __init__(
        self,
        asked: incoming.Message,
        key: message.Key,
        policy: Policy,
        *,
        hold_s: float = 0.0,
        wall_s: Callable[[], float] = time.time,
        chance: Callable[[], float],
    ) -> None:
        """`hold_s`: the store is known to be away; no retry of Celery's before so long."""
        self._hold_s = hold_s
        self._asked = asked
        self._key = key
        self._policy = policy
        self._wall_s = wall_s
        self._chance = chance
        self._receipts: list[tuple[str, Receipt]] = []
        self._looks: list[message.Item] = []
        self._retry: Again | None = None
        self._counted: Counter[str] = Counter()
        self._troubles: list[Trouble] = []
        self._known_dead: set[str] = set()
        self._stored: list[str] = []
        self._found: dict[str, str] = {}

    def answer(self) -> Answer:
        again = self._retry
        if self._looks:
            late_s = self._policy.store_late_s
            again = Again(
                items=tuple(self._looks),
                tries=self._asked.tries,
                unsure_until=self._wall_s() + late_s,
                countdown_s=late_s,
                reason=LATER_LOOK,
                key=self._key,
            )
        counted = {name: number for name, number in self._counted.items() if number}
        return Answer(
            receipts=tuple(self._receipts),
            again=again,
            counted=counted,
            troubles=tuple(self._troubles),
            known_dead=frozenset(self._known_dead),
            stored=tuple(self._stored),
            found=dict(self._found),
        )

    def add(self, handled: results.Handled) -> None:
        """Take in what became of an item."""
        entry, result = handled.entry, handled.result
        if entry.item.check:
            self._checked(entry, result)
            return
        match result:
            case None:
                self._refuse(entry)
            case delivery.Settled():
                self._counted["cache_errors"] += result.cache_errors
                self._count(entry, result)
                self._end(entry, result.state, result.reason, unsure=self._is_unsure(entry) or result.unsure)
            case delivery.Failed():
                self._counted["cache_errors"] += result.cache_errors
                self._failed(entry, result.error, unsure=self._is_unsure(entry) or result.unsure)
            case results.Held():
                self._held(entry, result.delay_s)
            case results.Died():
                self._died(entry)
            case results.Fault():
                self._trouble(entry, result.kind)
                self._defer_unsure(entry)

    def outage(self, begins: bool) -> None:
        """Take in whether this message showed that the store is away."""
        self._counted["store_outages"] += begins

    def _is_unsure(self, entry: incoming.Entry) -> bool:
        """The item's own doubt is what a later look is for; only doubts of its own are left to it."""
        return self._asked.redelivered or (entry.item.unsure and not self._asked.is_look)

    def _refuse(self, entry: incoming.Entry) -> None:
        """A line that was refused before any request of this delivery.

        Earlier ones may have sent some: of a line that killed its children (`poison`), or whose key was allowed more
        then (`scope_not_allowed`). No later look is due for them. It is there to confirm what is said to be stored, and
        `dead` says only that we gave up; a write that lands late was allowed when it was sent, is found by an order to
        forget as any other, and a replay converges with it."""
        if entry.refusal == incoming.LATER_VERSION:
            self._defer(entry, entry.refusal, _DEPLOYMENT_DELAY_S)  # hosts were upgraded before their workers
        elif entry.line_hash:
            self._receipt(entry, State.DEAD, reason=entry.refusal)
        else:
            self._counted["damaged"] += 1

    def _failed(self, entry: incoming.Entry, problem: errors.IngestError, *, unsure: bool) -> None:
        code = incoming.code_of(problem)
        self._trouble(entry, code)
        if isinstance(problem, errors.Permanent) and not isinstance(problem, _FAULT_OF_DEPLOYMENT):
            self._end(entry, State.DEAD, code, unsure=unsure)
        elif unsure or self._asked.is_look:
            reason = UNSURE_HUNG if isinstance(problem, children.ChildHung) else UNSURE
            self._defer_unsure(entry, reason, at_least_s=max(_asked_wait_s(problem), self._hold_of(problem)))
        else:
            self._try_again(entry, problem, code)

    def _held(self, entry: incoming.Entry, delay_s: float) -> None:
        self._counted["held"] += 1
        if self._asked.is_look or self._is_unsure(entry):
            self._defer_unsure(entry, UNSURE_HELD, at_least_s=delay_s)
        else:
            self._defer(entry, HELD, delay_s)

    def _died(self, entry: incoming.Entry) -> None:
        """It killed its process. What the child had sent may still be applied: nobody can look, so time must pass."""
        self._counted["deaths"] += 1
        deaths = entry.item.deaths + 1
        self._trouble(entry, "died")
        if deaths >= self._policy.poison_deaths:
            self._receipt(entry, State.DEAD, reason=POISON, deaths=deaths)
        else:
            self._defer_unsure(entry, deaths=deaths)

    def _checked(self, entry: incoming.Entry, result: results.Result | None) -> None:
        self._counted["checked"] += 1
        match result:
            case results.Checked(forgotten=True):
                self._receipt(entry, State.FORGOTTEN, reason="")
            case results.Checked():
                if entry.line_hash:
                    self._known_dead.add(entry.line_hash)
                    self._receipts.append(
                        (entry.item.journal_id, self._made(entry, State.DEAD, reason=entry.item.reason))
                    )
            case delivery.Failed():
                self._counted[f"failed:{incoming.code_of(result.error)}"] += 1

    def _trouble(self, entry: incoming.Entry, code: str) -> None:
        self._counted[f"failed:{code}"] += 1
        if entry.line_hash:
            self._troubles.append(Trouble(line_hash=entry.line_hash, id=entry.id, error=code))

    def _end(self, entry: incoming.Entry, state: State, reason: str, *, unsure: bool) -> None:
        if unsure:
            self._counted["looks"] += 1
            self._looks.append(entry.item)
        else:
            self._receipt(entry, state, reason=reason)

    def _try_again(self, entry: incoming.Entry, problem: errors.IngestError, code: str) -> None:
        asked_s = _asked_wait_s(problem)
        if isinstance(problem, _FAULT_OF_DEPLOYMENT):
            self._defer(entry, code, _DEPLOYMENT_DELAY_S)
        elif (
            len(self._asked.items) == 1
            and self._asked.tries < self._policy.retry_limit
            and asked_s <= self._policy.retry_max_countdown_s
            and not isinstance(problem, errors.DeliveryTooOld)
            and not self._hold_of(problem)
        ):
            self._counted["retried"] += 1
            self._retry = Again(
                items=(entry.item,),
                tries=self._asked.tries + 1,
                unsure_until=None,
                countdown_s=max(backoff_s(self._policy, self._asked.tries, self._chance), asked_s),
                reason=code,
                key=self._key,
            )
        else:
            self._defer(entry, code, max(self._policy.retry_max_countdown_s, asked_s, self._hold_of(problem)))

    def _hold_of(self, problem: errors.IngestError) -> float:
        return self._hold_s if isinstance(problem, _STORE_AWAY) else 0.0

    def _defer_unsure(
        self, entry: incoming.Entry, reason: str = UNSURE, *, at_least_s: float = 0.0, deaths: int | None = None
    ) -> None:
        self._defer(entry, reason, max(self._policy.store_late_s, at_least_s), deaths=deaths)

    def _defer(self, entry: incoming.Entry, reason: str, delay_s: float, *, deaths: int | None = None) -> None:
        if not entry.line_hash:
            self._counted["damaged"] += 1
            return
        spread_s = delay_s * (1 + self._chance() / 5)
        self._receipt(entry, State.DEFERRED, reason=reason, delay_s=spread_s, deaths=deaths)

    def _receipt(
        self,
        entry: incoming.Entry,
        state: State,
        *,
        reason: str,
        delay_s: float = 0.0,
        deaths: int | None = None,
    ) -> None:
        if state is not State.STORED:  # those are counted when they are written, see `_count`
            self._counted[str(state)] += 1
            if reason:
                self._counted[f"{state}:{reason}"] += 1
        made = self._made(entry, state, reason=reason, delay_s=delay_s, deaths=deaths)
        self._receipts.append((entry.item.journal_id, made))

    @staticmethod
    def _made(
        entry: incoming.Entry, state: State, *, reason: str, delay_s: float = 0.0, deaths: int | None = None
    ) -> Receipt:
        return Receipt(
            line_hash=entry.line_hash,
            id=entry.id,
            state=state,
            reason=reason,
            delay_s=delay_s,
            deaths=entry.item.deaths if deaths is None else deaths,
        )

    def _count(self, entry: incoming.Entry, settled: delivery.Settled) -> None:
        if self._asked.is_look:  # counted when it was made first
            return
        if settled.state is State.STORED:
            # What an earlier delivery of this very line wrote, and did not live to tell, is no duplicate.
            is_first = not settled.duplicate or self._is_unsure(entry) or self._asked.tries > 0
            if is_first:
                self._counted[counts.STORED] += 1
                self._stored.append(entry.id)
            else:
                self._counted[counts.DUPLICATES] += 1
                self._found[entry.line_hash] = entry.id
        self._counted["conflicts"] += settled.conflict


def _asked_wait_s(problem: errors.IngestError) -> float:
    return problem.retry_after_s if isinstance(problem, errors.Retryable) else 0.0
