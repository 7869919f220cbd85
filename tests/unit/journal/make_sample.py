"""Write a journal in today's format: python -m tests.unit.journal.make_sample DIRECTORY

Made once per version; what stands in tests/data is frozen.
"""

from __future__ import annotations

import sys

from producer.journal.filesystem import REAL
from producer.receipt import State
from tests.unit.journal.support import Clock, event, open_journal, order, receipt_of, seal_all


def main(directory: str) -> None:
    clock = Clock()
    with open_journal(REAL, clock, directory=directory) as journal:
        lines = [journal.append_event(event(number), line_key="1f" * 32, session_key="2e" * 32) for number in range(6)]
        ordered = journal.append_order(order(1))
        journal.append_sent([*lines[:5], ordered])
        clock.advance(1)
        journal.append_receipts(
            [
                receipt_of(lines[0]),
                receipt_of(lines[1], State.DEAD, reason="contract_violation"),
                receipt_of(lines[2], State.DEFERRED, reason="store_unavailable", delay_s=200, deaths=1),
                receipt_of(ordered, State.FORGOTTEN),
            ]
        )
        seal_all(journal)
        clock.advance(1)
        journal.append_event(event(6))
        journal.append_receipts([receipt_of(lines[1], State.REPLAYED), receipt_of(lines[3], State.DISCARDED)])


if __name__ == "__main__":
    main(sys.argv[1])
