"""Settling an id: look at its content and its marks, mend, and look again until nothing is left to mend.

Mending is: deleting what was forgotten, folding duplicates into the smallest record id, writing the verdict that
follows from the marks, adding links and vectors. The last look, with nothing left to mend, is the receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from producer import errors
from producer.convergence import content, graph, links, marks
from producer.convergence.content import MARK
from producer.convergence.marks import Mark
from producer.convergence.requests import CacheDrop, Delete, Find, HasVector, Request, SetVector, Steps, Upsert
from producer.store import port

__all__ = ["Seen", "by_scope", "look", "settle", "spare", "verdict"]

_NONE = -1  # the embedder has no vector for this text


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One look at an id: its content (of every scope), the marks on it, and those on other targets watched with it."""

    records: Sequence[port.Record]
    marks: Sequence[Mark]
    watched: Sequence[Mark] = ()

    def holds(self, row: Mapping[str, port.Value]) -> bool:
        """Whether this content is there in its scope."""
        return any(
            r.get("contentHash") == row["contentHash"] and r.get("scopeKey") == row["scopeKey"] for r in self.records
        )


def look(label: str, id_: str, watch: Sequence[str] = ()) -> Steps[Seen]:
    """Look once. `watch`: further targets whose marks matter to the caller."""
    found, on_id, *others = yield (
        Find(label=label, key=content.id_name(label), value=id_),
        Find(label=MARK, key="target", value=id_),
        *(Find(label=MARK, key="target", value=target) for target in watch),
    )
    watched = [mark for records in others for mark in marks.read(records)]
    return Seen(records=found, marks=marks.read(on_id), watched=watched)


def settle(label: str, id_: str, watch: Sequence[str] = (), first: Seen | None = None) -> Steps[Seen]:
    """Return the last look. `first`: a look that was just made, with no write since."""
    asked: dict[str, int] = {}
    seen = first
    while True:
        if seen is None:
            seen = yield from look(label, id_, watch)
        mends: list[Request] = []
        stand: list[port.Record] = []
        for scope_key, records in by_scope(seen.records).items():
            said = marks.standing(seen.marks, scope_key)
            if said.forgotten:
                mends += [Delete(label=label, record_id=r.id) for r in records]
                mends.append(CacheDrop(scope_key=scope_key, id=id_))
                continue
            for number, same in enumerate(content.copies(records)):
                keep, rest = same[0], spare(same)
                mends += [Delete(label=label, record_id=r.id) for r in rest]
                says = verdict(label, said, stands=number == 0)
                if any(keep.get(name) != value for name, value in says.items()):
                    row = content.whole(label, keep, says)
                    mends.append(Upsert(label=label, merge_by=content.merge_by(label), row=row))
                if number == 0:
                    stand.append(keep)
        if mends:
            yield tuple(mends)
        elif (
            not (yield from graph.mend(label, stand))
            and not (yield from links.mend(label, stand, (*seen.marks, *seen.watched)))
            and not (yield from _vectors(label, stand, asked))
        ):
            return seen
        seen = None


def by_scope(records: Iterable[port.Record]) -> dict[str, list[port.Record]]:
    """Records of one id, by scope; without those of other adapters that name no whole scope."""
    scopes: dict[str, list[port.Record]] = {}
    for record in records:
        scope_key = content.scope_of(record)
        if scope_key is not None:
            scopes.setdefault(scope_key, []).append(record)
    return scopes


def spare(same: Sequence[port.Record]) -> Sequence[port.Record]:
    """Of the copies of one content those that are not needed."""
    return same[1:]


def verdict(label: str, said: marks.Standing, *, stands: bool) -> dict[str, port.Value]:
    """What a record must say of itself. `stands`: it is the content that stands of those with its id and scope."""
    says: dict[str, port.Value] = {}
    if label != content.EPISODE:
        says["active"] = stands and not said.claims and said.retracted_at is None
        if said.retracted_at is not None:
            says["retractedAt"] = said.retracted_at
    if said.claims:
        at, by = max(said.claims)
        says[content.BY[label]] = by
        says["supersededAt"] = at
    return says


def _vectors(label: str, stand: Sequence[port.Record], asked: dict[str, int]) -> Steps[bool]:
    """Give current records their external vector. Refused twice: `errors.SettingsRefused`: the index is missing or of
    another size, and no event is given up for that. `asked`: how often, by id."""
    name = content.TEXT.get(label)
    if name is None:
        return False
    current = [
        r
        for r in stand
        if r.get(name)
        and r.get("active") is not False
        and r.get(content.BY[label]) is None
        and asked.get(r.id) != _NONE
    ]
    if not current:
        return False
    there = yield tuple(HasVector(label=label, property=name, record_id=r.id) for r in current)
    missing = [record for record, has in zip(current, there, strict=True) if not has]
    if not missing:
        return False
    taken = yield tuple(
        SetVector(label=label, property=name, record_id=r.id, text=str(r.properties[name])) for r in missing
    )
    for record, done in zip(missing, taken, strict=True):
        if done is None:
            asked[record.id] = _NONE
        elif not done:
            asked[record.id] = asked.get(record.id, 0) + 1
            if asked[record.id] > 1:
                raise errors.SettingsRefused("MEMORY_EMBED_DIMENSIONS", "no vector index of the store takes this one")
    return True
