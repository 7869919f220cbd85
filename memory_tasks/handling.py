"""Opening items and settling what they hold, in whatever process: a worker does it for sure items, a child of it for
doubtful ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from memory_tasks import checking, incoming, tenants
from memory_tasks.results import Checked, Handled
from producer import errors, message
from producer.convergence import delivery

__all__ = ["Handles", "Handling", "Settles"]


class Handles(Protocol):
    def handle(
        self, items: Sequence[message.Item], grant: tenants.Grant, *, received_s: float, until: float
    ) -> list[Handled]:
        """What became of each item, in their order. No request is sent after `until` on the delivery clock."""
        ...


class Settles(Protocol):
    """What handling needs of `settler.Settler`."""

    def settle(
        self, tenant: str, deliveries: Sequence[delivery.Delivery], *, until: float
    ) -> list[delivery.Settled | delivery.Failed]: ...

    def forgotten(self, tenant: str, asked: Sequence[checking.Question], *, until: float) -> list[bool]: ...


class Handling:
    """Handles items here. Safe between threads."""

    def __init__(self, settler: Settles, *, poison_deaths: int) -> None:
        self._settler = settler
        self._poison_deaths = poison_deaths

    def handle(
        self, items: Sequence[message.Item], grant: tenants.Grant, *, received_s: float, until: float
    ) -> list[Handled]:
        checks = [item for item in items if item.check]
        entries = [
            incoming.open_item(item, grant, poison_deaths=self._poison_deaths, received_s=received_s)
            for item in items
            if not item.check
        ]
        live = [entry.delivery for entry in entries if entry.delivery is not None]
        results = iter(self._settler.settle(grant.tenant, live, until=until) if live else ())
        opened = iter(entries)
        checked = iter(self._checked(checks, grant, until) if checks else ())
        handled = []
        for item in items:
            if item.check:
                handled.append(next(checked))
            else:
                entry = next(opened)
                handled.append(Handled(entry=entry, result=None if entry.delivery is None else next(results)))
        return handled

    def _checked(self, items: Sequence[message.Item], grant: tenants.Grant, until: float) -> list[Handled]:
        entries = [incoming.unopened(item) for item in items]
        questions = [checking.question_of(item, grant) for item in items]
        asked = [question for question in questions if question is not None]
        try:
            answers = iter(self._settler.forgotten(grant.tenant, asked, until=until) if asked else ())
        except errors.IngestError as problem:
            return [Handled(entry=entry, result=delivery.Failed(error=problem)) for entry in entries]
        return [
            Handled(entry=entry, result=Checked(forgotten=question is not None and next(answers)))
            for entry, question in zip(entries, questions, strict=True)
        ]
