"""What durable capture costs against a bare append + fdatasync of the same bytes to one open file."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from producer.journal import Journal
from tests.benchmarks.table import Row, median

EVENT = {
    "schemaVersion": 1,
    "eventType": "episode",
    "eventId": "0" * 64,
    "userText": "u" * 700,
    "assistantText": "a" * 700,
}


def measure(*, quick: bool) -> list[Row]:
    rounds, count, threads = (2, 50, 4) if quick else (7, 400, 16)
    bare, one, many = [], [], []
    with tempfile.TemporaryDirectory(dir=_disk()) as folder:
        root = Path(folder)
        for number in range(rounds):
            with _journal(root / f"one-{number}") as journal:
                data = journal.append_event({**EVENT, "eventId": "f" * 64}).text.encode() + b"\n"
                bare.append(_bare(root / f"bare-{number}", data, count))
                one.append(_append(journal, count, "a"))
            with _journal(root / f"many-{number}") as journal:
                many.append(_threads(journal, count, threads))
    return [
        Row(
            name="capture, one thread",
            figure=median(one),
            baseline=median(bare),
            baseline_name="append + fdatasync",
            unit="us/event",
        ),
        Row(
            name=f"capture, {threads} threads",
            figure=median(many),
            baseline=median(bare),
            baseline_name="append + fdatasync",
            unit="us/event",
        ),
    ]


def _disk() -> str:
    """Where the checkout is: /tmp may be memory."""
    return str(Path.cwd())


def _journal(path: Path) -> Journal:
    return Journal.open(path, max_bytes=1 << 30, reserve_bytes=1 << 20, segment_max_bytes=8 << 20)


def _bare(path: Path, data: bytes, count: int) -> float:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(count):
            os.write(descriptor, data)
            os.fdatasync(descriptor)
        return (time.perf_counter() - began) / count * 1e6
    finally:
        os.close(descriptor)


def _append(journal: Journal, count: int, prefix: str) -> float:
    began = time.perf_counter()
    for number in range(count):
        journal.append_event({**EVENT, "eventId": f"{prefix}{number:063x}"})
    return (time.perf_counter() - began) / count * 1e6


def _threads(journal: Journal, count: int, threads: int) -> float:
    started = threading.Barrier(threads + 1)

    def work(name: str) -> None:
        started.wait()
        _append(journal, count, name)

    workers = [threading.Thread(target=work, args=(f"{n:x}",)) for n in range(threads)]
    for worker in workers:
        worker.start()
    started.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return (time.perf_counter() - began) / (count * threads) * 1e6
