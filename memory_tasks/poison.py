"""Items that may kill whoever handles them, in children of the worker, and who is to blame when a child dies.

    doubtful items ──▶ one child, together ──answers──▶ done
                            │ dies
                            ▼
                       each alone, in a child ──answers──▶ done
                            │ dies
                            ▼
                       Died: one death more for this item, and for no other

An item with a death is alone from the start. A child that has to be killed at the deadline is no death: the item is
deferred and comes back, alone. How many deaths are poison is for `verdicts` to say.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from memory_tasks import children, frames, incoming, tenants
from memory_tasks.results import Died, Fault, Handled, Result
from producer import errors, message
from producer.convergence import delivery

__all__ = ["Apart", "Asks"]

logger = logging.getLogger(__name__)


class Asks(Protocol):
    """What this needs of `children.Children`."""

    def ask(self, request: Mapping[str, Any], *, until: float) -> dict[str, Any]: ...


class Apart:
    """Handles items in children. Safe between threads."""

    def __init__(self, pool: Asks) -> None:
        self._pool = pool

    def handle(
        self, items: Sequence[message.Item], grant: tenants.Grant, *, received_s: float, until: float
    ) -> list[Handled]:
        """What became of each item, in their order."""

        def ask(group: Sequence[message.Item]) -> list[Handled]:
            request = frames.request(group, grant, received_s=received_s, until=until)
            answer = self._pool.ask(request, until=until)
            if "fault" in answer:
                return _all(group, Fault(kind=answer["fault"]))
            return frames.handled_of(answer, group)

        def handle(group: Sequence[message.Item]) -> list[Handled]:
            try:
                return ask(group)
            except children.ChildDied as death:
                if len(group) == 1:
                    return _all(group, Died())
                logger.warning(
                    "action=batch_killed_child items=%d how=%s; each is handled alone now",
                    len(group),
                    death.how.replace(" ", ":"),
                )
                return [handled for item in group for handled in handle([item])]
            except errors.IngestError as problem:
                unsure = isinstance(problem, errors.DeliveryTooOld)  # it may have been killed in the middle
                return _all(group, delivery.Failed(error=problem, unsure=unsure))

        together = [item for item in items if not item.deaths]
        clean = iter(handle(together) if together else ())
        return [handle([item])[0] if item.deaths else next(clean) for item in items]


def _all(group: Sequence[message.Item], result: Result) -> list[Handled]:
    return [Handled(entry=incoming.unopened(item), result=result) for item in group]
