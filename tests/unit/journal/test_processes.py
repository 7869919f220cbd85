"""Many real processes on one journal: forks, kills, frozen ones."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from producer.journal import Journal, segments
from producer.journal.filesystem import REAL
from producer.journal.index import Index
from tests.unit.journal.support import Clock, compact, event, open_journal, receipt_of, seal_all, texts

WRITER = """
import json, os, random, sys
from producer.journal import Journal, segments
from producer import errors
directory, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
journal = Journal.open(directory, max_bytes=1 << 28, reserve_bytes=0, segment_max_bytes=1 << 18, sync_budget_s=60)
for number in range(count):
    length = rng.randint(200, 50_000 if number % 10 == 0 else 900)
    line = journal.append_event({"eventId": f"{seed}-{number}", "text": "x" * length})
    os.write(1, (line.id + "\\n").encode())  # told only after it is durable
"""

DRAINER = """
import sys, time
from producer import message, receipt
from producer.dispatcher import Dispatcher
from producer.journal import Journal, compaction
from producer.journal import line as lines
from producer.receipt import Receipt, State
KEY = message.Key(id="k", secret=b"k" * 32)
class Worker:  # stores at once; ids go to a file before the receipt does
    def __init__(self, path): self.file, self.receipts = open(path, "a"), []
    def publish(self, publications):
        for publication in publications:
            for item in publication.kwargs["batch"]:
                line = lines.parse(item["line"])
                self.file.write(line.id + "\\n")
                stored = Receipt(line_hash=line.hash, id=line.id, state=State.STORED)
                self.receipts.append(receipt.encode(stored, journal_id=item["journalId"], key=KEY))
        self.file.flush()
    def pop(self, journal_id, most):
        taken, self.receipts = self.receipts[:most], self.receipts[most:]
        return [text.encode() for text in taken]
    def queue_length(self): return 0
    def close(self): pass
compaction._LOOK_AGAIN_S = 0.5
import producer.dispatcher as d, producer.journal.index as i
d._MAINTAIN_EVERY_S = 0.5
i.RECENTLY_SENT_S = 1.0
journal = Journal.open(sys.argv[1], max_bytes=1 << 28, reserve_bytes=0, segment_max_bytes=1 << 18)
worker = Worker(sys.argv[2])
dispatcher = Dispatcher(journal, worker, worker, key=KEY)
dispatcher.start()
print("ready", flush=True)
sys.stdin.read()
print(dispatcher.flush(60), dispatcher.status().role, dispatcher.status().segments_removed, flush=True)
dispatcher.close()
"""


COMPACTOR = """
import sys, time
from producer import errors, receipt
from producer.journal import Journal, compaction
from producer.journal.index import Index
journal = Journal.open(
    sys.argv[1],
    max_bytes=1 << 28,
    reserve_bytes=1 << 16,
    segment_max_bytes=1 << 14,
    segment_max_age_s=float(sys.argv[2]),
)
index = Index(journal)
while True:
    index.poll()
    stored = []
    for entry in list(index.open_entries()):
        try:
            line = index.read_line(entry)
        except OSError:  # another one compacted it away since the poll
            continue
        if not line.id.endswith("0"):  # those are never stored
            stored.append(receipt.Receipt(line_hash=line.hash, id=line.id, state=receipt.State.STORED))
    journal.append_receipts(stored)
    compaction.heal_tails(journal, index)
    compaction.seal_finished(journal, index)
    done = compaction.compact(journal, index, now_s=time.monotonic() + 1000, everything=True)
    print(done.segments_removed, done.segments_written, flush=True)
