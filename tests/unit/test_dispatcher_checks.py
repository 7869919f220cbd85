"""A drainer asks workers about its dead lines: at its start, every day, and without any trace in the journal."""

from __future__ import annotations

from producer import message
from producer.receipt import State
from tests.unit.journal.support import receipt_of, texts
from tests.unit.test_dispatcher import KEY, Host


def host_with_dead(count: int = 3, **fields: object) -> Host:
    """A journal with dead lines, whose dispatcher is about to start; nothing is published yet."""
    host = Host()
    host.rounds(1)
    captured = host.capture(count)
    host.rounds()
    for line in captured:
        host.receipt(line, State.DEAD, **{"reason": "store_refused:422", **fields})
    host.rounds(3, every_s=6)
    host.restart()
    host.broker.take()
    return host


def test_at_its_start_all_dead_lines_are_asked_about_with_their_reason_and_deaths() -> None:
    host = host_with_dead(3, deaths=2)
    host.rounds()
    (publication,) = host.broker.published
    assert publication.queue == message.BACKLOG_QUEUE
    assert publication.task_id.startswith("chunk-")
    assert message.verify(publication.kwargs, publication.headers, {KEY.id: KEY.secret}.get) == KEY.id
    assert [(i["check"], i["reason"], i["deaths"], i["unsure"]) for i in host.broker.items()] == [
        (True, "store_refused:422", 2, False)
    ] * 3
    assert host.dispatcher.status().checked == 3


def test_a_question_is_neither_marked_nor_in_flight_nor_asked_again_the_same_day() -> None:
    host = host_with_dead(2)
    before = host.kinds()
    host.rounds(100, every_s=60)
    assert len(host.broker.items()) == 2
    assert host.kinds() == before
    status = host.dispatcher.status()
    assert (status.in_flight, status.pending, status.published) == (0, 0, 0)


def test_it_is_asked_again_every_day() -> None:
    host = host_with_dead(2)
    host.rounds()
    host.rounds(2, every_s=86_400)
    assert len(host.broker.items()) == 6


def test_what_is_forgotten_leaves_and_what_is_dead_as_before_changes_nothing() -> None:
    host = host_with_dead(2)
    gone, kept = (located.line for located in host.journal.scan() if located.line.kind == "event")
    host.rounds()
    receipts_before = host.kinds().count("receipt")
    host.receipt(gone, State.FORGOTTEN)
    host.receipt(kept, State.DEAD, reason="store_refused:422")
    host.rounds(100, every_s=6)
    assert texts(host.journal) == [kept.text]
    assert host.dispatcher.status().dead == 1
    assert host.kinds().count("receipt") <= receipts_before


def test_many_are_asked_about_in_chunks_one_a_second() -> None:
    host = Host(segment_max_bytes=1 << 20)
    host.rounds(1)
    captured = host.capture(250)
    host.rounds(20, every_s=0.1)
    for line in captured:
        host.receipt(line, State.DEAD, reason="poison", deaths=3)
    host.rounds(5)
    host.restart()
    host.broker.take()
    host.rounds(3)
    assert [publication.count for publication in host.broker.published] == [100]
    host.rounds(5, every_s=1)
    assert [publication.count for publication in host.broker.published] == [100, 100, 50]


def test_while_the_broker_is_away_nothing_is_lost_and_no_question_is_tried_in_a_row() -> None:
    host = host_with_dead(2)
    host.broker.is_away = True
    host.rounds(5)
    assert host.broker.calls <= 4
    host.broker.is_away = False
    (line,) = host.capture(1, start=50)
    host.rounds(20, every_s=5)
    assert sorted(len(p.kwargs["batch"]) for p in host.broker.published) == [1, 2]
    assert line.id in host.broker.ids()


def test_a_line_that_was_replayed_meanwhile_is_not_asked_about() -> None:
    host = host_with_dead(2)
    lines = [located.line for located in host.journal.scan() if located.line.kind == "event"]
    host.journal.append_receipts([receipt_of(lines[0], State.REPLAYED)])
    host.rounds()
    asked = [item["line"] for item in host.broker.items() if item.get("check")]
    assert asked == [lines[1].text]


def test_an_answer_that_was_on_its_way_does_not_undo_a_replay() -> None:
    host = host_with_dead(1)
    (line,) = (located.line for located in host.journal.scan() if located.line.kind == "event")
    host.rounds()
    host.broker.take()
    host.receipt(line, State.DEAD, reason="store_refused:422")
    host.journal.append_receipts([receipt_of(line, State.REPLAYED)])
    host.rounds(1, every_s=6)
    (item,) = host.broker.items()
    assert (item["line"], item["unsure"], item["deaths"]) == (line.text, True, 0)
    assert host.dispatcher.status().pending == 1
    host.receipt(line, State.DEAD, reason="store_refused:422")  # the replay's own
    host.rounds()
    assert host.dispatcher.status().dead == 1


def test_an_answer_that_comes_while_a_replay_is_in_flight_is_outranked_by_what_the_replay_comes_to() -> None:
    for outcome in ({"state": State.STORED}, {"state": State.DEFERRED, "reason": "unsure", "deaths": 1}):
        host = host_with_dead(1)
        (line,) = (located.line for located in host.journal.scan() if located.line.kind == "event")
        host.journal.append_receipts([receipt_of(line, State.REPLAYED)])
        host.rounds()
        host.receipt(line, State.DEAD, reason="store_refused:422")
        host.rounds()
        host.receipt(line, **outcome)
        host.rounds(3, every_s=6)
        assert host.dispatcher.status().dead == 0


def test_a_question_waits_until_the_queue_is_empty_so_that_starts_without_workers_pile_up_nothing() -> None:
    host = host_with_dead(2)
    host.broker.waiting = 1
    host.rounds(100, every_s=1)
    assert host.broker.published == []
    host.broker.waiting = 0
    host.broker.on_publish = lambda: setattr(host.broker, "waiting", 1)  # nobody works
    host.rounds(20, every_s=1)
    for _ in range(5):
        host.restart()
        host.rounds(20, every_s=1)
    assert len(host.broker.published) == 1


def test_of_many_questions_the_next_one_waits_until_the_last_one_was_taken() -> None:
    host = Host(segment_max_bytes=1 << 20)
    host.rounds(1)
    captured = host.capture(250)
    host.rounds(20, every_s=0.1)
    for line in captured:
        host.receipt(line, State.DEAD, reason="poison", deaths=3)
    host.rounds(5)
    host.restart()
    host.broker.take()
    host.broker.on_publish = lambda: setattr(host.broker, "waiting", 1)
    host.rounds(60, every_s=1)
    assert [publication.count for publication in host.broker.published] == [100]
    host.broker.waiting = 0
    host.rounds(11, every_s=1)
    assert [publication.count for publication in host.broker.published] == [100, 100]
