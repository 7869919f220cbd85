"""Bounded threads and the breaker of recall."""

from __future__ import annotations

import os
import threading
import time

import pytest

from producer import errors
from producer.recall.breaker import Breaker
from producer.recall.slots import Slots


def soon() -> float:
    return time.monotonic() + 5


def test_a_call_beyond_the_slots_is_shed_and_a_hung_one_frees_its_slot_when_it_ends():
    slots, gate = Slots(2, name="t"), threading.Event()
    hung = [slots.submit(gate.wait) for _ in range(2)]
    assert all(hung)
    assert slots.submit(lambda: 1) is None
    assert not hung[0].wait(time.monotonic() + 0.01)
    gate.set()
    assert all(job.wait(soon()) and job.succeeded for job in hung)
    again = slots.submit(lambda: 7)
    assert again is not None and again.wait(soon()) and again.value == 7
    assert slots.threads <= 2
    slots.close()


def test_idle_threads_are_used_again():
    slots = Slots(8, name="t")
    for number in range(50):
        job = slots.submit(lambda number=number: number)
        assert job is not None and job.wait(soon()) and job.value == number
    assert slots.threads == 1
    slots.close()


def test_what_a_call_raises_is_named_and_never_quoted(caplog: pytest.LogCaptureFixture):
    slots = Slots(2, name="t")

    def fails(problem: Exception) -> None:
        raise problem

    known = slots.submit(lambda: fails(errors.StoreUnavailable("secret text")))
    unknown = slots.submit(lambda: fails(ValueError("secret text")))
    assert known is not None and unknown is not None
    assert known.wait(soon()) and not known.succeeded and known.error == "StoreUnavailable"
    assert unknown.wait(soon()) and unknown.error == "ValueError"
    assert "secret text" not in caplog.text and "ValueError" in caplog.text
    slots.close()


def test_close_ends_the_threads_and_sheds_what_comes_later():
    before = threading.active_count()
    slots = Slots(4, name="t")
    job = slots.submit(lambda: None)
    assert job is not None and job.wait(soon())
    slots.close()
    deadline = soon()
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() <= before  # a thread of an earlier test may have ended meanwhile
    assert slots.submit(lambda: None) is None


def test_a_forked_child_has_free_slots_although_its_parents_hang():
    slots, gate = Slots(1, name="t"), threading.Event()
    assert slots.submit(gate.wait) is not None
    child = os.fork()
    if child == 0:
        job = slots.submit(lambda: 3)
        os._exit(0 if job is not None and job.wait(soon()) and job.value == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.set()
    slots.close()


def test_the_breaker_opens_after_three_failures_in_a_row_and_closes_on_one_answer():
    now = [100.0]
    breaker = Breaker(clock=lambda: now[0])
    breaker.failed(), breaker.failed()
    breaker.succeeded()
    breaker.failed(), breaker.failed()
    assert not breaker.is_open and breaker.share() == 1.0
    breaker.failed()
    assert breaker.is_open and 0 < breaker.share() < 0.5
    breaker.succeeded()
    assert breaker.share() == 1.0


def test_a_breaker_that_is_open_for_long_lets_one_recall_in_half_a_second_try():
    now = [100.0]
    breaker = Breaker(clock=lambda: now[0])
    for _ in range(3):
        breaker.failed()
    assert breaker.share() > 0 and breaker.share() > 0  # eager at first
    now[0] += 11
    assert breaker.share() > 0
    assert breaker.share() == 0
    now[0] += 0.6
    assert breaker.share() > 0
