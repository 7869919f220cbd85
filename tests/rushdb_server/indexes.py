"""The indexes of a project: external vectors, managed embeddings, and (direct form only) keywords.

A managed index imitates what was measured on 2.11: it embeds what is there once after it was made, and then sleeps.
Rows of an import do not wake it; one single upsert of its label does, and then everything without a vector is embedded
`embed_delay_s` later. A record keeps its vector when its text changes.

Nothing runs in the background: whoever looks at an index first does the work that was due by then, for the records that
were there when it fell due. Definitions lie in the project's file; which vectors are zero is forgotten at a restart.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from producer.store import port

from . import embedding
from .answers import Refusal, database_error, not_served
from .project import Project, Row, pages_of

_LABEL = "RUSHDB_SERVER_INDEX"
_RRF_K = 60
_FUSED = 200  # how deep each ranking of a hybrid search goes


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """`source` is `managed`, `external` or `text`. `due_at` is when a managed index embeds next; 0 while it sleeps."""

    key: str
    name: str
    label: str
    property_name: str
    source: str
    dimensions: int
    created_at: float
    updated_at: float
    due_at: float = 0.0

    @property
    def space(self) -> str:
        """The store's name for this index's vectors: those of an index that was dropped never come back."""
        return f"{self.property_name}~{self.key}"


class Indexes:
    """Safe to share between threads."""

    def __init__(self, project: Project, *, embeds: bool, embed_delay_s: float, clock: Callable[[], float]) -> None:
        self.embeds = embeds
        self._project = project
        self._store = project.store
        self._embed_delay_s = embed_delay_s
        self._clock = clock
        self._lock = threading.RLock()
        self._zeros: dict[str, set[str]] = {}
        known = self._store.find(_LABEL, {"lost": {"$exists": False}}).records
        self._indexes = {str(record.properties["key"]): Index(**record.properties) for record in known}  # type: ignore[arg-type]

    # -- definitions -------------------------------------------------------------------------------------------------

    def all(self, *sources: str) -> list[Index]:
        """Newest first, after the work that is due."""
        with self._lock:
            for index in list(self._indexes.values()):
                self._embed_if_due(index)
            found = [index for index in self._indexes.values() if index.source in sources]
        return sorted(found, key=lambda index: -index.created_at)

    def get(self, key: str) -> Index | None:
        with self._lock:
            index = self._indexes.get(key)
            return None if index is None else self._embed_if_due(index)

    def matching(self, label: str, property_name: str, source: str, dimensions: int) -> Index | None:
        with self._lock:
            for index in self._indexes.values():
                if (index.label, index.property_name, index.source, index.dimensions) == (
                    label,
                    property_name,
                    source,
                    dimensions,
                ):
                    return self._embed_if_due(index)
        return None

    def create(
        self, *, label: str, property_name: str, source: str, dimensions: int = 0, name: str = "", effect: str
    ) -> Index:
        """The new index, or 409 when there is one with this signature or name."""
        now = self._clock()
        key = str(uuid.uuid4())
        due_at = now + self._embed_delay_s if source == "managed" else 0.0
        index = Index(
            key=key,
            name=name or key,
            label=label,
            property_name=property_name,
            source=source,
            dimensions=dimensions,
            created_at=now,
            updated_at=now,
            due_at=due_at,
        )
        with self._lock:
            if self.matching(label, property_name, source, dimensions) or any(
                one.name == index.name for one in self._indexes.values()
            ):
                signature = f'sourceType "{source}", similarityFunction "cosine", and dimensions {dimensions}'
                message = (
                    f'An embedding index for label "{label}", property "{property_name}", {signature} already exists'
                )
                raise Refusal(409, message)
            if effect != "never":
                of_store = (property_name, None) if source == "text" else (index.space, dimensions)
                self._store.ensure_indexes([port.IndexSpec(label=label, property=of_store[0], dimensions=of_store[1])])
                self._keep(index)
        return index

    def drop(self, key: str, *, effect: str) -> bool:
        """Whether there was such an index."""
        with self._lock:
            if key not in self._indexes:
                return False
            if effect != "never":
                del self._indexes[key]
                self._store.upsert(_LABEL, [{"key": key, "lost": True}], ["key"])
            return True

    def lose(self) -> None:
        """Fault: every index is gone, with its vectors; the records stay."""
        with self._lock:
            for key in list(self._indexes):
                self.drop(str(key), effect="now")

    def stats(self, index: Index) -> tuple[int, int]:
        """How many records have the property, and how many of those a vector."""
        ids = [record.id for record in self._candidates(index)]
        return len(ids), len(self._store.with_vectors(index.label, index.space, ids))

    # -- vectors -----------------------------------------------------------------------------------------------------

    def put_vectors(self, index: Index, vectors: Mapping[str, Sequence[float]], *, effect: str) -> None:
        """All or none; 422 when a vector does not fit or a record is not there. 2.11 takes zero vectors, so do we."""
        for vector in vectors.values():
            numbers = [part for part in vector if isinstance(part, (int, float)) and not isinstance(part, bool)]
            if len(vector) != index.dimensions or len(numbers) != len(vector) or not all(map(math.isfinite, numbers)):
                raise Refusal(422, f"Every vector must contain exactly {index.dimensions} finite numeric values")
        ids = {self._project.internal_id(record_id): record_id for record_id in vectors}
        for chunk in _chunks(list(ids), port.FIND_LIMIT):
            where = {"$id": {"$in": chunk}, index.property_name: {"$exists": True}}
            if self._store.find(index.label, where, limit=1).total != len(chunk):
                raise Refusal(
                    422,
                    f'Some record ids were not found for label "{index.label}" and property "{index.property_name}"',
                )
        if effect == "never":
            return
        zeros = {internal for internal, record_id in ids.items() if not any(vectors[record_id])}
        self._store.set_vectors(
            index.label,
            index.space,
            {internal: vectors[record_id] for internal, record_id in ids.items() if internal not in zeros},
        )
        with self._lock:
            self._zeros[index.key] = (self._zeros.get(index.key, set()) - set(ids)) | zeros
            self._keep(replace(index, updated_at=self._clock()))

    def woken_by(self, label: str, names: Sequence[str]) -> None:
        """A single upsert of these properties was made."""
        with self._lock:
            for index in list(self._indexes.values()):
                if (
                    index.source == "managed"
                    and index.label == label
                    and index.property_name in names
                    and not index.due_at
                ):
                    self._keep(replace(index, due_at=self._clock() + self._embed_delay_s))

    # -- searches ----------------------------------------------------------------------------------------------------

    def by_vector(self, index: Index, where: Any, vector: Sequence[float], *, limit: int, skip: int) -> list[Row]:
        """Exact under a where. Without one 2.11 asks a slot that other projects share; here they have filled it."""
        if not any(vector):
            raise database_error()
        stored_where = self._project.where(where)
        if not stored_where or limit < 1:
            return []
        self._refuse_zeros(index, stored_where)
        found = self._store.search(index.label, index.space, stored_where, vector=vector, limit=_depth(limit + skip))
        return list(map(self._project.row, found[skip:]))

    def by_words(self, index: Index, where: Any, query: str, *, limit: int, skip: int) -> list[Row]:
        """BM25 in the engine's query language: `-word` excludes, `+word` requires, `"…"` is a phrase."""
        stored_where = self._project.where(where) or {index.property_name: {"$exists": True}}
        words, required, excluded = parse_query(query)
        if not words:
            return []
        depth = _FUSED if required or excluded else _depth(limit + skip)
        found = self._store.search(index.label, index.property_name, stored_where, text=words, limit=depth)
        rows = []
        for row in map(self._project.row, found):
            text = str(row.properties[index.property_name]).lower()
            if all(word in text for word in required) and not any(word in text for word in excluded):
                rows.append(row)
        return rows[skip : skip + limit]

    def hybrid(
        self, words: Index, vectors: Index, where: Any, query: str, vector: Sequence[float], *, limit: int, skip: int
    ) -> list[Row]:
        """Both rankings, fused by reciprocal rank."""
        rankings = [
            self.by_words(words, where, query, limit=_FUSED, skip=0),
            self.by_vector(vectors, where, vector, limit=_FUSED, skip=0),
        ]
        rows = {row.id: row for ranking in rankings for row in ranking}
        scores = dict.fromkeys(rows, 0.0)
        for ranking in rankings:
            for place, row in enumerate(ranking, start=1):
                scores[row.id] += 1 / (_RRF_K + place)
        best = sorted(rows, key=lambda record_id: (-scores[record_id], record_id))[skip : skip + limit]
        return [replace(rows[record_id], score=scores[record_id]) for record_id in best]

    def _refuse_zeros(self, index: Index, stored_where: Mapping[str, Any]) -> None:
        zeros = self._zeros.get(index.key)
        if (
            zeros
            and self._store.find(index.label, {"$and": [stored_where, {"$id": {"$in": sorted(zeros)}}]}, limit=1).total
        ):
            raise database_error()

    # -- the managed index -------------------------------------------------------------------------------------------

    def _embed_if_due(self, index: Index) -> Index:
        if index.source != "managed" or not index.due_at or self._clock() < index.due_at:
            return index
        records = {record.id: record for record in self._candidates(index) if _made_at(record.id) <= index.due_at}
        for chunk in _chunks(
            sorted(set(records) - self._store.with_vectors(index.label, index.space, list(records))), 500
        ):
            texts = {record_id: str(records[record_id].properties[index.property_name]) for record_id in chunk}
            self._store.set_vectors(
                index.label, index.space, {one: embedding.embed(text) for one, text in texts.items()}
            )
        return self._keep(replace(index, due_at=0.0, updated_at=self._clock()))

    def _candidates(self, index: Index) -> list[port.Record]:
        where = {index.property_name: {"$exists": True}}
        return list(pages_of(lambda skip: self._store.find(index.label, where, skip=skip)))

    def _keep(self, index: Index) -> Index:
        self._indexes[index.key] = index
        self._store.upsert(_LABEL, [asdict(index)], ["key"])
        return index


def parse_query(query: str) -> tuple[str, list[str], list[str]]:
    """The words to rank by, and those that a text (in lower case) must and must not have."""
    if query.count('"') % 2:
        raise Refusal(422, "Unbalanced quote in the text query")
    words: list[str] = []
    required: list[str] = []
    excluded: list[str] = []
    for place, part in enumerate(query.split('"')):
        for word in [part] if place % 2 else part.split():
            if place % 2 or len(word) == 1 or word[0] not in "+-":
                words.append(word)
            elif word[0] == "-":
                excluded.append(word[1:].lower())
            else:
                words.append(word[1:])
                required.append(word[1:].lower())
    return " ".join(words).strip(), required, excluded


def _depth(wanted: int) -> int:
    if wanted > port.FIND_LIMIT:
        raise not_served(f"a ranking beyond {port.FIND_LIMIT} records")
    return wanted


def _chunks(items: Sequence[str], size: int) -> list[Sequence[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _made_at(record_id: str) -> float:
    """The time in a UUIDv7."""
    return int(record_id[:8] + record_id[9:13], 16) / 1000


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
