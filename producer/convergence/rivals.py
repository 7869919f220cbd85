"""Rivals: all who superseded the same target compete, and one of each tree is current, the same one in every order.

The greatest (at, id) stands and marks the others; who had superseded a loser competes on with the winner. A target is
an id, or a line: the key of a place where a later value replaces an earlier one without naming it.
"""

from __future__ import annotations

from collections.abc import Collection

from producer.convergence import marks, settle
from producer.convergence.content import MARK
from producer.convergence.requests import CacheDrop, Find, Steps, together

__all__ = ["chained", "compete"]


def compete(label: str, over: str, scope_key: str) -> Steps[None]:
    """Return when of all that superseded `over`, and their superseders, one stands."""
    todo, done = [over], set()
    while todo:
        looks = yield tuple(Find(label=MARK, key="target", value=target) for target in todo)
        lost: dict[str, None] = {}
        lines = []
        for target, found in zip(todo, looks, strict=True):
            claims = marks.claims(marks.read(found), scope_key)
            if (target, claims) in done or not claims:
                continue
            done.add((target, claims))
            best = max(claims)
            for claim in sorted(claims - {best}):
                lines.append(_lose(label, claim, best, claims, scope_key))
                lost[claim[1]] = None
        yield from together(lines)
        todo = chained(lost)


def chained(losers: Collection[str]) -> list[str]:
    """Whose superseders compete on with the winner."""
    return list(losers)


def _lose(
    label: str, claim: marks.Claim, best: marks.Claim, claims: frozenset[marks.Claim], scope_key: str
) -> Steps[None]:
    loser = claim[1]
    (found,) = yield (Find(label=MARK, key="target", value=loser),)
    beaten_by = marks.claims(marks.read(found), scope_key) & claims
    if not any(other > claim for other in beaten_by):  # marked by a greater one: enough
        at, by = best
        yield from marks.write(marks.Mark(what=marks.SUPERSEDED, target=loser, by=by, scope_key=scope_key, at=at))
    else:  # whoever marked it may have died before it took it out of the recent writes
        yield (CacheDrop(scope_key=scope_key, id=loser),)
    yield from settle.settle(label, loser)
