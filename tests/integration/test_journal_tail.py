"""The tail of the journal that recall reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from producer import errors, keys, receipt
from producer.journal import Journal, segments
from producer.recall import tail
from producer.scope import Scope


def scope_of(participant: str) -> Scope:
    return Scope(
        agent_id="a",
        profile_id="p",
        privacy_scope="private",
        participant_scope_hash=participant * 64,
        sandbox_eligible=False,
    )


ANN, BOB = scope_of("a"), scope_of("b")


def open_journal(path: Path, **changed: Any) -> Journal:
    bounds = {"max_bytes": 1 << 30, "reserve_bytes": 1 << 20, "segment_max_bytes": 1 << 23}
    return Journal.open(path, **{**bounds, **changed})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(tmp_path / "journal") as opened:
        yield opened


def append(journal: Journal, number: int, scope: Scope = ANN, pad: str = "") -> Any:
    return journal.append_event({"eventId": f"{number:064x}", "n": number, "pad": pad, **scope.fields()})


def settle(journal: Journal, line: Any, state: receipt.State = receipt.State.STORED) -> None:
    journal.append_receipts([receipt.Receipt(line_hash=line.hash, id=line.id, state=state)])


def numbers(found: Any) -> list[int]:
    return [body["event"]["n"] for body in found]


def test_open_lines_of_the_scope_come_oldest_first_and_leave_with_their_terminal_receipt(journal):
    follow = tail.JournalTail(journal)
    assert follow(ANN.key) == []
    first, second = append(journal, 1), append(journal, 2)
    append(journal, 3, BOB)
    assert numbers(follow(ANN.key)) == [1, 2] and numbers(follow(BOB.key)) == [3]
    settle(journal, second, receipt.State.DEFERRED)
    assert numbers(follow(ANN.key)) == [1, 2]
    settle(journal, first)
    settle(journal, second, receipt.State.DEAD)
    assert follow(ANN.key) == [] and numbers(follow(BOB.key)) == [3]


def test_what_was_settled_before_is_not_there_at_the_start(journal):
    settle(journal, append(journal, 1))
    append(journal, 2)
    assert numbers(tail.JournalTail(journal)(ANN.key)) == [2]


def test_lines_of_other_processes_and_segments_are_seen(journal, tmp_path):
    follow = tail.JournalTail(journal)
    append(journal, 1)
    child = os.fork()
    if child == 0:
        append(journal, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with open_journal(tmp_path / "journal", segment_max_bytes=500) as small:
        for number in (3, 4, 5):
            append(small, number)
    assert sorted(numbers(follow(ANN.key))) == [1, 2, 3, 4, 5]
    assert len(journal.segment_names()) > 1


def test_orders_come_to_their_scope_and_an_operators_to_every_scope(journal):
    journal.append_order({"what": "retract", "scope": ANN.fields(), "target": "t", "nonce": "1"})
    journal.append_order({"what": "forget", "everywhere": True, "target": "u", "nonce": "2"})
    journal.append_order({"what": "forget", "scope": {"agentId": "incomplete"}, "target": "v", "nonce": "3"})
    follow = tail.JournalTail(journal)
    assert [body["order"]["target"] for body in follow(ANN.key)] == ["t", "u"]
    assert [body["order"]["target"] for body in follow(BOB.key)] == ["u"]


def test_lines_and_bytes_are_bounded_and_the_newest_stay(journal):
    for number in range(tail.MAX_LINES + 20):
        append(journal, number)
    found = numbers(tail.JournalTail(journal)(ANN.key))
    assert len(found) == tail.MAX_LINES and found[-1] == tail.MAX_LINES + 19
    for number in range(1000, 1040):
        append(journal, number, pad="x" * 100_000)
    assert numbers(tail.JournalTail(journal)(ANN.key))[-1] == 1039
    assert len(tail.JournalTail(journal)(ANN.key)) <= 12  # one megabyte of a segment is read at the start


def targets(found: Any) -> list[str]:
    return [body["order"]["target"] for body in found if "order" in body]


def test_an_order_stays_until_it_is_settled_however_many_lines_come_after_it_and_whoever_starts_then(journal, tmp_path):
    follow = tail.JournalTail(journal)
    assert follow(ANN.key) == []
    with open_journal(tmp_path / "journal", segment_max_bytes=300_000) as small:
        settled, gone = forget(small, target="1" * 64), forget(small, target="2" * 64)
        settle(small, settled)
        for number in range(tail.MAX_LINES):
            append(small, number)
        assert targets(follow(ANN.key)) == ["2" * 64]  # more lines than are kept
        for number in range(3 * tail._START_SEGMENTS):
            append(small, number, pad="x" * 400_000)
        follow(ANN.key)
        append(small, 1000)
        assert len(small.segment_names()) > 2 * tail._START_SEGMENTS
        assert targets(follow(ANN.key)) == targets(tail.JournalTail(journal)(ANN.key)) == ["2" * 64]
        started = tail.JournalTail(journal)
        assert targets(started(BOB.key)) == []
        settle(small, gone)
        assert targets(follow(ANN.key)) == targets(started(ANN.key)) == []
        assert targets(tail.JournalTail(journal)(ANN.key)) == []


def test_an_order_further_back_than_a_segment_is_followed_from_is_found(journal):
    forget(journal, target="1" * 64)
    append(journal, 1, pad="x" * 800_000)
    append(journal, 2, pad="x" * 800_000)
    found = tail.JournalTail(journal)(ANN.key)
    assert targets(found) == ["1" * 64] and numbers(body for body in found if "event" in body) == [2]


@pytest.mark.parametrize("before", range(0, 240, 16))
def test_an_order_is_found_wherever_the_reading_of_a_segment_is_cut(journal, monkeypatch, before):
    monkeypatch.setattr(tail, "_CHUNK", 256)
    monkeypatch.setattr(tail, "_START_BYTES", 1)
    append(journal, 1, pad="x" * before)
    first, second = forget(journal, target="1" * 64), forget(journal, target="2" * 64)
    settle(journal, second)
    append(journal, 2)
    assert first is not None and targets(tail.JournalTail(journal)(ANN.key)) == ["1" * 64]


def test_an_order_within_damage_is_found_and_a_segment_of_a_later_version_is_not_read(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(tail, "_START_BYTES", 1)
    forget(journal, target="1" * 64)
    append(journal, 1)
    (name,) = journal.segment_names()
    path = tmp_path / "journal" / name
    header, *lines = path.read_bytes().split(b"\n")
    path.write_bytes(header + b"\ndamaged" + b"".join(lines) + b"\n")
    assert targets(tail.JournalTail(journal)(ANN.key)) == ["1" * 64]
    checked = header.rpartition(b',"sum":')[0].replace(b'"segment":1', b'"segment":2')
    summed = checked + b',"sum":"' + hashlib.sha256(checked).hexdigest()[:16].encode() + b'"}'
    path.write_bytes(b"\n".join([summed, *lines]))
    assert tail.JournalTail(journal)(ANN.key) == []


def test_an_order_that_was_being_written_at_the_start_is_followed_in_an_old_segment_too(tmp_path, monkeypatch):
    monkeypatch.setattr(tail, "_START_SEGMENTS", 1)
    with open_journal(tmp_path / "journal", segment_max_bytes=1) as journal:
        forget(journal, target="1" * 64)
        append(journal, 1)
        old = tmp_path / "journal" / next(iter(journal.segment_names()))
        whole = old.read_bytes()
        old.write_bytes(whole[: whole.index(b'"target"')])
        follow = tail.JournalTail(journal)
        assert targets(follow(ANN.key)) == [] and len(journal.segment_names()) > 1
        old.write_bytes(whole)
        assert targets(follow(ANN.key)) == ["1" * 64]


def test_too_many_orders_that_wait_are_an_error_until_enough_are_settled(journal, monkeypatch, caplog):
    monkeypatch.setattr(tail, "MAX_ORDERS", 2)
    orders = [forget(journal, target=str(number) * 64) for number in range(3)]
    follow = tail.JournalTail(journal)
    for _ in range(2):
        with pytest.raises(errors.JournalFailed, match="too many orders"):
            follow(ANN.key)
    assert [record.action for record in caplog.records] == ["recall.too_many_orders"]
    settle(journal, orders[0])
    assert targets(follow(ANN.key)) == ["1" * 64, "2" * 64]


def test_damage_is_passed_over_and_a_directory_that_is_gone_is_one_error(journal, tmp_path):
    append(journal, 1)
    (name,) = journal.segment_names()
    with (tmp_path / "journal" / name).open("ab") as segment:
        segment.write(b"damaged\n")
    append(journal, 2)
    follow = tail.JournalTail(journal)
    assert numbers(follow(ANN.key)) == [1, 2]
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    with pytest.raises(errors.JournalFailed):
        follow(ANN.key)
    (tmp_path / "elsewhere").rename(tmp_path / "journal")
    assert numbers(follow(ANN.key)) == [1, 2]


def forget(journal: Journal, scope: Scope = ANN, at: str = "", **names: Any) -> Any:
    order = {"what": "forget", "scope": scope.fields(), "at": at or segments.iso_of_ms(journal.now_ms()), "nonce": "n"}
    if names.get("everywhere"):
        del order["scope"]
    return journal.append_order({**order, **names})


GROUPS: dict[str, dict[str, Any]] = {
    "session": {"session": keys.session_key(runtime="custom", external_session_id="s", scope=ANN)},
    "participant": {"participant": "a" * 64},
    "profile": {"agentId": "a", "profileId": "p"},
}


@pytest.mark.parametrize("group", GROUPS)
def test_lines_of_a_group_leave_with_its_order_and_stay_away_when_that_is_settled_before_them(journal, group):
    follow = tail.JournalTail(journal)
    said = {"runtime": "custom", "externalSessionId": "s"}
    journal.append_event({"eventId": "1" * 64, "n": 1, **said, **ANN.fields()})
    append(journal, 2, BOB)
    order = forget(journal, group=GROUPS[group])
    assert [body for body in follow(ANN.key) if "event" in body] == []
    assert numbers(follow(BOB.key)) == [2]
    settle(journal, order)
    assert follow(ANN.key) == [] and numbers(follow(BOB.key)) == [2]
    assert tail.JournalTail(journal)(ANN.key) == []


def test_what_was_appended_a_while_after_an_order_for_a_group_is_given(journal):
    long_ago = segments.iso_of_ms(journal.now_ms() - 61_000)
    forget(journal, at=long_ago, group=GROUPS["participant"])
    append(journal, 1)
    assert [body["event"]["n"] for body in tail.JournalTail(journal)(ANN.key) if "event" in body] == [1]


def test_an_order_that_was_refused_hides_nothing_any_more(journal):
    follow = tail.JournalTail(journal)
    append(journal, 1)
    append(journal, 2, BOB)
    order = forget(journal, everywhere=True, group=GROUPS["profile"])
    assert [body for body in (*follow(ANN.key), *follow(BOB.key)) if "event" in body] == []
    settle(journal, order, receipt.State.DEAD)
    assert numbers(follow(ANN.key)) == [1] and numbers(follow(BOB.key)) == [2]
