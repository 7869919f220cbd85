"""The tail of the journal that recall reads."""

from __future__ import annotations

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
