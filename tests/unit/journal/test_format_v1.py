"""tests/data/journal-v1 is a frozen sample of version 1. It must always be readable, to the byte."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from producer.journal import Journal, segments
from producer.journal.filesystem import REAL
from producer.journal.index import Index
from producer.receipt import State
from tests.unit.journal.support import event, open_journal, order, texts

SAMPLE = Path(__file__).parents[2] / "data" / "journal-v1"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """On a copy: opening closes the directory to others, and tests append to it."""
    shutil.copytree(SAMPLE, tmp_path / "journal")
    return open_journal(REAL, directory=str(tmp_path / "journal"))


def test_the_sample_is_what_it_was() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sorted(SAMPLE.iterdir())}
    assert found == FROZEN


def test_every_line_of_it_is_read(journal: Journal) -> None:
    with journal:
        found = [located.line for located in journal.scan()]
        assert [line.kind for line in found].count("event") == 7
        assert [line.body["event"] for line in found if line.kind == "event"] == [event(number) for number in range(7)]
        assert [line.body["order"] for line in found if line.kind == "order"] == [order(1)]
        assert [line.kind for line in found].count("sent") == 6
        assert [line.kind for line in found].count("receipt") == 6
        assert journal.status().damaged == 0


def test_the_state_of_every_line_is_known(journal: Journal) -> None:
    with journal:
        index = Index(journal)
        index.poll()
        states = {index.read_line(entry).id: entry for entry in index.entries.values()}
        by_number = [states[event(number)["eventId"]] for number in range(7)]
        assert [entry.state for entry in by_number] == [
            State.STORED,
            State.REPLAYED,
            State.DEFERRED,
            State.DISCARDED,
            None,
            None,
            None,
        ]
        assert [bool(entry.sent_ms) for entry in by_number] == [True, True, True, True, True, False, False]
        assert (by_number[2].deaths, by_number[2].last.delay_s) == (1, 200)
        assert [view.sealed for view in index.views.values()] == [True, False]


def test_it_can_be_appended_to(journal: Journal) -> None:
    with journal:
        line = journal.append_event(event(100))
        assert line.text in texts(journal)
        assert len(journal.segment_names()) in (2, 3)


def test_its_headers_name_version_one() -> None:
    for path in SAMPLE.glob("*.jsonl"):
        first = path.read_bytes().partition(b"\n")[0]
        assert segments._header_version(first) == 1


FROZEN = {
    "journal-id": "137135a9a393192b",
    "segment-20261201T120000.000Z-81c5cf3e.jsonl": "1d926849f99d3879",
    "segment-20261201T120002.000Z-990f9343.jsonl": "fb514520b03ade89",
}
