"""Random schedules of the real rules on the weak store, after tests/data/convergence_model.py: its histories, its
schedules and its invariants I1 to I7, with lines, retraction, groups, the graph and the recent writes (I8) added.
"""

from __future__ import annotations

import abc
import importlib.util
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from producer import keys
from producer.convergence import content, deliver, reader, settle
from producer.convergence.delivery import Delivery
from tests.unit.convergence.weak_store import Line, WeakStore

MODEL = Path(__file__).parents[2] / "data" / "convergence_model.py"
MAX_STEPS = 50_000
CONTENT = ("fact", "episode", "version")  # jobs that bring some


def _model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convergence_model", MODEL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model = _model()

SCOPES = {
    name: {
        "agentId": "coder",
        "profileId": "default",
        "privacyScope": "private",
        "participantScopeHash": digit * 64,
        "sandboxEligible": False,
    }
    for name, digit in (("ours", "a"), ("theirs", "b"))
}
SCOPE_KEYS = {name: keys.scope_key(fields) for name, fields in SCOPES.items()}
EPISODE_IDS = {"ours": "1" * 64, "theirs": "2" * 64}
SESSION_KEYS = {
    name: keys.session_key(runtime="custom", external_session_id="s", scope=fields) for name, fields in SCOPES.items()
}
APPENDED_AT = "2026-01-01T00:01:00.000Z"


def time_of(at: float) -> str:
    """A model time (-1 to 119 in halves) in our one form."""
    millis = int(at * 1000) + 60_000
    return f"2026-01-01T00:{millis // 60_000:02}:{millis // 1000 % 60:02}.{millis % 1000:03}Z"


def fact_delivery(fact: dict[str, Any], line: str | None = None) -> Delivery:
    """The delivery of a model fact. `line`: what it supersedes if that is a line."""
    on_line = fact["supersedes"] is not None and fact["supersedes"] == line
    event = {
        "schemaVersion": 1,
        "eventType": "fact",
        "factId": fact["key"],
        "runtime": "custom",
        **SCOPES[fact["scope"]],
        "text": fact["text"],
        "kind": "preference",
        "subjectKey": "s",
        "confidence": 1,
        "active": True,
        "sourceEventId": EPISODE_IDS[fact["scope"]],
        "validFrom": time_of(fact["at"]),
        "visibility": "participant",
        "trustClass": "trusted",
        "provenance": "test",
    }
    if fact["supersedes"] and not on_line:
        event["supersedesFactId"] = fact["supersedes"]
    return Delivery(
        line_hash="",
        id=fact["key"],
        kind="event",
        event=event,
        appended_at=APPENDED_AT,
        line_key=f"line of {line}" if on_line else None,
    )


def episode_delivery(scope: str) -> Delivery:
    event = {
        "schemaVersion": 1,
        "eventType": "episode",
        "eventId": EPISODE_IDS[scope],
        "runtime": "custom",
        **SCOPES[scope],
        "externalSessionId": "s",
        "turnIndex": 0,
        "userText": "u",
        "assistantText": "a",
        "summary": f"{scope} episode",
        "conversationKind": "direct",
        "visibility": "participant",
        "trustClass": "mixed",
        "originClass": "conversation",
        "observedAt": APPENDED_AT,
        "provenance": "test",
    }
    return Delivery(line_hash="", id=event["eventId"], kind="event", event=event, appended_at=APPENDED_AT)


def order_delivery(kind: str, target: str) -> Delivery:
    order: dict[str, Any] = {"what": "retract" if kind == "retract" else "forget", "scope": SCOPES["ours"]}
    if kind == "group":
        order["group"] = {"participant": SCOPES["ours"]["participantScopeHash"]}
    else:
        order["target"] = target
    order |= {"at": APPENDED_AT, "nonce": "00", "runtime": "custom"}
    return Delivery(line_hash="", id=f"order {kind}", kind="order", event=order, appended_at=APPENDED_AT)


@dataclass(frozen=True, kw_only=True)
class Found:
    schedules: int
    steps: int
    violated: int
    first: str


