"""What must be there in the end: a plain dictionary model, a function of the set of lines and not of their order.

It is written from the promises and knows nothing of marks that were found, of looks or of stores: who supersedes what
is one dictionary, and it is closed under "of all who claim one target the greatest (time, id) stands".

    one record per id and content; none of what was forgotten
    current: the smallest content of an id that nobody's claim, retraction or end by event names
    of all that claim one target one stands; who claims a loser competes with the winner
    edges between all ends that are there
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from producer import identity, keys
from tests.histories.saying import Said

__all__ = ["Content", "Expected", "expected"]

LABELS = {"fact": "MEMORY_FACT", "episode": "EPISODE"}
THING_KEYS = {"ENTITY": "entityKey", "TASK": "taskKey", "ARTIFACT": "artifactKey"}

Content = tuple[str, str, str]  # label, id (of a thing: its key), content hash


@dataclass(kw_only=True)
class Expected:
    """What one scope must hold."""

    contents: dict[Content, bool] = field(default_factory=dict)  # to whether it is current
    may_end: dict[Content, frozenset[str]] = field(default_factory=dict)  # of what is superseded: by whom it may be
    edges: set[tuple[str, Content, Content]] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    no_sessions: set[str] = field(default_factory=set)
    problems: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # code, label, id

    @property
    def codes(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for (code, _, _), count in self.problems.items():
            counted[code] += count
        return counted


def expected(said: Sequence[Said]) -> dict[str, Expected]:
    """By scopeKey."""
    scopes: defaultdict[str, list[Said]] = defaultdict(list)
    for one in said:
        scopes[one.scope_key].append(one)
    return {scope_key: _Scope(lines).expected() for scope_key, lines in scopes.items()}


class _Scope:
    def __init__(self, said: Iterable[Said]) -> None:
        self._hashes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # by label and id
        self._said: dict[tuple[str, str], Said] = {}
        self._groups: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._claims: defaultdict[str, dict[str, str]] = defaultdict(dict)  # target to {by: at}
        self._retracted: set[str] = set()
        self._forgotten: set[str] = set()
        self._sessions_forgotten: set[str] = set()
        self._all_forgotten = False
        self._links: list[Said] = []
        for one in said:
            self._read(one)
        self._gone = {
            place: place[1] in self._forgotten or bool(self._groups[place] & self._forgotten) for place in self._said
        }
        self._close()

    def _read(self, one: Said) -> None:
        body = one.body
        match one.what:
            case "fact" | "episode":
                place = (LABELS[one.what], one.id)
                over = body.get("supersedesFactId") or one.line_key
                self._content(one, place, keys.content_hash(body))
                self._claim(over, one.id, body["validFrom" if one.what == "fact" else "observedAt"])
                self._groups[place] |= {one.session_key, body["participantScopeHash"], body["profileId"]} - {""}
                if body.get("active") is False:
                    self._retracted.add(one.id)
            case "entity":
                scope = body["scope"]
                key = keys.object_key(
                    label=body["label"], scope_key=one.scope_key, kind=body["kind"], name=body["name"]
                )
                row = {name: body[name] for name in ("kind", "name", "sourceEventId", "provenance", "runtime")}
                version = {
                    "label": body["label"],
                    **body["properties"],
                    **row,
                    "trustClass": body["trustClass"],
                    **scope,
                }
                hash_ = identity.sha256_hex(identity.canonical_json(version))
                place = (body["label"], key)
                self._content(one, place, hash_)
                self._claim(key, hash_, body["at"])
                self._groups[place] |= {key, scope["participantScopeHash"], scope["profileId"]}
            case "retract":
                self._retracted.add(body["target"])
            case "forget":
                group = body.get("group") or {}
                self._forgotten.add(body.get("target") or group.get("profileId") or next(iter(group.values())))
                if "session" in group:
                    self._sessions_forgotten.add(group["session"])
                elif "participant" in group or "profileId" in group:
                    self._all_forgotten = True
            case "link":
                self._links.append(one)

    def _content(self, one: Said, place: tuple[str, str], hash_: str) -> None:
        self._said[place] = one
        self._hashes[place].add(hash_)

    def _claim(self, target: str, by: str, at: str) -> None:
        if target:
            self._claims[target][by] = min(at, self._claims[target].get(by, at))

    def _close(self) -> None:
        """Losers are claimed by the winner, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for by in list(self._claims.values()):
                best = max(by, key=lambda one: (by[one], one))
                for loser in by:
                    if loser != best and best not in self._claims[loser]:
                        self._claims[loser][best] = by[best]
                        changed = True

    def expected(self) -> Expected:
        told = Expected()
        for place in self._said:
            if self._gone[place]:
                continue
            self._tell_contents(place, told)
            self._tell_own_edges(place, told)
            self._tell_problems(place, told)
        for link in self._links:
            for source in self._standing(link.body["from"]["label"], link.body["from"]["key"]):
                for target in self._standing(link.body["to"]["label"], link.body["to"]["key"]):
                    told.edges.add((link.body["type"], source, target))
        told.no_sessions = self._forgotten_sessions()
        return told

    def _tell_contents(self, place: tuple[str, str], told: Expected) -> None:
        label, id_ = place
        for hash_ in self._hashes[place]:
            claimed = self._claims.get(hash_ if label in THING_KEYS else id_)
            stands = label in THING_KEYS or label == "EPISODE" or hash_ == min(self._hashes[place])
            is_retracted = label == "MEMORY_FACT" and id_ in self._retracted
            told.contents[(*place, hash_)] = stands and not claimed and not is_retracted
            if claimed:
                told.may_end[(*place, hash_)] = self._tree(hash_ if label in THING_KEYS else id_)

    def _tell_own_edges(self, place: tuple[str, str], told: Expected) -> None:
        one = self._said[place]
        if place[0] == "EPISODE":
            told.sessions.add(one.session_key)
        if place[0] == "MEMORY_FACT":
            (me,) = self._standing(*place)
            for episode in self._standing("EPISODE", one.body["sourceEventId"]):
                told.edges.add(("FROM_EPISODE", me, episode))
            for old in self._standing("MEMORY_FACT", one.body.get("supersedesFactId", "")):
                told.edges.add(("SUPERSEDES", me, old))

    def _tell_problems(self, place: tuple[str, str], told: Expected) -> None:
        label, id_ = place
        if label not in THING_KEYS and len(self._hashes[place]) > 1:
            told.problems[("conflict", *place)] += 1
        old = self._said[place].body.get("supersedesFactId", "")
        if old and not self._is_known(old):
            told.problems[("target_missing", *place)] += 1
        if old and (other := self._said.get((label, old))) and other.body.get("supersedesFactId") == id_:
            told.problems[("cycle", label, min(id_, old))] = 1

    def _standing(self, label: str, key: str) -> list[Content]:
        place = (label, key)
        if place not in self._said or self._gone[place]:
            return []
        hashes = sorted(self._hashes[place])
        return [(*place, hash_) for hash_ in (hashes if label in THING_KEYS else hashes[:1])]

    def _is_known(self, id_: str) -> bool:
        return ("MEMORY_FACT", id_) in self._said or id_ in self._forgotten

    def _tree(self, id_: str) -> frozenset[str]:
        """All that compete with it, near or far."""
        found, todo = {id_}, [id_]
        while todo:
            one = todo.pop()
            near = set(self._claims.get(one, ()))
            for target, by in self._claims.items():
                if one in by:
                    near |= {target, *by}
            todo += near - found
            found |= near
        return frozenset(found - {id_})

    def _forgotten_sessions(self) -> set[str]:
        of_turns = {one.session_key for place, one in self._said.items() if place[0] == "EPISODE"}
        return of_turns if self._all_forgotten else of_turns & self._sessions_forgotten
