"""When the window lets a line be published again, one sentence each."""

from __future__ import annotations

from typing import Any

from producer.window import REPUBLISH_ANYWAY_S, Window

AFTER_S = 300.0


class Line:
    """As much of an index entry as the window looks at."""

    length = 100
    hash = b"x"


def window_of(*lines: Any) -> Window:
    window = Window(max_events=1000, max_bytes=1 << 20, republish_after_s=AFTER_S)
    for line in lines:
        window.add(line, 0.0, only_once=True)
    return window


def due(window: Window, now_s: float, *, empty: bool = True) -> list[Any]:
    return window.due_again(now_s, queue_is_empty=lambda: empty, limit=100)


def test_each_time_a_line_is_published_again_it_waits_twice_as_long() -> None:
    line: Any = Line()
    window = window_of(line)
    now_s = 0.0
    for times in range(6):
        wait_s = min(AFTER_S * 2**times, REPUBLISH_ANYWAY_S)
        assert due(window, now_s + wait_s - 1) == []
        now_s += wait_s
        assert due(window, now_s) == [line]
        window.add(line, now_s, only_once=False)
    assert due(window, now_s + REPUBLISH_ANYWAY_S, empty=False) == [line]


def test_a_line_that_waits_longer_holds_up_no_other() -> None:
    patient: Any = Line()
    other: Any = Line()
    window = window_of(patient)
    window.add(patient, 1.0, only_once=False)
    window.add(other, 2.0, only_once=True)
    assert due(window, 2.0 + AFTER_S) == [other]


def test_a_line_that_came_back_and_goes_out_once_more_waits_as_at_first() -> None:
    line: Any = Line()
    window = window_of(line)
    window.add(line, 1.0, only_once=False)
    assert window.remove(line, receipted=True)
    window.add(line, 2.0, only_once=False)
    assert due(window, 2.0 + AFTER_S) == [line]


def test_in_a_day_without_a_receipt_a_line_makes_few_copies() -> None:
    line: Any = Line()
    window = window_of(line)
    copies = 0
    for second in range(0, 86_400, 10):
        for found in due(window, float(second)):
            window.add(found, float(second), only_once=False)
            copies += 1
    assert copies <= 4 + 24
