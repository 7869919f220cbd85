"""Random histories of a journal against a dictionary.

Append, sent, receipt, seal, compact, reopen, be killed, lose power, be damaged, fail, fill the disk, set the clock:
with random seeds, and as Hypothesis' state machine, which finds the shortest history that breaks a promise.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from producer import errors
from producer.journal import Journal, compaction
from producer.journal.index import Index
from producer.receipt import State
from tests.unit.journal.crashing_filesystem import Crash, CrashingFileSystem
from tests.unit.journal.support import LONG_S, Clock, event, open_journal, order, receipt_of, seal_all

REFUSALS = (errors.JournalFailed, errors.JournalFull, errors.SyncUnknown)


class Model:
    """What the host knows: the lines it was promised, and the last receipt it was promised for each."""

    ACTIONS = (
        *("append", "settle", "sent", "seal", "compact", "reopen"),
        *("crash", "kill", "damage", "fail", "fill", "set_clock"),
    )

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fs = CrashingFileSystem(seed)
        self.clock = Clock()
        self.lines: dict[str, object] = {}  # text -> line, acknowledged
        self.states: dict[str, State] = {}  # text -> state, acknowledged
        self.unsure: set[str] = set()  # texts of which a receipt may or may not be there
        self.damaged: set[str] = set()
        self.number = 0
        self.journals: list[Journal] = []
        self.open()

    def open(self) -> None:
        options = {"segment_max_bytes": 1500, "reserve_bytes": 4000, "max_bytes": 200_000}
        self.journals = [open_journal(self.fs, self.clock, **options) for _ in range(2)]

    def step(self) -> None:
        self.clock.advance(self.rng.choice([0, 0.001, 1, 400]))
        actions = (
            [self.append] * 6 + [self.settle] * 3 + [self.sent, self.seal, self.compact, self.compact, self.reopen]
        )
        actions += [self.crash, self.kill, self.damage, self.fail, self.fill, self.set_clock]
        self.rng.choice(actions)()

    def journal(self) -> Journal:
        return self.rng.choice(self.journals)

    def append(self) -> None:
        self.number += 1
        what = (
            order(self.number) if self.rng.random() < 0.2 else event(self.number, length=self.rng.choice([1, 50, 2000]))
        )
        try:
            line = self.journal().append_order(what) if "nonce" in what else self.journal().append_event(what)
        except REFUSALS:
            return
        self.lines[line.text] = line

    def some(self) -> list[str]:
        return [text for text in self.lines if self.rng.random() < 0.3]

    def settle(self) -> None:
        for text in self.some():
            state = self.rng.choice([State.STORED, State.STORED, State.DEAD, State.DEFERRED, State.FORGOTTEN])
            held = self.states.get(text)
            if held in (State.STORED, State.FORGOTTEN) or (held is State.DEAD and state is State.DEFERRED):
                continue
            try:
                self.journal().append_receipts([receipt_of(self.lines[text], state)])
            except REFUSALS:
                self.unsure.add(text)
                continue
            except Crash:
                self.unsure.add(text)
                raise
            self.states[text] = state

    def sent(self) -> None:
        try:
            self.journal().append_sent([self.lines[text] for text in self.some()])
        except REFUSALS:
            pass

    def seal(self) -> None:
        seal_all(self.journal())

    def compact(self) -> None:
        index = Index(self.journal(), monotonic=self.clock)
        index.poll()
        compaction.heal_tails(index.journal, index)
        compaction.compact(index.journal, index, now_s=self.clock() + LONG_S, everything=True)

    def reopen(self) -> None:
        for journal in self.journals:
            journal.close()
        self.open()

    def crash(self) -> None:
        self.fs.crash()
        for journal in self.journals:
            journal.close()
        self.open()
        # A receipt whose line left before the crash may be gone, and then the line was gone durably before it.

    def kill(self) -> None:
        """Both processes die, maybe in the middle of something; the machine goes on."""
        self.fs.crash_at = len(self.fs.operations) + self.rng.randrange(30)
        try:
            for _ in range(3):
                self.rng.choice([self.append, self.settle, self.compact])()
        except Crash:
            pass
        self.fs.kill()
        for journal in self.journals:
            journal.close()
        self.fs.open_files.clear()
        self.open()

    def fill(self) -> None:
        """The disk fills, and has room again."""
        self.fs.capacity = self.fs._used() + self.rng.choice([0, 100, 1000])
        for _ in range(3):
            self.rng.choice([self.append, self.settle, self.compact])()
        self.fs.capacity = None

    def set_clock(self) -> None:
        self.clock.advance(self.rng.choice([-7200, -400, 7200]))

    def fail(self) -> None:
        self.fs.fail_for = self.rng.choice([1, 1, 2, 5])
        self.fs.fail_at = len(self.fs.operations) + self.rng.randrange(12)
        for _ in range(3):
            self.rng.choice([self.append, self.settle, self.compact])()
        self.fs.stop_failing()

    def damage(self) -> None:
        """Flip a bit somewhere; whatever stood there may be lost, nothing else may."""
        names = list(self.journal().segment_names())
        if not names:
            return
        path = f"{self.journal().directory}/{self.rng.choice(names)}"
        data = bytearray(self.fs.contents(path))
        if not data:
            return
        position = self.rng.randrange(len(data))
        for raw in bytes(data).splitlines():
            text = raw.decode("ascii", "replace")
            start = data.index(raw)
            if start <= position <= start + len(raw):
                self.damaged |= {text}
                self.unsure |= {held for held in self.lines if self.lines[held].hash in text}
        data[position] ^= 1 << self.rng.randrange(8)
        self.fs.damage(path, lambda _: bytes(data))

    def check(self) -> None:
        index = Index(self.journals[0], monotonic=self.clock)
        index.poll(to_end=True)
        found = {index.read_line(entry).text: entry for entry in index.entries.values() if entry.copies}
        for text in self.lines:
            if text in self.damaged:
                continue
            state = self.states.get(text)
            may_be_gone = state in (State.STORED, State.FORGOTTEN) or text in self.unsure
            if text not in found:
                assert may_be_gone, f"an acknowledged line is gone; it was {state}"
            elif text not in self.unsure:
                assert found[text].state == state, "an acknowledged receipt is gone while its line is here"
        assert not [text for text in found if text not in self.lines and not self.may_have_landed(text)]

    def may_have_landed(self, text: str) -> bool:
        """Lines that were refused as unknown or failed may be there: they are ours all the same."""
        return any(f'"{event(number)["eventId"]}"' in text for number in range(self.number + 1))


@pytest.mark.parametrize("seed", [*range(25), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(25, 400))])
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    model = Model(seed)
    for _ in range(60):
        model.step()
        model.check()
    for journal in model.journals:
        journal.close()


class Machine(RuleBasedStateMachine):
    """Hypothesis chooses what happens, the seed how."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def start(self, seed: int) -> None:
        self.model = Model(seed)

    @rule(seconds=st.sampled_from([0, 0.001, 1, 400]))
    def wait(self, seconds: float) -> None:
        self.model.clock.advance(seconds)

    @invariant()
    def every_promise_is_kept(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            for journal in self.model.journals:
                journal.close()


def _rule_of(action: str) -> object:
    def act(self: Machine) -> None:
        getattr(self.model, action)()

    act.__name__ = action
    return rule()(act)


for _action in Model.ACTIONS:
    setattr(Machine, f"do_{_action}", _rule_of(_action))

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def test_a_short_history_that_hypothesis_chooses_keeps_every_promise() -> None:
    chosen = settings(
        max_examples=25, stateful_step_count=30, derandomize=True, deadline=None, suppress_health_check=_QUIET
    )
    run_state_machine_as_test(Machine, settings=chosen)


@pytest.mark.slow
def test_a_long_history_that_hypothesis_chooses_keeps_every_promise() -> None:
    chosen = settings(max_examples=300, stateful_step_count=100, deadline=None, suppress_health_check=_QUIET)
    run_state_machine_as_test(Machine, settings=chosen)
