"""The format of a line, as `producer.journal.line` states it, read without its code; and lines of later versions."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from producer import errors
from producer.journal import Journal, segments
from producer.journal import line as lines
from producer.receipt import State
from tests.unit.journal.crashing_filesystem import CrashingFileSystem
from tests.unit.journal.support import Clock, compact, event, open_journal, receipt_of, seal_all, texts

SAMPLE = Path(__file__).parents[2] / "data" / "journal-v1"


def summed(checked: str) -> bytes:
    return f'{checked},"sum":"{hashlib.sha256(checked.encode()).hexdigest()[:16]}"}}'.encode()


def test_a_segment_is_read_and_verified_with_json_and_sha256_alone() -> None:
    """What the docstrings tell somebody who has `less`, `jq` and `sha256sum`; none of our code."""
    journal_id = (SAMPLE / "journal-id").read_text().strip()
    kinds: dict[str, int] = {}
    hashes, named = {}, []
    for path in sorted(SAMPLE.glob("segment-*.jsonl")):
        assert re.fullmatch(r"segment-\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8}\.jsonl", path.name)
        data = path.read_bytes()
        assert data.endswith(b"\n")
        assert data.isascii()
        raw_lines = data[:-1].split(b"\n")
        for number, raw in enumerate(raw_lines):
            checked, mark, rest = raw.rpartition(b',"sum":"')
            assert mark
            assert rest == hashlib.sha256(checked).hexdigest()[:16].encode() + b'"}'
            value = json.loads(raw)
            assert list(value)[-1] == "sum", "`sum` is last"
            if number == 0:
                assert (value["segment"], value["journalId"]) == (1, journal_id)
                assert value["createdAt"].replace("-", "").replace(":", "") in path.name
            elif "sealed" in value:
                assert number == len(raw_lines) - 1
            else:
                assert list(value)[:4] == ["v", "kind", "id", "appendedAt"]
                assert value["v"] == 1
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", value["appendedAt"])
                kinds[value["kind"]] = kinds.get(value["kind"], 0) + 1
                if value["kind"] in ("event", "order"):
                    hashes[hashlib.sha256(raw).hexdigest()] = value
                    body = value["event"] if value["kind"] == "event" else value["order"]
                    assert value["id"] == body.get("eventId", value["id"])
                else:
                    named.append(value)
    assert kinds == {"event": 7, "order": 1, "sent": 6, "receipt": 6}
    for value in named:
        assert hashes[value["lineHash"]]["id"] == value["id"], "`lineHash` names a line by its exact text"
        if value["kind"] == "receipt":
            assert set(value) >= {"lineHash", "state", "reason", "delayS", "deaths"}


TEXTS = st.text(st.characters(codec=None), max_size=40)  # lone surrogates and NULs too


@given(text=TEXTS, key=TEXTS)
@example(text="\ud83d \udc00x \0 \u2028 \u2029 \x85 \x0b\x0c \r\n", key="\n")
@example(text='","sum":"0123456789abcdef"}\n{"v":1,"kind":"event"', key='{"v":')
def test_any_text_becomes_one_ascii_line_without_a_newline_and_is_read_back_as_it_was(text: str, key: str) -> None:
    body = {"event": {"eventId": "x", "userText": text, key: [text, None, 1.5, True]}}
    encoded = lines.encode(kind="event", id="x", appended_at="2026-12-01T12:00:00.000Z", body=body)
    assert encoded.isascii()
    assert len(encoded.splitlines()) == 1
    parsed = lines.parse(encoded)
    assert (parsed.body, parsed.text) == (body, encoded)
    fs = CrashingFileSystem()
    fs.make_directory("/j")
    descriptor = fs.create("/j/s")
    glued = b"torn " + encoded.encode() + b" tail\n" + encoded.encode() + b"\n"
    fs.write_all(descriptor, glued)
    found = [piece.line for piece in segments.Reader(fs, descriptor).pieces()]
    assert [line for line in found if line] == [parsed, parsed], "salvage did not find it between damage"


def test_a_line_of_a_mebibyte_is_written_and_read_and_a_longer_one_refused() -> None:
    with open_journal(CrashingFileSystem(), max_bytes=1 << 24) as journal:
        empty = len(journal.append_event({"eventId": "x", "userText": ""}).text)
        longest = journal.append_event({"eventId": "x", "userText": "x" * (lines.MAX_LINE_BYTES - 1 - empty)})
        assert len(longest.text) + 1 == lines.MAX_LINE_BYTES
        assert longest.text in texts(journal)
        with pytest.raises(errors.ContractViolation):
            journal.append_event({"eventId": "x", "userText": "x" * (lines.MAX_LINE_BYTES - empty)})
        assert journal.status().damaged == 0


@pytest.mark.parametrize(
    "damage", [b'{"v":' * 200_000, b'{"v":,"sum":"0123456789abcdef"}' * 30_000, (b'{"v":' + bytes(1000)) * 1000]
)
def test_reading_takes_time_in_proportion_to_the_damage(damage: bytes) -> None:
    fs = CrashingFileSystem()
    fs.make_directory("/j")
    descriptor = fs.create("/j/s")
    whole = lines.encode(kind="sent", id="x", appended_at="", body={"lineHash": "ab"}).encode()
    fs.write_all(descriptor, damage + b"\n" + whole + b"\n")
    began = time.process_time()
    found = [piece.line for piece in segments.Reader(fs, descriptor).pieces()]
    assert [line.text.encode() for line in found if line] == [whole]
    assert time.process_time() - began < 10, "of CPU: ten times and more what it takes"


# Later versions


def later(fs: CrashingFileSystem, journal: Journal, *, kind: str = "event", version: int = 2) -> bytes:
    """Put a line of a later version behind the last line of the only segment."""
    line = summed(f'{{"v":{version},"kind":"{kind}","id":"x","appendedAt":"2030-01-01T00:00:00.000Z","new":[1]')
    (name,) = journal.segment_names()
    fs.damage(f"{journal.directory}/{name}", lambda data: data + line + b"\n")
    return line


LATER: list[dict[str, Any]] = [{"version": 2}, {"version": 1, "kind": "tomorrow"}]


@pytest.mark.parametrize("how", LATER, ids=["version", "kind"])
def test_a_line_of_a_later_version_is_passed_over_counted_and_no_damage(how: dict[str, Any]) -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as journal:
        mine = journal.append_event(event(1))
        later(fs, journal, **how)
        other = journal.append_event(event(2))
        assert texts(journal) == [mine.text, other.text]
        status = journal.status()
        assert (status.unreadable_lines, status.damaged, status.pending) == (1, 0, 2)


@pytest.mark.parametrize("how", LATER, ids=["version", "kind"])
def test_compaction_keeps_a_line_of_a_later_version_byte_for_byte_and_what_may_speak_of_it(how: dict[str, Any]) -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as journal:
        mine = [journal.append_event(event(number, length=2000)) for number in range(5)]
        unread = later(fs, journal, **how)
        journal.append_receipts([receipt_of(line) for line in mine])
        of_later = receipt_of(mine[0], State.DEAD)
        journal.append_receipts([type(of_later)(line_hash=lines.line_hash(unread.decode()), id="x", state=State.DEAD)])
        seal_all(journal)
        for _ in range(3):
            compact(journal, clock)
        assert texts(journal) == []
        (name,) = journal.segment_names()
        assert fs.contents(f"{journal.directory}/{name}").count(unread + b"\n") == 1
        assert len(texts(journal, ["receipt"])) >= 1, "it may speak of the line that cannot be read"
        status = journal.status()
        assert (status.unreadable_lines, status.damaged, status.quarantined_bytes) == (1, 0, 0)


def test_a_line_of_a_later_version_between_damage_is_kept() -> None:
    fs, clock = CrashingFileSystem(), Clock()
    with open_journal(fs, clock) as journal:
        mine = journal.append_event(event(1, length=2000))
        (name,) = journal.segment_names()
        fs.damage(f"{journal.directory}/{name}", lambda data: data + b"torn")
        unread = later(fs, journal)
        journal.append_receipts([receipt_of(mine)])
        seal_all(journal)
        compact(journal, clock)
        (name,) = journal.segment_names()
        assert unread in fs.contents(f"{journal.directory}/{name}")
        assert b"torn" not in fs.contents(f"{journal.directory}/{name}")
        assert journal.status().unreadable_lines == 1


def test_damage_does_not_pass_for_a_line_of_a_later_version() -> None:
    line = summed('{"v":2,"kind":"event","id":"x"')
    assert lines.is_later(line)
    for position in range(len(line)):
        assert not lines.is_later(line[:position] + bytes([line[position] ^ 1]) + line[position + 1 :])
    assert not lines.is_later(lines.encode(kind="sent", id="x", appended_at="", body={}).encode())
