"""Every scenario of the table as a test of its own: nothing lost, nothing doubled, nothing else wrong."""

from __future__ import annotations

import pytest

from tests.faults import table
from tests.faults.scenarios import ALL, Scale

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_lost_or_doubled_in(name: str) -> None:
    row = ALL[name].run(Scale(seed=1))
    assert row.good, table.table([row])
