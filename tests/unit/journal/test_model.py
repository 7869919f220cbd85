"""Random histories of a journal against a dictionary: append, receipt, crash, reopen, seal, compact, damage, fail."""

from __future__ import annotations

import random

import pytest

from producer import errors
from producer.journal import Journal, compaction
from producer.journal.index import Index
from producer.receipt import State
from tests.unit.journal.crashing_filesystem import CrashingFileSystem
from tests.unit.journal.support import LONG_S, Clock, event, open_journal, order, receipt_of, seal_all

REFUSALS = (errors.JournalFailed, errors.JournalFull, errors.SyncUnknown)


class Model:
    """What the host knows: the lines it was promised, and the last receipt it was promised for each."""

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
        actions += [self.crash, self.damage, self.fail]
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

    def fail(self) -> None:
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
