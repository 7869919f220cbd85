"""The reader's rule applied to what a search brought: `producer.convergence.reader`, and the finds that it asks for.

Two finds at most, and only when a record of another adapter is among the results: it carries no verdict of ours, so the
marks on its id and our own content under it decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from producer.convergence import reader
from producer.convergence.content import ID, MARK
from producer.recall import where as recall_where
from producer.scope import Scope
from producer.store.port import Record, Store

__all__ = ["standing"]


def standing(store: Store, scope: Scope, records: Sequence[Record]) -> list[Record]:
    """Those of `records` (all of this scope) that stand, one per id, in their order."""
    kept = reader.keep(records)
    marks_found: list[Record] = []
    ours: list[Record] = []
    for label, ids in reader.foreign_ids(kept).items():
        marks_found += store.find(MARK, recall_where.marks_on(scope, ids)).records
        of_ours = recall_where.within(scope, **{ID[label]: {"$in": ids}}, contentHash={"$exists": True})
        ours += store.find(label, of_ours).records
    return reader.without_ended(kept, marks_found=marks_found, ours=ours) if marks_found or ours else kept
