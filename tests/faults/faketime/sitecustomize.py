"""For processes under libfaketime 0.9.10, which refuses the absolute clock_nanosleep that Python's sleep is made of."""

import select
import time


def sleep(seconds: float, /) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = sleep
