"""`doctor` compares this machine's clock with Redis'."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from memory_tasks import doctor

NOW_S = 1_800_000_000


class Answers:
    """A Redis whose clock stands still."""

    def time(self) -> tuple[int, int]:
        return NOW_S, 0


class Hides:
    """One whose access list has no TIME."""

    def time(self) -> tuple[int, int]:
        raise redis.exceptions.NoPermissionError("this user has no permissions to run the 'time' command")


def told(client: Any, ahead_s: float) -> list[tuple[str, str]]:
    return [(check.level, check.found.split(":")[0]) for check in doctor.clock(client, NOW_S + ahead_s)]


@pytest.mark.parametrize("ahead_s", [-300, 0, 0.9, 300])
def test_a_clock_that_agrees_within_five_minutes_is_fine(ahead_s: float) -> None:
    assert told(Answers(), ahead_s) == [("ok", "agrees with Redis'")]


def test_one_that_does_not_is_a_warning_that_says_which_way_and_what_follows() -> None:
    assert told(Answers(), 600) == [("warn", "10 minutes ahead of Redis'")]
    assert told(Answers(), -3600) == [("warn", "60 minutes behind Redis'")]


def test_a_redis_that_does_not_tell_its_time_is_not_asked_again() -> None:
    assert told(Hides(), 0) == []
