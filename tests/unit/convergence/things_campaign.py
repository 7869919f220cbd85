"""Random schedules of things and ordered links on the weak store, with facts that are superseded, retracted or expire.

I1 one record per key and content; none of what was forgotten or has expired
I3 of each key the version with the greatest (time, hash) is current, in every order, and no other; none if that one
   was forgotten
I4 from the moment a version was stored, no reader sees an earlier one; a forgotten one only while writes of killed
   deliveries may still land, as in the model: the later look removes it
I6 nothing that another scope orders links, ends or changes what is ours
I7 an edge between all ends that stand, and none that nobody ordered
I9 a fact is current unless it was superseded, retracted, forgotten or has expired, however it is linked
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from producer import keys
from producer.convergence import content, deliver, marks, objects, reader, settle
from producer.convergence.delivery import Delivery
from producer.convergence.requests import Steps
from producer.store import port
from tests.unit.convergence.campaign import APPENDED_AT, SCOPE_KEYS, SCOPES, Interleaving, fact_delivery, time_of
from tests.unit.convergence.weak_store import Line, WeakStore

__all__ = ["Things"]

ABOUT = "ABOUT"
THINGS = ("ENTITY", "TASK")
End = tuple[str, str]  # label, key


@dataclass(frozen=True)
class _Link:
    scope: str
    source: End
    target: End


def _key(label: str, scope: str = "ours") -> str:
    return keys.object_key(label=label, scope_key=SCOPE_KEYS[scope], kind="kind", name="name")


def _version(label: str, scope: str, number: int, at: float) -> dict[str, Any]:
    return {
        "what": "entity",
        "label": label,
        "kind": "kind",
        "name": "name",
        "properties": {"number": number},
        "sourceEventId": f"write {number}",
        "trustClass": "trusted",
        "provenance": "test",
        "scope": SCOPES[scope],
        "runtime": "custom",
        "at": time_of(at),
    }


def _link(link: _Link) -> dict[str, Any]:
    ends = {name: {"label": label, "key": key} for name, (label, key) in (("from", link.source), ("to", link.target))}
    return {"what": "link", "type": ABOUT, **ends, "scope": SCOPES[link.scope], "at": APPENDED_AT}


def _expire(fact_id: str) -> Steps[None]:
    """What a scheduled task does when a fact has outlived its time."""
    scope_key = SCOPE_KEYS["ours"]
    yield from marks.write(
        marks.Mark(what=marks.FORGOTTEN, target=fact_id, by="expired", scope_key=scope_key, at=APPENDED_AT)
    )
    yield from settle.settle(content.FACT, fact_id)


class Things(Interleaving):
    """Versions of two things of ours and of a neighbour's, three facts, and the links between them."""

    def __init__(self, seed: int, *, later: bool = True, lie: float = 0.01, store: WeakStore | None = None) -> None:
        super().__init__(seed, later=later, lie=lie, store=store)
        rng = self.rng
        self.versions: dict[End, list[tuple[str, str]]] = {}  # of a key: (time, hash)
        orders: list[tuple[str, Any]] = []
        for scope, label, count in (("ours", "ENTITY", rng.randint(1, 4)), ("ours", "TASK", rng.randint(0, 2))):
            for number in range(count):
                order = _version(label, scope, number, rng.choice((0, number, 1, 5)))
                row = objects.row_of(order)[1]
                said = (str(row["validFrom"]), str(row["contentHash"]))
                self.versions.setdefault((label, _key(label)), []).append(said)
                orders.append(("version", order))
        orders += [("version", _version("ENTITY", "theirs", 0, 0))] if rng.random() < 0.3 else []
        self.facts = [self._fact(f"{n}" * 64, None) for n in range(2)]
        self.facts.append(self._fact("2" * 64, rng.choice((None, "1" * 64))))
        theirs = {**self.facts[0], "scope": "theirs", "text": "theirs"}  # the same id
        orders += [("fact", fact) for fact in (*self.facts, theirs)]
        ends = [(content.FACT, str(fact["key"])) for fact in self.facts] + [(label, _key(label)) for label in THINGS]
        pairs = [rng.sample(ends, 2) for _ in range(rng.randint(1, 4))]
        self.links = {_Link("ours", source, target) for source, target in pairs}
        foreign = _Link("theirs", *rng.sample(ends, 2))  # names what is ours
        orders += [("link", link) for link in sorted([*self.links, foreign], key=repr)]
        self.gone: set[str] = set()  # ids and hashes that were forgotten
        self.ended: set[str] = {str(fact["supersedes"]) for fact in self.facts} - {"None"}
        orders += self._endings()
        jobs = [order for order in orders for _ in range(rng.randint(1, 2))]
        rng.shuffle(jobs)
        self.jobs = [(kind, what, [], False) for kind, what in jobs]
        self._stored: list[tuple[End, tuple[str, str]]] = []

    def _fact(self, key: str, supersedes: str | None) -> dict[str, Any]:
        return {"key": key, "supersedes": supersedes, "scope": "ours", "at": int(key[0]), "text": f"ours {key[0]}"}

    def _endings(self) -> list[tuple[str, Any]]:
        rng = self.rng
        found: list[tuple[str, Any]] = []
        fact_id = str(rng.choice(self.facts)["key"])
        match rng.randrange(8):
            case 0:
                self.gone.add(fact_id)
                found.append(("expire", fact_id))
            case 1:
                self.ended.add(fact_id)
                found.append(("order", {"what": "retract", "target": fact_id}))
            case 2:
                hash_ = rng.choice(self.versions[("ENTITY", _key("ENTITY"))])[1]
                self.gone.add(hash_)
                found.append(("order", {"what": "forget", "target": hash_}))
            case 3:
                self.gone |= {hash_ for _, hash_ in self.versions[("ENTITY", _key("ENTITY"))]}
                found.append(("order", {"what": "forget", "group": {"entityKey": _key("ENTITY")}}))
            case 4:
                self.gone |= {hash_ for said in self.versions.values() for _, hash_ in said}
                self.gone |= {str(fact["key"]) for fact in self.facts}
                group = {"participant": SCOPES["ours"]["participantScopeHash"]}
                found.append(("order", {"what": "forget", "group": group}))
        return found

    def start(self, kind: str, what: Any) -> Line:
        if kind == "expire":
            return Line(self.store, _expire(what))
        if kind == "fact":
            return Line(self.store, deliver.deliver(fact_delivery(what)))
        order: Mapping[str, Any] = what
        if kind == "link":
            order = _link(what)
        elif kind == "order":
            order = {**what, "scope": SCOPES["ours"], "at": APPENDED_AT}
        given = Delivery(line_hash="", id=f"{kind} order", kind="order", event=order, appended_at=APPENDED_AT)
        return Line(self.store, deliver.deliver(given))

    def completed(self, kind: str, what: Any) -> None:
        if kind == "version" and what["scope"] == SCOPES["ours"]:
            row = objects.row_of(what)[1]
            place = (what["label"], _key(what["label"]))
            self._stored.append((place, (str(row["validFrom"]), str(row["contentHash"]))))

    def problem(self, in_flight: bool) -> list[str]:
        self._seen_changes = self.store.changes
        return list(self._beaten(self.gone if in_flight else set()))

    def _beaten(self, excused: set[str]) -> Iterator[str]:
        for label in THINGS:
            current = self._current(label)
            for place, stored in self._stored:
                if place[0] == label:
                    for said in self.versions[place]:
                        if said < stored and said[1] in current and said[1] not in excused:
                            yield f"I4 {label}: a version that a stored one has beaten"

    def _current(self, label: str) -> list[str]:
        found = self.store.records(label, scopeKey=SCOPE_KEYS["ours"], active=True)
        return [str(r.get(content.id_name(label))) for r in reader.keep(found)]

    def check(self) -> list[str]:
        return [*self._check_things(), *self._check_facts(), *self._check_edges()]

    def _check_things(self) -> Iterator[str]:
        for (label, key), said in self.versions.items():
            records = self.store.records(label, **{content.OBJECT_KEY[label]: key})
            hashes = sorted(str(r.get("contentHash")) for r in records)
            if hashes != sorted({hash_ for _, hash_ in said} - self.gone):
                yield f"I1 {label}: {len(hashes)} records"
            best = max(said)[1]
            if self._current(label) != [hash_ for hash_ in (best,) if hash_ not in self.gone]:
                yield f"I3 {label}: current {self._current(label)}, expected {best}"

    def _check_facts(self) -> Iterator[str]:
        ids = {str(fact["key"]) for fact in self.facts}
        there = self.store.records(content.FACT, scopeKey=SCOPE_KEYS["ours"])
        if sorted(str(r.get("factId")) for r in there) != sorted(ids - self.gone):
            yield f"I1 {len(there)} facts"
        if set(self._current(content.FACT)) != ids - self.gone - self.ended:
            yield f"I9 current {self._current(content.FACT)}"
        theirs = self.store.records(content.FACT, scopeKey=SCOPE_KEYS["theirs"], active=True)
        if len(theirs) != 1:
            yield f"I6 {len(theirs)} facts of theirs"

    def _check_edges(self) -> Iterator[str]:
        wanted = {
            (ABOUT, source.id, target.id)
            for link in self.links
            for source in self._standing(*link.source)
            for target in self._standing(*link.target)
        }
        there = {edge for edge in self.store.edges if edge[0] == ABOUT}
        if wanted - there:
            yield f"I7 {len(wanted - there)} links are missing"
        if there - wanted:
            yield f"I6 {len(there - wanted)} links that nobody of ours ordered"

    def _standing(self, label: str, key: str) -> list[port.Record]:
        name = content.ID.get(label) or content.OBJECT_KEY[label]
        return self.store.records(label, **{name: key}, scopeKey=SCOPE_KEYS["ours"])
