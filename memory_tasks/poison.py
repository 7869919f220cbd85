"""Items that may kill whoever handles them, in children of the worker, and who is to blame when a child dies.

    doubtful items ──▶ one child, together ──answers──▶ done
                            │ dies
                            ▼
                       each alone, in a child ──answers──▶ done
                            │ dies
                            ▼
                       Died: one death more for this item, and for no other

What several threads bring while all children are busy goes to the next one together, up to a chunk of it: a hundred
single events cost a child hardly more than one. An item with a death is alone from the start. A child that has to be
killed at the deadline is no death: its items are deferred as `unsure:hung`, come back in messages of their own, still
unsure, and so to a child again; never to a thread of the worker, which nobody could kill. How many deaths are poison is
for `verdicts` to say.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from memory_tasks import children, clock, frames, incoming, tenants
from memory_tasks.lane import Call, Lane
from memory_tasks.results import Died, Fault, Handled, Result
from producer import errors, message
from producer.convergence import delivery

__all__ = ["Apart", "Asks"]

logger = logging.getLogger(__name__)


class Asks(Protocol):
    """What this needs of `children.Children`."""

    @property
    def limit(self) -> int: ...

    def ask(self, request: Mapping[str, Any], *, until: float) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Group:
    items: Sequence[message.Item]
    received_s: float


class _GroupDied(Exception):
    """A child died over several items."""


class Apart:
    """Handles items in children. Safe between threads."""

    def __init__(self, pool: Asks) -> None:
        self._pool = pool
        self._guard = threading.Lock()
        self._lanes: dict[tuple[Any, ...], Lane] = {}  # as many as there are sorts of keys

    def handle(
        self, items: Sequence[message.Item], grant: tenants.Grant, *, received_s: float, until: float
    ) -> list[Handled]:
        """What became of each item, in their order."""
        together = [item for item in items if not item.deaths]
        clean = iter(self._together(together, grant, received_s, until) if together else ())
        return [self._alone(item, grant, received_s, until) if item.deaths else next(clean) for item in items]

    def _together(
        self, items: Sequence[message.Item], grant: tenants.Grant, received_s: float, until: float
    ) -> list[Handled]:
        def send(calls: list[Call]) -> None:
            self._send(calls, grant)

        call = Call(_Group(items, received_s), until)
        try:
            answered: list[Handled] = self._lane(grant).run(call, _pick, send)
            return answered
        except _GroupDied:
            return [self._alone(item, grant, received_s, until) for item in items]
        except children.ChildDied:
            return _all(items, Died())
        except errors.IngestError as problem:
            return _all(items, _failed(problem))

    def _alone(self, item: message.Item, grant: tenants.Grant, received_s: float, until: float) -> Handled:
        try:
            (handled,) = self._ask([item], grant, received_s, until)
        except children.ChildDied:
            (handled,) = _all([item], Died())
        except errors.IngestError as problem:
            (handled,) = _all([item], _failed(problem))
        return handled

    def _send(self, calls: Sequence[Call], grant: tenants.Grant) -> None:
        """Hand what several callers brought to one child, and each its own answer or error."""
        live = []
        for call in calls:
            if clock.now_s() >= call.until:
                call.error = errors.DeliveryTooOld("no child process was free in time")
            else:
                live.append(call)
        if not live:
            return
        items = [item for call in live for item in call.work.items]
        try:
            handled = iter(
                self._ask(
                    items,
                    grant,
                    min(call.work.received_s for call in live),
                    min(call.until for call in live),
                )
            )
        except children.ChildDied as death:
            if len(items) == 1:
                live[0].error = death
                return
            logger.warning("action=batch_killed_child items=%d; each is handled alone now", len(items))
            for call in live:
                call.error = _GroupDied()
        except errors.IngestError as problem:
            for call in live:
                call.error = copy.copy(problem)  # each thread raises its own
        else:
            for call in live:
                call.answer, call.error = [next(handled) for _ in call.work.items], None

    def _ask(
        self, items: Sequence[message.Item], grant: tenants.Grant, received_s: float, until: float
    ) -> list[Handled]:
        answer = self._pool.ask(frames.request(items, grant, received_s=received_s, until=until), until=until)
        if "fault" in answer:
            return _all(items, Fault(kind=answer["fault"]))
        return frames.handled_of(answer, items)

    def _lane(self, grant: tenants.Grant) -> Lane:
        key = (grant.tenant, grant.agents, grant.profiles, grant.operator)
        with self._guard:
            return self._lanes.setdefault(key, Lane(self._pool.limit))


def _pick(waiting: Sequence[Call]) -> list[Call]:
    """The oldest, and those behind it that fit into a chunk."""
    picked, count = [waiting[0]], len(waiting[0].work.items)
    for call in waiting[1:]:
        if count + len(call.work.items) <= message.CHUNK_LINES:
            picked.append(call)
            count += len(call.work.items)
    return picked


def _all(items: Sequence[message.Item], result: Result) -> list[Handled]:
    return [Handled(entry=incoming.unopened(item), result=result) for item in items]


def _failed(problem: errors.IngestError) -> delivery.Failed:
    # One that was too old may have been killed in the middle of a write.
    return delivery.Failed(error=problem, unsure=isinstance(problem, errors.DeliveryTooOld))
