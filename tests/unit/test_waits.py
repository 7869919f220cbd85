"""waits.until: asks at once, then again, within its bound."""

from __future__ import annotations

import time

import pytest

from memory_tasks import waits


def test_what_is_so_already_is_not_waited_for():
    asked = []
    assert waits.until(lambda: bool(asked.append(1)) or True, deadline_s=60)
    assert asked == [1]


def test_it_asks_again_until_it_is_so():
    answers = iter([False, False, False, True])
    assert waits.until(lambda: next(answers), deadline_s=60, first_s=0.001)
    assert next(answers, None) is None


def test_after_the_deadline_the_answer_is_no():
    began = time.monotonic()
    assert waits.until(lambda: False, deadline_s=0.1, first_s=0.01) is False
    assert time.monotonic() - began < 10


def test_what_the_question_raises_ends_the_wait():
    def broken() -> bool:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        waits.until(broken, deadline_s=60)
