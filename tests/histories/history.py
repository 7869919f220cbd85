"""Random histories: the same seed writes the same history in any scope."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.histories.saying import Said, Writer, scopes_of

__all__ = ["FEW", "is_small", "write"]

FEW = 5  # so many lines are delivered in every order
THINGS = (("ann", "ENTITY"), ("ship", "TASK"), ("report", "ARTIFACT"))
STEPS_S = (0.0, 0.0, 0.5, 3.0, 20.0, -4.0)  # same moment, later, or by a clock that is behind


def is_small(seed: int) -> bool:
    return seed % 2 == 0


def write(seed: int, world: str, number: int) -> list[Said]:
    """The lines of this history in the scopes with this number."""
    rng = random.Random(seed)
    size = rng.randint(3, FEW) if is_small(seed) else rng.randint(7, 16)
    return _History(rng, *(Writer(scope) for scope in scopes_of(world, number))).write(size)


class _History:
    def __init__(self, rng: random.Random, ours: Writer, theirs: Writer) -> None:
        self._rng = rng
        self._ours = ours
        self._theirs = theirs
        self._said: list[Said] = []
        self._facts: list[tuple[Said, str, float]] = []  # with the line it stands on and its time
        self._turns: list[tuple[Said, str]] = []  # with its conversation
        self._things: list[tuple[str, str]] = []
        self._now = 0.0
        self._made = 0

    def write(self, size: int) -> list[Said]:
        rng = self._rng
        deeds: list[tuple[Callable[[], None], int]] = [
            (self._assert, 3),
            (self._supersede, 6),
            (self._on_line, 5),
            (self._say_again, 2),
            (self._differ, 2),
            (self._by_another_clock, 1),
            (self._retract, 2),
            (self._end_by_event, 1),
            (self._forget_one, 3),
            (self._forget_group, 2),
            (self._turn, 2),
            (self._stop_again, 2),
            (self._fact_of_turn, 2),
            (self._thing, 3),
            (self._link, 3),
            (self._neighbour, 2),
            (self._name_the_missing, 1),
            (self._ring, 1),
        ]
        focus = rng.sample(range(len(deeds)), 4)  # a history is about a few things, so that they meet
        if rng.random() < 0.4:
            focus = [1, 2, rng.randrange(len(deeds))]  # rivals, chains and lines
        weights = [weight * (8 if n in focus else 1) for n, (_, weight) in enumerate(deeds)]
        while len(self._said) < size:
            self._now = max(self._now + rng.choice(STEPS_S), -30.0)  # groups cover what was appended a minute later
            (deed,) = rng.choices([deed for deed, _ in deeds], weights)
            deed()
        return self._said[:size]

    # Facts

    def _assert(self) -> None:
        self._fact(self._ours)

    def _supersede(self) -> None:
        """Whom another superseded already, that is a rival; the last of a chain, that is a chain."""
        if not self._facts:
            return self._assert()
        old, _, _ = self._rng.choice(self._facts)
        self._fact(self._ours, supersedes_fact_id=old.id)

    def _on_line(self) -> None:
        self._fact(self._ours, line=self._rng.choice(("tea", "home")))

    def _say_again(self) -> None:
        """A value that held before."""
        if not self._facts:
            return self._on_line()
        old, line, _ = self._rng.choice(self._facts)
        over = {} if line else {"supersedes_fact_id": self._facts[-1][0].id}
        self._fact(self._ours, text=old.body["text"], line=line, **over)

    def _differ(self) -> None:
        """Other content under the same id."""
        if not self._facts:
            return self._assert()
        old, line, at = self._rng.choice(self._facts)
        self._again(old, line, at, trust_class="untrusted")

    def _by_another_clock(self) -> None:
        """Captured twice. Where it competes this is a known limit, and not made."""
        free = [one for one in self._facts if not one[1] and "supersedesFactId" not in one[0].body]
        if not free:
            return self._assert()
        old, line, at = self._rng.choice(free)
        self._again(old, line, at + self._rng.choice((-60.0, 7.0)))

    def _end_by_event(self) -> None:
        """Said again as no longer active."""
        if not self._facts:
            return self._assert()
        old, line, at = self._rng.choice(self._facts)
        self._again(old, line, at, active=False, confidence=0.5)

    def _name_the_missing(self) -> None:
        never = self._ours.fact("never delivered", source=self._source(), at=self._now)
        self._fact(self._ours, supersedes_fact_id=never.id)

    def _ring(self) -> None:
        """Two facts that name each other: callers' nonsense, surfaced and stable."""
        sources = self._source(), self._source()
        one, other = (self._ours.fact(f"ring {n}", source=sources[n], at=self._now) for n in (0, 1))
        self._said.append(self._ours.fact("ring 0", source=sources[0], at=self._now, supersedes_fact_id=other.id))
        self._said.append(self._ours.fact("ring 1", source=sources[1], at=self._now, supersedes_fact_id=one.id))

    def _fact_of_turn(self) -> None:
        if not self._turns:
            return self._turn()
        self._fact(self._ours, source=self._rng.choice(self._turns)[0].id)

    # Turns

    def _turn(self) -> None:
        self._episode(self._source(), on_prompt=self._rng.random() < 0.5)

    def _stop_again(self) -> None:
        """A later answer to the same prompt, or the same turn with another provenance of trust."""
        if not self._turns:
            return self._turn()
        old, session = self._rng.choice(self._turns)
        if old.line_key:
            self._episode(old.body["sourceEventId"], on_prompt=True, session=session)
        else:
            self._said.append(
                self._ours.turn(
                    old.body["assistantText"],
                    source=old.body["sourceEventId"],
                    at=self._now,
                    session=session,
                    trust_class="mixed",
                )
            )

    # Things and links

    def _thing(self) -> None:
        name, label = self._rng.choice(THINGS)
        self._made += 1
        self._things.append((label, self._ours.key_of_thing(name, label)))
        self._said.append(self._ours.thing(name, self._made, label=label, source=self._source(), at=self._now))

    def _link(self) -> None:
        ends = [("MEMORY_FACT", fact.id) for fact, _, _ in self._facts] + [
            ("EPISODE", turn.id) for turn, _ in self._turns
        ]
        ends += self._things
        ends = sorted(set(ends), key=ends.index)
        if len(ends) < 2:
            return self._thing()
        source, target = self._rng.sample(ends, 2)
        self._said.append(self._ours.link(source, target, at=self._now))

    # Orders

    def _retract(self) -> None:
        if not self._facts:
            return self._assert()
        self._said.append(self._ours.retract(self._rng.choice(self._facts)[0].id, at=self._now))

    def _forget_one(self) -> None:
        ids = [fact.id for fact, _, _ in self._facts] + [turn.id for turn, _ in self._turns]
        if not ids:
            return self._assert()
        self._said.append(self._ours.forget(self._rng.choice(ids), at=self._now))

    def _forget_group(self) -> None:
        participant = self._ours.scope.participant_scope_hash
        groups = [{"session": self._ours.session("s1")}, {"session": self._ours.session("s2")}]
        groups += [{"participant": participant}, {"agentId": "agent", "profileId": "default"}]
        groups += [{f"{label.lower()}Key": key} for label, key in self._things]
        self._said.append(self._ours.forget(self._rng.choice(groups), at=self._now))

    # The neighbour

    def _neighbour(self) -> None:
        """Says what we say, names what is ours as superseded, or orders it to end."""
        old = self._rng.choice(self._facts)[0] if self._facts else None
        if old is None:
            return self._fact(self._theirs)
        match self._rng.randrange(4):
            case 0:
                source, text = str(old.body["sourceEventId"]), str(old.body["text"])
                self._said.append(self._theirs.fact(text, source=source, at=99, line=_subject(old)))
            case 1:
                self._fact(self._theirs, supersedes_fact_id=old.id)
            case 2:
                self._said.append(self._theirs.retract(old.id, at=99))
            case _:
                self._said.append(self._theirs.forget(old.id, at=99))

    # Hands

    def _source(self) -> str:
        self._made += 1
        return f"write {self._made}"

    def _fact(self, writer: Writer, *, text: str = "", source: str = "", line: str = "", **more: str) -> None:
        self._made += 1
        session = self._rng.choice(("", "s1", "s2"))
        text = text or f"value {self._made}"
        said = writer.fact(text, source=source or self._source(), at=self._now, line=line, session=session, **more)
        self._said.append(said)
        if writer is self._ours:
            self._facts.append((said, line, self._now))

    def _again(self, old: Said, line: str, at: float, **more: object) -> None:
        session = next((name for name in ("s1", "s2") if self._ours.session(name) == old.session_key), "")
        if "supersedesFactId" in old.body:
            more["supersedes_fact_id"] = old.body["supersedesFactId"]
        said = self._ours.fact(
            old.body["text"], source=old.body["sourceEventId"], at=at, line=line, session=session, **more
        )
        assert said.id == old.id
        self._said.append(said)

    def _episode(self, source: str, *, on_prompt: bool, session: str = "") -> None:
        self._made += 1
        session = session or self._rng.choice(("s1", "s2"))
        said = self._ours.turn(
            f"answer {self._made}", source=source, at=self._now, session=session, on_prompt=on_prompt
        )
        self._said.append(said)
        self._turns.append((said, session))


def _subject(fact: Said) -> str:
    return str(fact.body["subjectKey"]) if fact.line_key else ""
