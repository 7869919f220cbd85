"""Other content under one id, and the recent writes."""

from __future__ import annotations

from producer.convergence import content, driver
from producer.store.sqlite import SqliteStore
from tests.unit.convergence.cast import SCOPE_KEY, Shelf, fact, given, id_of


def test_recent_writes_hold_no_content_that_does_not_stand_when_the_one_that_does_came_by_a_copy_that_died(
    store: SqliteStore,
) -> None:
    rows = {}
    for event in (fact("tea"), fact("tea", trustClass="untrusted")):
        row = content.row_of(event, scope_key=SCOPE_KEY, session_key="", line_key="")
        rows[str(row["contentHash"])] = (event, row)
    (standing, row), (other, _) = (rows[hash_] for hash_ in sorted(rows))
    assert id_of(standing) == id_of(other)
    shelf = Shelf()
    driver.settle_all(store, [given(other)], recent=shelf)
    assert (SCOPE_KEY, id_of(other)) in shelf.entries
    store.upsert("MEMORY_FACT", [row], content.merge_by("MEMORY_FACT"))  # and its worker was gone
    driver.settle_all(store, [given(standing)], recent=shelf)
    assert shelf.entries == {}
