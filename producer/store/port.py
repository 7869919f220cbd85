"""The store port: records, not memory. Two adapters implement it (`rushdb`, `sqlite`); one contract suite runs on both.

Nothing here knows facts, marks or scopes. A *where* is RushDB's own filter form, the subset below; adapters refuse
anything else with `errors.Unsupported`, so that both always mean the same:

    {"name": value}                       equal (string, number, boolean; typed, never coerced)
    {"name": {"$eq": v}} {"$ne": v}       `$ne` never matches a record that lacks the property
    {"name": {"$in": [..]}} {"$nin"}      non-empty list of one type; a record that lacks the property never matches
    {"name": {"$exists": bool}}
    {"name": {"$gt" | "$gte" | "$lt" | "$lte": v}}   numbers, or datetimes as strings in our one form
    {"$id": "x"} {"$id": {"$in": [..]}}   the record id
    {"$and": [..]} {"$or": [..]} {"$not": {..}}      siblings are AND-ed; `$not` of a missing property does not match

Errors, for every call: `errors.StoreUnavailable` (its `outcome_unknown` is True when a write may have been applied, or
may still be), `errors.StoreThrottled`, `errors.StoreRefused` (a batch: bisect it), `errors.StoreDenied`,
`errors.Unsupported`. Every call returns within the adapter's timeout. Adapters are safe to share between threads. They
never retry, sleep or log values.

A write that returned is not proof: the answer may be a lie, and a record may be doubled. Look again.
Reads return what was committed before they were sent (`Capabilities.read_lag_s` is 0), or else wait that long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = [
    "FIND_LIMIT",
    "UPSERT_ROWS",
    "Capabilities",
    "Edge",
    "IndexSpec",
    "LinkSpec",
    "Page",
    "Record",
    "Store",
    "Value",
    "Where",
]

Value = str | int | float | bool
Where = Mapping[str, Any]

FIND_LIMIT = 1000  # records per find, RushDB's own maximum
UPSERT_ROWS = 100  # rows per upsert: measured best on a real server


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One stored record. `id` orders by creation within one store (UUIDv7 text); compare ids as strings."""

    id: str
    label: str
    properties: Mapping[str, Value]
    score: float | None = None  # set by `search` only; comparable within one answer, larger is better

    def get(self, name: str) -> Any:
        return self.properties.get(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One answer of `find`. `total` counts all matches, also those beyond `limit`."""

    records: Sequence[Record]
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    type: str
    source_id: str
    target_id: str
    source_label: str
    target_label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSpec:
    """Join by equal values: every `source_label` record under `source_where` gets an edge `type` to every
    `target_label` record whose `target_key` equals its `source_key` and that matches `target_where`. Never doubled."""

    type: str
    source_label: str
    source_key: str
    source_where: Where
    target_label: str
    target_key: str
    target_where: Where = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSpec:
    """What `ensure_indexes` is asked for. `dimensions` set: we embed (external). None: the server embeds, if it can."""

    label: str
    property: str
    dimensions: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What this store does, as found out by `ensure_indexes` or `ping`; never guessed by callers."""

    name: str  # "sqlite", "rushdb", "rushdb-direct"
    keyword_search: bool  # False: callers rank a bounded scoped find themselves (RushDB 2.11)
    vector_search: bool  # True: `search(vector=...)` works on ensured external indexes
    embeds: bool  # True: `search(text=..., mode="vector")` works, the server embeds queries and records
    read_lag_s: float = 0.0


class Store(Protocol):
    def upsert(
        self, label: str, rows: Sequence[Mapping[str, Value]], merge_by: Sequence[str], *, wake: bool = False
    ) -> Sequence[Record]:
        """Create or append-merge rows by the typed values of `merge_by`; every row carries all of those keys.

        At most `UPSERT_ROWS` rows, no two with the same keys (`errors.StoreRefused` otherwise). Properties a row does
        not name are kept. Several matches are all updated. All or nothing per call. Values are flat (str, int, float,
        bool). The answer holds one record per row in no order, or nothing. `wake`: send the single-row form where the
        server has one (it wakes a managed index); rows must be one.
        """
        ...

    def find(
        self,
        label: str,
        where: Where,
        *,
        limit: int = FIND_LIMIT,
        skip: int = 0,
        order_by: Sequence[tuple[str, str]] = (("__id", "asc"),),
    ) -> Page:
        """Records of one label under `where` (may be empty). `order_by` names properties or "__id", "asc" or "desc";
        "__id" is appended when missing so that pages never overlap. `limit` 1 to `FIND_LIMIT`."""
        ...

    def search(
        self,
        label: str,
        property: str,
        where: Where,
        *,
        text: str | None = None,
        vector: Sequence[float] | None = None,
        limit: int = 20,
    ) -> Sequence[Record]:
        """The best `limit` records under a non-empty `where` (filtered first, then ranked), with `score`.

        text only: keyword search, or the server's own embedding when `Capabilities.embeds` and there is no
        `keyword_search`. vector only: exact cosine. Both: hybrid. Zero vectors are refused. `errors.Unsupported`
        when `Capabilities` does not have it. `text` is any user text: adapters quote it for their query language.
        """
        ...

    def link(self, spec: LinkSpec) -> None:
        """Add the edges of `spec`; those that are there stay. Ends that are missing are no error."""
        ...

    def edges(self, label: str, where: Where) -> Sequence[Edge]:
        """All outgoing edges of the records of `label` under `where`."""
        ...

    def edges_into(self, label: str, where: Where) -> Sequence[Edge]:
        """All incoming edges of the records of `label` under `where`."""
        ...

    def set_vectors(self, label: str, property: str, vectors: Mapping[str, Sequence[float]]) -> None:
        """Store external vectors by record id. Unknown ids: `errors.StoreRefused`, nothing written."""
        ...

    def with_vectors(self, label: str, property: str, record_ids: Sequence[str]) -> frozenset[str]:
        """Those of `record_ids` that have an external vector."""
        ...

    def delete(self, label: str, record_id: str) -> None:
        """Delete one record by id with its edges and vectors. An unknown id is no error."""
        ...

    def ensure_indexes(self, specs: Sequence[IndexSpec]) -> Capabilities:
        """Make the indexes that are missing, idempotently and safely beside others doing the same."""
        ...

    def capabilities(self) -> Capabilities:
        """What `ensure_indexes` found; asks the server once when it was not called."""
        ...

    def ping(self) -> None:
        """Return when a read works now (a find of one record); raises as every call does."""
        ...

    def close(self) -> None:
        """Release connections. Further calls raise `errors.StoreUnavailable`."""
        ...
