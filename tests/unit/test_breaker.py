"""When a tenant's store counts as away, who may try it then, and how long the others wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memory_tasks import breaker


class Bench:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.breakers = breaker.Breakers(hold_s=30.0, monotonic=lambda: self.now_s)
        self.breaker = self.breakers.of("local")

    def message(self, *, answered: bool | None, asked_wait_s: float = 0.0) -> bool:
        """Whether a message got its turn; it ends as told."""
        turn = self.breaker.enter()
        if turn is None:
            return False
        self.breaker.leave(turn, answered=answered, asked_wait_s=asked_wait_s)
        return True

    def open(self) -> None:
        """Five failures in exactly five seconds."""
        for number in range(5):
            self.now_s += 1.25 if number else 0.0
            assert self.message(answered=False)
        assert self.breaker.hold_s() > 0


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_failures_are_left_to_celery_however_many_come_at_once(bench):
    for _ in range(100):
        assert bench.message(answered=False)
    assert bench.breaker.hold_s() == 0.0


def test_few_failures_open_nothing_however_long_they_go_on(bench):
    for _ in range(4):
        assert bench.message(answered=False)
        bench.now_s += 1000
    assert bench.breaker.hold_s() == 0.0


def test_an_answer_in_between_begins_the_count_again(bench):
    for _ in range(10):
        for _ in range(4):
            assert bench.message(answered=False)
            bench.now_s += 10
        assert bench.message(answered=True)


def test_an_open_breaker_lets_nothing_through_but_one_probe_at_a_time(bench):
    bench.open()
    assert bench.breaker.enter() is None
    bench.now_s += 2.0
    probe = bench.breaker.enter()
    assert probe == breaker.Turn(is_probe=True)
    assert [bench.breaker.enter() for _ in range(3)] == [None] * 3
    bench.breaker.leave(probe, answered=False)
    assert bench.breaker.enter() is None
    bench.now_s += 2.0
    assert bench.breaker.enter() is not None


def test_a_late_failure_of_an_old_message_gives_nobody_a_second_probe(bench):
    old = bench.breaker.enter()
    bench.open()
    bench.now_s += 2.0
    probe = bench.breaker.enter()
    assert probe is not None
    bench.breaker.leave(old, answered=False)
    bench.now_s += 10.0
    assert bench.breaker.enter() is None


def test_a_probe_that_succeeds_closes_it(bench, caplog):
    bench.open()
    bench.now_s += 2.0
    assert bench.message(answered=True)
    assert bench.breaker.hold_s() == 0.0
    assert [bench.message(answered=True) for _ in range(3)] == [True] * 3
    assert caplog.text.count("action=store_away") == 1
    assert caplog.text.count("action=store_back") == 1


def test_a_probe_that_tells_nothing_gives_its_turn_back_and_closes_nothing(bench):
    bench.open()
    bench.now_s += 2.0
    assert bench.message(answered=None)
    assert bench.breaker.hold_s() > 0
    assert bench.message(answered=True)


def test_what_waits_waits_longer_the_longer_the_store_is_away_up_to_five_minutes(bench):
    bench.open()
    assert bench.breaker.hold_s() == 30.0
    for later_s, hold_s in ((115.0, 60.0), (1000.0, 300.0), (100_000.0, 300.0)):
        bench.now_s += later_s
        assert bench.breaker.hold_s() == pytest.approx(hold_s)


def test_a_store_that_asked_for_a_wait_is_probed_no_sooner(bench):
    bench.open()
    bench.now_s += 2.0
    assert bench.message(answered=False, asked_wait_s=200.0)
    bench.now_s += 199.0
    assert not bench.message(answered=True)
    assert bench.breaker.hold_s() >= 1.0
    bench.now_s += 1.0
    assert bench.message(answered=True)


def test_only_the_message_that_opens_it_is_told_that_an_outage_begins(bench):
    begins: list[bool] = []
    leave: Callable[[], None] = lambda: begins.append(  # noqa: E731
        bench.breaker.leave(bench.breaker.enter() or breaker.Turn(is_probe=False), answered=False)
    )
    for _ in range(7):
        leave()
        bench.now_s += 1.5
    assert begins == [False] * 4 + [True] + [False] * 2


def test_tenants_have_breakers_of_their_own(bench):
    bench.open()
    assert bench.breakers.of("local") is bench.breaker
    assert bench.breakers.of("other").enter() is not None
