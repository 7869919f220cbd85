"""Settling shared by the task threads of a worker: events that wait at the same time are settled together.

    events of single messages ──▶ lane of its label ──▶ one `driver.settle_all` ──▶ each thread its own result

A batch of a hundred needs as many requests as one event, so single events that come at once are made a batch here. One
that finds its lane free is settled at once; what arrives meanwhile waits, and goes together as the next batch. Episodes
and facts have a lane each: hardly a request of one serves the other, so that in one batch they would only wait for each
other. Chunks are batches already, and orders may take long: both are settled on their own.

Nobody pays for another one. Each delivery has its own deadline (`driver.settle_all`), a failed request fails those
whose it was, and a write without a complete answer makes unsure those whose rows were in it. When settling together
ends in an error that nobody foresaw, or its thread is torn out, each event is settled again by its own thread, where
its error is its own; it is unsure, since how far the first try came is not known.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from memory_tasks.lane import Call, Lane
from producer import errors
from producer.convergence import content, delivery

__all__ = ["JOINED_EVENTS", "SharedSettling"]

logger = logging.getLogger(__name__)

JOINED_EVENTS = 100  # what one upsert takes
_LINGER_S = 0.005  # between two messages that a busy worker takes from its broker

Result = delivery.Settled | delivery.Failed
Settle = Callable[[Sequence[delivery.Delivery], Sequence[float]], list[Result]]


def _lanes() -> Mapping[str, Lane]:
    # One batch in flight in each: a second was measured to double the requests and to settle hardly more events.
    return {label: Lane(1, linger_s=_LINGER_S) for label in (content.EPISODE, content.FACT)}


@dataclass(kw_only=True, eq=False, slots=True)
class SharedSettling:
    """Safe between threads. `settle_all` settles deliveries, each until its own time; it never raises what it knows."""

    settle_all: Settle
    lanes: Mapping[str, Lane] = field(default_factory=_lanes)  # by label

    def settle(self, deliveries: Sequence[delivery.Delivery], *, until: float) -> list[Result]:
        """What became of each. No request is sent for them after `until`."""
        if len(deliveries) != 1 or deliveries[0].kind != "event":
            return self.settle_all(deliveries, [until] * len(deliveries))
        lane = self.lanes[content.label_of(deliveries[0].event)]
        try:
            result: Result | None = lane.run(Call(deliveries[0], until), _pick, self._send)
        except errors.StoreUnavailable:  # the lane's word for a thread that was torn out: settling raises none
            result = None
        return [result or self._again(deliveries[0], until)]

    def _send(self, calls: list[Call]) -> None:
        found: Sequence[Result | None]
        try:
            found = self.settle_all([call.work for call in calls], [call.until for call in calls])
        except Exception as fault:
            if len(calls) == 1:
                raise
            kind = type(fault).__name__
            logger.error("action=settled_apart kind=%s events=%d; each goes alone, and is unsure", kind, len(calls))
            found = [None] * len(calls)
        for call, one in zip(calls, found, strict=True):
            call.answer, call.error = one, None

    def _again(self, one: delivery.Delivery, until: float) -> Result:
        (result,) = self.settle_all([one], [until])
        return dataclasses.replace(result, unsure=True)


def _pick(waiting: Sequence[Call]) -> list[Call]:
    return list(waiting[:JOINED_EVENTS])
