"""F39 on a real file system, whole: damage anywhere, and everything else is delivered."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from producer import message
from producer.dispatcher import Dispatcher
from producer.journal import Journal
from producer.journal import line as lines
from producer.journal.filesystem import REAL
from tests.unit.journal.support import Clock, event, open_journal
from tests.unit.test_dispatcher import Broker

KEY = message.Key(id="host", secret=b"k" * 32)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    with open_journal(REAL, directory=str(tmp_path / "template")) as journal:
        for number in range(6):
            journal.append_event(event(number))
    return tmp_path / "template"


def damaged(template: Path, change: Callable[[bytes], bytes]) -> Journal:
    copy = template.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(template, copy)
    (segment,) = copy.glob("segment-*.jsonl")
    segment.write_bytes(change(segment.read_bytes()))
    return open_journal(REAL, directory=str(copy))


def delivered(journal: Journal) -> tuple[list[str], int]:
    """Append one more, drain, and tell which ids went out and how much damage was counted."""
    clock, broker = Clock(), Broker()
    with journal:
        journal.append_event(event(100))
        dispatcher = Dispatcher(journal, broker, broker, key=KEY, monotonic=clock)
        for _ in range(3):
            dispatcher.run_once()
            clock.advance(6)
        counted = dispatcher.status().damaged
        dispatcher.close()
    return broker.ids(), counted


def ids(*numbers: int) -> list[str]:
    return [event(number)["eventId"] for number in numbers]


def test_cut_at_every_byte_of_the_last_two_records(template: Path) -> None:
    (segment,) = template.glob("segment-*.jsonl")
    whole = segment.read_bytes()
    last, before = len(whole.splitlines(keepends=True)[-1]), len(whole.splitlines(keepends=True)[-2])
    for cut in range(1, last + before + 1, 7):
        left = [number for number in range(6) if number < (4 if cut > last + 1 else 5 if cut > 1 else 6)]
        torn = cut not in (1, last, last + 1, last + before)
        got, counted = delivered(damaged(template, lambda data, cut=cut: data[:-cut]))
        assert sorted(got) == sorted(ids(*left, 100)), cut
        assert counted == int(torn), cut


def test_four_kilobytes_of_nuls_appended(template: Path) -> None:
    got, counted = delivered(damaged(template, lambda data: data + bytes(4096)))
    assert sorted(got) == sorted(ids(*range(6), 100))
    assert counted == 1


def test_one_bit_flipped_anywhere_costs_at_most_that_record(template: Path) -> None:
    rng = random.Random(0)
    (segment,) = template.glob("segment-*.jsonl")
    starts = [0]
    for line in segment.read_bytes().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for _ in range(60):
        position, bit = rng.randrange(starts[-1]), rng.randrange(8)
        hit = sum(start <= position for start in starts) - 2  # -1: the header

        def flip(data: bytes, position: int = position, bit: int = bit) -> bytes:
            return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]

        got, counted = delivered(damaged(template, flip))
        missing = set(ids(*range(6), 100)) - set(got)
        assert missing <= set(ids(hit)), (position, bit)
        assert counted >= 1
        assert len(got) == len(set(got))


def test_the_bad_record_is_quarantined_closed_to_others_and_once(template: Path) -> None:
    journal = damaged(template, lambda data: data.replace(b'"userText":"2', b'"userText":"9'))
    directory = Path(journal.directory)
    for _ in range(3):
        delivered(open_journal(REAL, directory=str(directory)))
    (kept,) = (directory / "quarantine").iterdir()
    assert b'"userText":"9' in kept.read_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert (directory / "quarantine").stat().st_mode & 0o777 == 0o700
    with pytest.raises(lines.errors.DamagedLine):
        lines.parse(kept.read_bytes())
    journal.close()


def test_the_quarantine_is_bounded_and_damage_beyond_it_is_counted(template: Path) -> None:
    from producer.journal import quarantine

    junk = b"".join(bytes([number]) * 300_000 + b"\n" for number in range(200, 220))
    journal = damaged(template, lambda data: data + junk)
    journal.budget.max_bytes = journal.budget.events_limit = 1 << 30
    directory = journal.directory
    got, counted = delivered(journal)
    assert sorted(got) == sorted(ids(*range(6), 100))
    assert counted == 20
    assert sum(quarantine.kept(REAL, directory).values()) <= quarantine.MAX_BYTES