class Interleaving(abc.ABC):
    """Jobs side by side, a request at a time: killed, late, made again, until each has completed. `run` returns the
    problems found (none) and the steps taken."""

    def __init__(self, seed: int, *, later: bool = True, lie: float = 0.01, store: WeakStore | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.later = later
        self.crash = rng.choice(
            [0.003, 0.003, 0.003, 0.006, 0.006, 0.006, 0.006, 0.02]
        )  # one of our steps is a third of the model's
        self.store = store if store is not None else WeakStore(rng, lie)
        self.jobs: list[tuple[str, Any, list[Line], bool]] = []
        self._seen_changes = -1  # of the store, when a reader looked last

    def run(self, max_steps: int = MAX_STEPS) -> tuple[list[str], int]:
        rng, late = self.rng, self.rng.choice([0.05, 0.05, 0.005])
        jobs = self.jobs
        running: list[tuple[Line, str, Any, list[Line]]] = []
        zombies: list[tuple[Line, list[Line]]] = []
        waiting: list[tuple[str, Any, list[Line], bool]] = []
        steps = 0
        while jobs or running or zombies or waiting:
            steps += 1
            if steps > max_steps:
                return ["no progress"], steps
            for job in [j for j in waiting if not j[2]]:
                waiting.remove(job)
                jobs.insert(rng.randrange(len(jobs) + 1), job)
            if jobs and (not running or rng.random() < 0.3) and len(running) < 5:
                kind, what, pending, _ = jobs.pop()
                running.append((self.start(kind, what), kind, what, pending))
                continue
            if zombies and (not running or rng.random() < late):
                zombie = zombies[rng.randrange(len(zombies))]
                if zombie[0].late():
                    zombies.remove(zombie)
                    zombie[1].remove(zombie[0])
                    if self.problem(in_flight=True):
                        break
                continue
            if not running:
                continue
            pick = rng.randrange(len(running))
            line, kind, what, pending = running[pick]
            if steps < 3000 and rng.random() < self.crash:
                running.pop(pick)
                pending.append(line)
                zombies.append((line, pending))
                jobs.insert(rng.randrange(len(jobs) + 1), (kind, what, pending, True))
                if self.later:
                    waiting.append((kind, what, pending, True))
                continue
            if line.step():
                running.pop(pick)
                self.completed(kind, what)
            elif self._seen_changes == self.store.changes:
                continue  # no reader sees anything new
            under_way = any(kind in CONTENT for _, kind, _, _ in running)
            in_flight = bool(zombies or waiting or under_way or any(job[3] for job in jobs))
            if self.problem(in_flight):
                break
        return self.problem(in_flight=True) or self.check(), steps

    @abc.abstractmethod
    def start(self, kind: str, what: Any) -> Line:
        """One delivery of this job, under way."""

    def completed(self, kind: str, what: Any) -> None:  # noqa: B027 - most have nothing to note
        """A delivery has ended well."""

    @abc.abstractmethod
    def problem(self, in_flight: bool) -> list[str]:
        """What must hold at every moment, and does not. `in_flight`: an event may be under way, or still land."""

    @abc.abstractmethod
    def check(self) -> list[str]:
        """What must hold when everything was delivered, and does not."""


class Schedule(Interleaving):
    """A history of the model: facts, rivals and lines, forgotten and retracted."""

    def __init__(self, seed: int, *, later: bool = True, lie: float = 0.01, store: WeakStore | None = None) -> None:
        super().__init__(seed, later=later, lie=lie, store=store)
        rng = self.rng
        self.facts = model.history(rng)
        self.ours = [f for f in self.facts if f["scope"] == "ours"]
        roots = {f["supersedes"] for f in self.ours} - {f["key"] for f in self.ours} - {None}
        self.line = roots.pop() if len(roots) == 1 and rng.random() < 0.5 else None
        self.forgotten: set[str] = {rng.choice(self.ours)["key"]} if rng.random() < 0.4 else set()
        self.group = bool(self.forgotten) and rng.random() < 0.25
        self.retracted: set[str] = {rng.choice(self.ours)["key"]} if rng.random() < 0.15 else set()
        self.episodes = rng.random() < 0.3  # delivered like the rest, else there from the start
        jobs = [("fact", f) for f in self.facts for _ in range(rng.randint(1, 3))]
        orders = [("forget", key) for key in self.forgotten] if not self.group else [("group", "")]
        orders += [("retract", key) for key in self.retracted]
        jobs += [order for order in orders if self.forgotten or order[0] == "retract" for _ in range(rng.randint(1, 2))]
        if self.episodes:
            jobs += [("episode", scope) for scope in SCOPES for _ in range(rng.randint(1, 2))]
        else:
            for scope in SCOPES:
                self._place_episode(scope)
        rng.shuffle(jobs)
        if self.group:
            self.forgotten = {f["key"] for f in self.ours}
        self.jobs = [(kind, what, [], False) for kind, what in jobs]
        self.gone: set[str] = set()
        self.stored: list[dict[str, Any]] = []
        self._visible: set[str] = set()

    def start(self, kind: str, what: Any) -> Line:
        return Line(self.store, deliver.deliver(self.delivery(kind, what)))

    def delivery(self, kind: str, what: Any) -> Delivery:
        """One delivery of this job."""
        if kind == "fact":
            return fact_delivery(what, self.line)
        return episode_delivery(what) if kind == "episode" else order_delivery(kind, what)

    def visible(self) -> set[str]:
        """What a reader of our scope sees."""
        if self._seen_changes != self.store.changes:
            self._seen_changes = self.store.changes
            found = self.store.records(content.FACT, scopeKey=SCOPE_KEYS["ours"], active=True)
            self._visible = {str(r.get("factId")) for r in reader.keep(found) if r.get("text") is not None}
        return self._visible

    def completed(self, kind: str, what: Any) -> None:
        if kind == "group":
            self.gone |= self.forgotten
        elif kind in ("forget", "retract"):
            self.gone.add(what)
        elif kind == "fact" and what["scope"] == "ours":
            self.stored.append(what)
            self.gone |= {what["supersedes"]} - {None}

    def problem(self, in_flight: bool) -> list[str]:
        """I4 and I5, at every moment."""
        visible, forgotten = self.visible(), self.forgotten
        if not visible:
            return []
        stale = visible & (self.gone - forgotten if in_flight else self.gone)
        if stale:
            return [f"I4 {sorted(stale)} visible"]
        both = {
            f["key"]
            for f in self.ours
            if f["supersedes"] not in forgotten and f["key"] in visible and f["supersedes"] in visible
        }
        beaten: set[str] = set()
        if not model.two_clocks(self.ours):
            beaten = {
                f["key"]
                for f in self.ours
                if f["key"] in visible and f["supersedes"] and f["key"] not in forgotten
                for g in self.stored
                if f["supersedes"] == g["supersedes"] and (f["at"], f["key"]) < (g["at"], g["key"])
            }
        return [f"I5 {sorted(both | beaten)} visible, superseded or beaten"] if both or beaten else []

    def check(self) -> list[str]:
        """I1, I2, I3, I6, I7, when everything was delivered."""
        return [*self._check_records(), *self._check_graph(), *self._check_current(), *self._check_recent()]

    def _check_records(self) -> Iterator[str]:
        superseded = {f["supersedes"] for f in self.ours}
        for f in self.facts:
            ours = f["scope"] == "ours"
            scope_key = SCOPE_KEYS[f["scope"]]
            copies = self.store.records(content.FACT, factId=f["key"], scopeKey=scope_key)
            if ours and f["key"] in self.forgotten:
                if copies:
                    yield f"I1 forgotten {f['key']} has {len(copies)}"
                continue
            same = [r for r in copies if r.get("text") == f["text"]]
            if len(same) != 1:
                yield f"I{1 if ours else 6} {f['key']} of {f['scope']}: {len(same)} records"
                continue
            row = same[0]
            if ours and f["key"] in superseded and (row.get("active") or row.get("supersededByFactId") is None):
                yield f"I2 {f['key']}"
            if ours and f["key"] in self.retracted and (row.get("active") or row.get("retractedAt") is None):
                yield f"I2 {f['key']} retracted"
            if ours and row.get("supersededByFactId") == "x":
                yield f"I6 {f['key']}"
            if row.get("active") and row != min(copies, key=lambda r: (r.get("contentHash"), r.id)):
                yield f"I1 {f['key']}: a content that does not stand is active"
        for r in self.store.records(content.FACT):
            if r.get("text") is None or r.get("contentHash") is None or r.get("validFrom") is None:
                yield f"I7 half a record of {r.get('factId')}"
            if r.get("scopeKey") == SCOPE_KEYS["ours"] and str(r.get("text")).startswith("theirs"):
                yield f"I6 {r.get('factId')}"

    def _check_graph(self) -> Iterator[str]:
        store = self.store
        for scope, scope_key in SCOPE_KEYS.items():
            episodes = store.records(content.EPISODE, scopeKey=scope_key)
            sessions = store.records(content.SESSION, sessionKey=SESSION_KEYS[scope])
            if scope == "ours" and self.group:
                if episodes or sessions:
                    yield f"I1 {len(episodes)} episodes, {len(sessions)} sessions of a forgotten group"
                continue
            if len(episodes) != 1 or len(sessions) != 1:
                yield f"I1 {scope}: {len(episodes)} episodes, {len(sessions)} sessions"
                continue
            if ("IN_SESSION", episodes[0].id, sessions[0].id) not in store.edges:
                yield f"I7 {scope}: an episode without its session"
            standing = {
                str(r.get("factId")): r for r in content.standing(store.records(content.FACT), content.FACT, scope_key)
            }
            for fact in standing.values():
                if ("FROM_EPISODE", fact.id, episodes[0].id) not in store.edges:
                    yield f"I7 {fact.get('factId')} without its episode"
                old = standing.get(str(fact.get("supersedesFactId")))
                if old is not None and ("SUPERSEDES", fact.id, old.id) not in store.edges:
                    yield f"I7 {fact.get('factId')} without what it supersedes"
        for type_, source, target in store.edges:
            a, b = store.rows.get(source), store.rows.get(target)
            if a is None or b is None or (type_ != "IN_SESSION" and a.get("scopeKey") != b.get("scopeKey")):
                yield f"I6 a {type_} edge leaves its scope"

    def _check_current(self) -> Iterator[str]:
        visible = self.visible()
        if model.two_clocks(self.ours):
            pairs = {(f["supersedes"], f["key"]) for f in self.ours}
            if len(pairs) > len({f["supersedes"] for f in self.ours}):
                if len(visible) > 1:
                    yield f"I3 current {sorted(visible)}"
                return
        expected = model.current_of(self.ours) - self.forgotten - self.retracted
        if len(expected) > 1 or visible != expected:
            yield f"I3 current {sorted(visible)}, expected {sorted(expected)}"

    def _check_recent(self) -> Iterator[str]:
        """Recent writes never contradict the store once everything has landed."""
        known = {f["key"] for f in self.ours}
        cached = {id_ for scope_key, id_ in self.store.recent if scope_key == SCOPE_KEYS["ours"] and id_ in known}
        if cached - self.visible():
            yield f"I8 cached {sorted(cached)}, current {sorted(self.visible())}"

    def _place_episode(self, scope: str) -> None:
        given = episode_delivery(scope)
        row = content.row_of(given.event, scope_key=SCOPE_KEYS[scope], session_key=SESSION_KEYS[scope], line_key="")
        episode = self.store.place(content.EPISODE, row)
        names = ("sessionKey", "runtime", "externalSessionId", *keys.SCOPE_FIELDS)
        session = self.store.place(content.SESSION, {name: row[name] for name in names})
        self.store.edges.add(("IN_SESSION", episode, session))


def campaign(seeds: Iterable[int], run: Callable[[int], tuple[list[str], int]], *, stop: bool = False) -> Found:
    """Run these seeds. `stop`: at the first violation."""
    schedules, steps, violated, first = 0, 0, 0, ""
    for seed in seeds:
        problems, taken = run(seed)
        schedules += 1
        steps += taken
        if problems:
            violated += 1
            first = first or f"seed {seed}: {problems[0]}"
            if stop:
                break
    return Found(schedules=schedules, steps=steps, violated=violated, first=first)


def fold_race(seed: int) -> tuple[list[str], int]:
    """Several settle one id of which there are several records; its owner has settled before and looks no more."""
    rng = random.Random(seed)
    store = WeakStore(rng)
    fact = {"key": "f0", "supersedes": None, "scope": "ours", "at": 0, "text": "ours f0 1"}
    row = content.row_of(fact_delivery(fact).event, scope_key=SCOPE_KEYS["ours"], session_key="", line_key="")
    for _ in range(rng.randint(2, 3)):
        store.place(content.FACT, {**row, "active": True})
    running = [Line(store, settle.settle(content.FACT, "f0")) for _ in range(rng.randint(2, 3))]
    steps = 0
    while running:
        steps += 1
        line = rng.choice(running)
        if line.step():
            running.remove(line)
    left = len(store.records(content.FACT))
    return ([] if left == 1 else [f"I1 f0: {left} records"]), steps
