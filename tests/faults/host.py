"""An agent host of the world: captures through `AgentMemory` and writes down what was acknowledged, synced, before it
goes on; so what a SIGKILLed host had been promised is known.

    python -m tests.faults.host --out FILE --name h0 [--rate 20] [--count N] [--while FILE] …

It captures while the file of `--while` is there, or `--count` times, and goes on dispatching until SIGTERM. One JSON
object a line in `--out`:

    {"kind": "turn" | "fact" | "retract" | "forget", "id": …, "target": …, "ms": …}     acknowledged as Durable
    {"kind": "refused", "reason": …, "ms": …}
    {"kind": "done", …}          the count was reached
    {"kind": "ended", "threads": [names that are left], "descriptors": …, "closed": …}  after SIGTERM
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from producer import capture, config, dispatcher, outcomes, scope
from producer.journal import Journal, compaction, filesystem, index, segments
from producer.memory import AgentMemory

MIXES = ("turns", "mixed", "facts", "same", "sizes")
_MIX = ("turn",) * 68 + ("fact",) * 10 + ("supersede",) * 10 + ("retract",) * 4 + ("repeat",) * 4 + ("forget",) * 4
_WORDS = ("harbour", "lantern", "copper", "meadow", "walnut", "signal", "glacier", "violet", "ember", "cobalt")


class Acknowledged:
    """The host's own file of promises: one line each, synced before the host goes on."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def add(self, **promise: Any) -> None:
        line = json.dumps(promise, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock:
            os.write(self._descriptor, line)
            os.fsync(self._descriptor)


class Host:
    def __init__(self, options: argparse.Namespace, settings: config.ProducerConfig) -> None:
        self.options = options
        self.settings = settings
        # Every run is another one, also of the same host started again.
        self.run = f"{options.name}-{os.getpid()}-{time.time_ns() % 1_000_000_000}"
        self.rng = random.Random(f"{options.seed}/{options.name}")
        self.owner = scope.scope_of(
            scope.HostContext(
                runtime="custom",
                platform="local",
                agent_id="faults",
                profile_id="default",
                session_id="faults",
                user=options.participant or options.name,
                sandboxed=False,
            ),
            salt=settings.scope_salt,
            salt_required=True,
        )
        self.memory = AgentMemory(settings, scope=self.owner, dispatches=not options.no_dispatch)
        self.promises = Acknowledged(options.out)
        self.stop = threading.Event()
        self.turns: list[int] = []  # numbers of turns that may be repeated
        self.turn_ids: list[str] = []
        self.fact = ""  # the current one of this run
        self.orders: Journal | None = None

    def work(self) -> None:
        self.memory.start() if not self.options.no_dispatch else None
        number = 0
        due = time.monotonic()
        while not self.stop.is_set() and self._goes_on(number):
            self.capture(number)
            number += 1
            if self.options.rate:
                due = max(due + 1 / self.options.rate, time.monotonic() - 1)
                self.stop.wait(max(0.0, due - time.monotonic()))
        self.promises.add(kind="done", count=number)

    def _goes_on(self, number: int) -> bool:
        if self.options.count is not None:
            return number < self.options.count
        return self.options.while_ is not None and self.options.while_.exists()

    def capture(self, number: int) -> None:
        mixes = {"mixed": _MIX, "facts": ("fact", *("supersede",) * 8, "retract")}
        what = self.rng.choice(mixes.get(self.options.mix, ("turn",)))
        if what in ("supersede", "retract") and not self.fact:
            what = "fact"
        if what in ("repeat", "forget") and not self.turn_ids:
            what = "turn"
        began = time.monotonic()
        kind, target = what, None
        if what == "turn":
            outcome = self._turn(number)
            if isinstance(outcome, outcomes.Durable) and self.options.mix == "mixed":
                self.turns.append(number)
                self.turn_ids.append(outcome.id)
        elif what == "repeat":
            kind, outcome = "turn", self._turn(self.rng.choice(self.turns))
        elif what in ("fact", "supersede"):
            kind, target = "fact", self.fact if what == "supersede" else None
            outcome = self._fact(number, target)
            if isinstance(outcome, outcomes.Durable):
                self.fact = outcome.id
        elif what == "retract":
            target, self.fact = self.fact, ""
            outcome = self.memory.retract(target)
        else:
            place = self.rng.randrange(len(self.turn_ids))
            target = self.turn_ids.pop(place)
            self.turns.pop(place)
            outcome = self._forget(target)
        self._write_down(outcome, kind, target, began)

    def _turn(self, number: int) -> outcomes.Outcome:
        same = self.options.mix == "same"
        name = "shared" if same else self.run
        return self.memory.capture_turn(
            session_id=f"session-{name}-{number // 50}",
            user_text=f"Where did we leave the {_WORDS[number % 10]}, number {number}?",
            assistant_text=self._words(number),
            source_event_id=f"{name}/{number}",
            turn_index=number % 50,
            observed_at="2026-12-01T12:00:00.000Z",
        )

    def _words(self, number: int) -> str:
        text = f"Beside the {_WORDS[number // 10 % 10]} ({number}). "
        if self.options.mix == "sizes":
            return text + "so it is " * self.rng.randint(5, 5000)  # 45 bytes to 45 KB
        return text + "It was quiet there. " * self.options.sentences

    def _fact(self, number: int, supersedes: str | None) -> outcomes.Outcome:
        return self.memory.remember(
            text=f"The {_WORDS[number % 10]} stands at place {number}.",
            kind="place",
            subject_key=f"{self.run}/{number}",
            supersedes=supersedes,
            session_id=f"session-{self.run}-0",
            source_event_id=f"{self.run}/fact/{number}",
        )

    def _forget(self, target: str) -> outcomes.Outcome:
        """As an operator's tool of this scope would: an order in the same journal."""
        order = capture.build_forget_order(
            scope=self.owner, runtime="custom", at=segments.iso_of_ms(int(time.time() * 1000)), target=target
        )
        if self.orders is None:
            self.orders = Journal.open(
                self.settings.journal_dir,
                max_bytes=self.settings.journal_max_bytes,
                reserve_bytes=self.settings.journal_reserve_bytes,
                segment_max_bytes=self.settings.segment_max_bytes,
            )
        return outcomes.Durable(self.orders.append_order(order).id)

    def _write_down(self, outcome: outcomes.Outcome, kind: str, target: str | None, began: float) -> None:
        ms = round((time.monotonic() - began) * 1000, 2)
        if isinstance(outcome, outcomes.Durable):
            self.promises.add(kind=kind, id=outcome.id, target=target, ms=ms)
        else:
            self.promises.add(kind="refused", reason=outcome.reason, ms=ms)

    def close(self) -> None:
        closed = self.memory.close(deadline_s=5.0)
        if self.orders is not None:
            self.orders.close()
        left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        self.promises.add(kind="ended", closed=closed, threads=left, descriptors=_descriptors())

    # Odd ways to live

    def fork_and_threads(self) -> None:
        """Capture in the parent, in a forked child, and in 32 threads of each at once."""
        self.capture(0)
        self.memory.flush(deadline_s=20.0)
        child = os.fork()
        threads = [threading.Thread(target=self.capture, args=(1000 + n + (500 if child else 0),)) for n in range(32)]
        if not child:
            self.run += "-child"
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not child:
            self.memory.flush(deadline_s=20.0)
            self.memory.close()
            os._exit(0)
        os.waitpid(child, 0)

    def cycles(self, count: int) -> None:
        """Open, capture, recall and close again and again; say what is open before and after."""
        first = 0
        for number in range(count):
            self.memory = AgentMemory(self.settings, scope=self.owner)
            self.capture(number)
            self.memory.recall("where is the lantern?", session_id="another", deadline_ms=50)
            self.memory.close(deadline_s=5.0)
            if number == 9:
                first = _descriptors()
        self.promises.add(kind="cycles", before=first, after=_descriptors(), threads=threading.active_count())


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def fail_syncs(numbers: set[int]) -> None:
    """Let the nth syncs of journal files fail with EIO, as a disk does once."""
    real, seen = filesystem.FileSystem.sync, iter(range(1, sys.maxsize))

    def sync(self: filesystem.FileSystem, descriptor: int) -> None:
        if next(seen) in numbers:
            raise OSError(errno.EIO, "injected")
        real(self, descriptor)

    filesystem.FileSystem.sync = sync  # type: ignore[method-assign]


def compact_often(every_s: float) -> None:
    """Compaction meets the load: lines leave after seconds in place of five minutes. Longer than any late delivery."""
    dispatcher._MAINTAIN_EVERY_S = every_s
    compaction._LOOK_AGAIN_S = every_s
    index.RECENTLY_SENT_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.host", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--participant", default="", help="the user; by default one per name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0, help="captures per second; 0: as fast as it goes")
    parser.add_argument("--count", type=int)
    parser.add_argument("--while", dest="while_", type=Path)
    parser.add_argument("--mix", choices=MIXES, default="mixed")
    parser.add_argument("--sentences", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-dispatch", action="store_true")
    parser.add_argument("--leave", choices=("stay", "close", "exit", "killed"), default="stay")
    parser.add_argument("--fail-syncs", type=lambda text: {int(one) for one in text.split(",")}, default=set())
    parser.add_argument("--compact-every", type=float, help="seconds; and lines leave soon after they were sent")
    parser.add_argument("--fork", action="store_true")
    parser.add_argument("--cycles", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if options.fail_syncs:
        fail_syncs(options.fail_syncs)
    if options.compact_every is not None:
        compact_often(options.compact_every)
    host = Host(options, config.load(os.environ))
    signal.signal(signal.SIGTERM, lambda *_: host.stop.set())
    if options.cycles:
        host.cycles(options.cycles)
    elif options.fork:
        host.fork_and_threads()
        host.promises.add(kind="done", count=65)
    elif options.threads > 1:
        host.memory.start()
        together = threading.Barrier(options.threads)

        def one() -> None:
            together.wait()
            host.capture(0)

        threads = [threading.Thread(target=one) for _ in range(options.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        host.promises.add(kind="done", count=options.threads)
    else:
        host.work()
    if options.leave == "exit":
        os._exit(0)
    if options.leave == "killed":
        time.sleep(0.005)  # the scenario: killed 5 ms after capture returned
        os.kill(os.getpid(), signal.SIGKILL)
    if options.leave == "stay":
        with contextlib.suppress(KeyboardInterrupt):
            host.stop.wait()
    host.close()


if __name__ == "__main__":
    main()