"""


def python(code: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def many_processes(tmp_path: Path, *, writers: int, each: int, kills: int, seed: int) -> None:
    """Writers killed at random, drainers killed and started again; then everything acknowledged was stored."""
    rng = random.Random(seed)
    directory, stored = str(tmp_path / "journal"), str(tmp_path / "stored")
    drainers = [python(DRAINER, directory, stored) for _ in range(2)]
    running = [python(WRITER, directory, str(number), str(each)) for number in range(writers)]
    told: list[set[str]] = [set() for _ in running]

    def listen(process: subprocess.Popen[str], into: set[str]) -> None:
        assert process.stdout
        into.update(line.strip() for line in process.stdout if line.endswith("\n"))

    threads = [threading.Thread(target=listen, args=pair) for pair in zip(running, told, strict=True)]
    for thread in threads:
        thread.start()
    for number in range(kills):
        threading.Event().wait(rng.uniform(0.05, 0.3))
        victim = rng.choice(running[: max(1, writers // 2)])
        victim.kill()
        if number % 2:
            place = rng.randrange(2)
            drainers[place].kill()
            drainers[place].communicate()
            drainers[place] = python(DRAINER, directory, stored)
    for process, thread in zip(running, threads, strict=True):
        thread.join(120)
        process.communicate()
    assert sum(map(len, told)) >= each * (writers - writers // 2)
    answers = [drainer.communicate(timeout=120)[0] for drainer in drainers]
    assert all("True" in answer for answer in answers), answers
    found = set(Path(stored).read_text().split())
    for acknowledged in told:
        assert acknowledged <= found, "an acknowledged event was not stored"
    with Journal.open(directory, max_bytes=1 << 28, reserve_bytes=0, segment_max_bytes=1 << 18) as journal:
        status = journal.status()
        assert status.pending == 0
        torn = writers + 2 * kills
        assert status.damaged <= torn, "more damage than processes that were killed in the middle of a line"
        index = Index(journal).read_all()
        held = [fs_lock for fs_lock in index.views if not free(f"{directory}/{fs_lock}")]
        assert held == [], "a lock is left"


def free(path: str) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return REAL.try_lock(descriptor)
    finally:
        os.close(descriptor)


def test_many_processes_one_journal_small(tmp_path: Path) -> None:
    many_processes(tmp_path, writers=4, each=100, kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_many_processes_one_journal(tmp_path: Path, seed: int) -> None:
    many_processes(tmp_path, writers=10, each=1000, kills=30, seed=seed)


def compacted_by_many(tmp_path: Path, *, each: int, kills: int, seed: int) -> None:
    """Two hosts compact one directory, against all rules, and are killed anywhere in it; then nothing is missing."""
    rng = random.Random(seed)
    directory = str(tmp_path / "journal")
    writers = [python(WRITER, directory, str(number), str(each)) for number in range(2)]
    compactors = [python(COMPACTOR, directory, "0.05") for _ in range(2)]
    for number in range(kills):
        victim = compactors[number % 2]
        assert victim.stdout
        for _ in range(rng.randint(1, 3)):
            assert victim.stdout.readline(), "a compactor gave up"
        threading.Event().wait(rng.uniform(0, 0.02))
        victim.kill()
        victim.communicate()
        compactors[number % 2] = python(COMPACTOR, directory, "0.05")
    told = [set(writer.communicate(timeout=120)[0].split()) for writer in writers]
    for compactor in compactors:
        assert compactor.stdout
        assert compactor.stdout.readline(), "a compactor gave up"
        compactor.kill()
        compactor.communicate()
    with open_journal(REAL, time_is_real(), directory=directory, max_bytes=1 << 28) as journal:
        found = [located.line.id for located in journal.scan() if located.line.kind == "event"]
        never_stored = {id_ for ids in told for id_ in ids if id_.endswith("0")}
        assert len(never_stored) == 2 * each // 10
        assert never_stored <= set(found), "an acknowledged event without a receipt is gone"
        drained = python(COMPACTOR, directory, "-1")
        assert drained.stdout
        for _ in range(4):
            drained.stdout.readline()
        drained.kill()
        drained.communicate()
        index = Index(journal).read_all()
        assert {index.read_line(entry).id for entry in index.open_entries()} == never_stored
        assert index.damaged <= kills + 1


def test_two_hosts_that_compact_one_directory_and_are_killed_lose_nothing(tmp_path: Path) -> None:
    compacted_by_many(tmp_path, each=150, kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_two_hosts_that_compact_one_directory_and_are_killed_often_lose_nothing(tmp_path: Path, seed: int) -> None:
    compacted_by_many(tmp_path, each=500, kills=20, seed=seed)


def test_killed_right_after_append_returned_the_line_is_there(tmp_path: Path) -> None:
    for _ in range(3):
        process = python(WRITER, str(tmp_path / "journal"), "0", "1000")
        assert process.stdout
        told = [process.stdout.readline().strip() for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        told += [line.strip() for line in process.stdout if line.endswith("\n")]
        process.communicate()
        with open_journal(REAL, directory=str(tmp_path / "journal")) as journal:
            assert set(told) <= {located.line.id for located in journal.scan()}


def test_an_append_then_exit_without_cleaning_up_is_durable(tmp_path: Path) -> None:
    code = WRITER + "\nos._exit(0)\n"
    process = python(code, str(tmp_path / "journal"), "0", "1")
    told, _ = process.communicate()
    with open_journal(REAL, directory=str(tmp_path / "journal")) as journal:
        assert [located.line.id for located in journal.scan()] == told.split()


def test_a_frozen_process_blocks_nobody_and_its_lines_are_delivered(tmp_path: Path) -> None:
    process = python(WRITER, str(tmp_path / "journal"), "0", "100000")
    try:
        assert process.stdout
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        with open_journal(REAL, time_is_real(), directory=str(tmp_path / "journal"), max_bytes=1 << 28) as journal:
            started = time.monotonic()
            for number in range(20):
                journal.append_event(event(number))
            assert time.monotonic() - started < 5
            assert len(texts(journal)) >= 40
    finally:
        process.kill()
        process.communicate()


def time_is_real() -> Clock:
    clock = Clock()
    clock.now_s = time.time()
    return clock


# Forks


def in_child(what: object) -> object:
    """The JSON-able result of a call in a forked child, which must end by itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.write(writing, json.dumps(what()).encode())  # type: ignore[operator]
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(answer)


def test_parent_and_forked_child_and_threads_all_append(tmp_path: Path) -> None:
    with open_journal(REAL, directory=str(tmp_path / "journal"), max_bytes=1 << 28) as journal:
        journal.append_event(event(0))

        def many(start: int) -> list[str]:
            return [journal.append_event(event(start + number)).id for number in range(20)]

        threads = [threading.Thread(target=many, args=(1000 * number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        child = in_child(lambda: many(50_000))
        for thread in threads:
            thread.join(30)
        here = many(90_000)
        found = [located.line.id for located in journal.scan()]
        assert len(found) == len(set(found)) == 1 + 8 * 20 + 20 + 20
        assert set(child) | set(here) <= set(found)  # type: ignore[call-overload]


def test_a_forked_child_does_not_keep_a_lock_of_its_parent(tmp_path: Path) -> None:
    with open_journal(REAL, directory=str(tmp_path / "journal")) as journal:
        journal.append_event(event(0))
        assert journal._current is not None
        (name,) = journal.segment_names()
        assert journal._current.hold()  # as in the middle of an append
        reading, writing = os.pipe()
        has_started, started = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.write(started, b"x")
            os.read(reading, 1)
            os._exit(0)
        assert os.read(has_started, 1) == b"x"
        journal._current.close()  # the parent dies
        journal._current = None
        try:
            assert free(f"{journal.directory}/{name}")
        finally:
            for descriptor in (writing, reading, started, has_started):
                os.close(descriptor)
            os.waitpid(child, 0)


def test_a_forked_child_does_not_write_what_its_parent_had_queued(tmp_path: Path) -> None:
    with open_journal(REAL, directory=str(tmp_path / "journal")) as journal:
        journal.append_event(event(0))
        with journal._groups._writing:  # the writing thread stands still
            thread = threading.Thread(target=journal.append_event, args=(event(1),))
            thread.start()
            deadline = time.monotonic() + 10
            while journal._groups._busy_since_s is None and not journal._groups._group.waiting:
                assert time.monotonic() < deadline
            appended = in_child(lambda: [journal.append_event(event(2)).id, len(texts(journal))])
        thread.join(10)
        assert appended == [event(2)["eventId"], 2]
        assert len(texts(journal)) == 3


def test_sealing_works_on_a_real_file_system(tmp_path: Path) -> None:
    with open_journal(REAL, directory=str(tmp_path / "journal")) as journal:
        journal.append_event(event(0))
        seal_all(journal)
        journal.append_event(event(1))
        assert len(journal.segment_names()) == 2
        assert len(texts(journal)) == 2


def test_a_lock_that_is_let_go_is_free_though_a_child_was_forked_meanwhile(tmp_path: Path) -> None:
    """Compaction holds segments for a while; a child forked then would keep their locks as long as it lives."""
    with open_journal(REAL, directory=str(tmp_path / "journal")) as journal:
        journal.append_event(event(0))
        seal_all(journal)
        (name,) = journal.segment_names()
        held = segments.Segment.open(REAL, journal.directory, name, journal_id=journal.journal_id)
        assert held.hold_sealed()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        try:
            held.close()
            assert free(f"{journal.directory}/{name}")
        finally:
            os.close(writing)
            os.close(reading)
            os.waitpid(child, 0)


def test_a_forked_child_keeps_no_segment_of_its_parent_open(tmp_path: Path) -> None:
    with open_journal(REAL, directory=str(tmp_path / "journal")) as journal:
        journal.append_event(event(0))
        seal_all(journal)
        (name,) = journal.segment_names()
        held = segments.Segment.open(REAL, journal.directory, name, journal_id=journal.journal_id)

        def opened() -> list[str]:
            return [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]

        assert any(name in path for path in opened())
        assert not [path for path in in_child(opened) if str(tmp_path) in path]  # type: ignore[attr-defined]
        held.close()


def test_children_forked_in_the_middle_of_appends_capture_and_leave_without_cleaning_up(tmp_path: Path) -> None:
    with open_journal(REAL, directory=str(tmp_path / "journal"), max_bytes=1 << 28) as journal:
        stop = threading.Event()
        told: list[list[str]] = [[], []]

        def append(into: list[str], start: int) -> None:
            while not stop.is_set():
                into.append(journal.append_event(event(start + len(into))).id)

        threads = [threading.Thread(target=append, args=(told[n], 100_000 * (n + 1))) for n in range(2)]
        for thread in threads:
            thread.start()
        children: list[str] = []
        for number in range(15):
            children += in_child(  # type: ignore[arg-type]
                lambda number=number: [journal.append_event(event(10 * number + n)).id for n in range(2)]
            )
        stop.set()
        for thread in threads:
            thread.join(30)
        found = [located.line.id for located in journal.scan()]
        assert len(found) == len(set(found)), "a child wrote what its parent had queued"
        assert {*children, *told[0], *told[1]} == set(found)
        assert journal.status().damaged == 0


def test_a_process_that_holds_a_removed_segment_open_appends_to_another(tmp_path: Path) -> None:
    """Compaction removes a sealed segment of which another process still has the descriptor."""
    clock = time_is_real()
    with open_journal(REAL, clock, directory=str(tmp_path / "journal")) as journal:
        first = journal.append_event(event(0))
        (name,) = journal.segment_names()
        assert journal._current is not None
        assert journal._current.name == name
        with open_journal(REAL, clock, directory=str(tmp_path / "journal")) as drainer:
            drainer.append_receipts([receipt_of(first)])
            seal_all(drainer)
            assert compact(drainer, clock).segments_removed == 1
            later = journal.append_event(event(1))
            assert texts(drainer) == [later.text]
