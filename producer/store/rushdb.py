"""The store port on RushDB, through its SDK: Cloud and platform by API key (`rushdb`), the engine (`rushdb-direct`).

`transport` knows HTTP and what a status means, `sdk` which requests may be sent, `rushdb_values` what may stand in
them; here stands what is asked. The manners were measured on RushDB 2.11.2:

- An upsert is an import with all four options, its rows sorted by merge key, one in flight per label and process: two
  batches in different order deadlock, and two upserts of one new key make two records. `wake` sends the single form,
  because only that wakes an index that the server embeds itself.
- Links are made by key, one request for all. The server splices their where into a quoted statement, where a quote in
  a value would end it: such a where is asked for its record ids first.
- A search always has a where: only then is it exact. Zero vectors, stored or asked for, would fail every search that
  reaches them; they are refused here.
- Deleting goes by record id only. There is no PATCH, no delete by query, no transaction.
- Whole numbers beyond 2**53 would come back changed and are refused. Properties that are not flat (of records that
  other programs wrote) are left out of what is read.

Which indexes there are is looked up once, and again after a minute when what is wanted was not among them.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeVar

import rushdb

from producer import errors
from producer.store import rushdb_values as values
from producer.store.port import (
    FIND_LIMIT,
    Capabilities,
    Edge,
    IndexSpec,
    LinkSpec,
    Page,
    Record,
    Value,
    Where,
)
from producer.store.sdk import EngineClient, PlatformClient, translated
from producer.store.transport import Deadline, Transport, unknown_record

__all__ = ["RushDBStore"]

EDGE_PAGE = 1000  # the most that one answer holds; a larger limit is silently cut to 100
ID_PAGE = 300  # record ids in one where: a find costs the same for one and for three hundred
LOOK_AGAIN_S = 60.0
INDEX_NAME_UNITS = 64
PING_LABEL = "MEMORY_MARK"  # any label does; an unlabelled find would sort all records

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Indexes:
    """What the server has, at one moment. Keys are (label, property[, dimensions])."""

    external: Mapping[tuple[str, str, int], str]  # -> index id
    managed: frozenset[tuple[str, str]]
    text: Mapping[tuple[str, str], str]  # -> name of an index that is ready
    text_declared: frozenset[tuple[str, str]]  # ready or not
    has_text_indexes: bool  # the server knows the route at all (RushDB 3)
    embeds: bool  # the server can embed; it does where there is a managed index
    looked_at: float

    @property
    def incomplete(self) -> bool:
        """Whether the server could have more than it has; somebody may make it."""
        return (self.has_text_indexes and not self.text) or (self.embeds and not self.managed)


class _Server:
    """What all views of one store share: connections, locks, and what is known of the server's indexes."""

    def __init__(self, transport: Transport, *, direct: bool) -> None:
        self.transport = transport
        self.direct = direct
        self.indexes: _Indexes | None = None
        self.ensured: dict[tuple[str, str], int] = {}  # (label, property) -> dimensions that this process asked for
        # By process too: a lock that another thread held when this one was forked off would never be released.
        self._write_locks: dict[tuple[int, str], threading.Lock] = {}

    @contextmanager
    def writing(self, label: str, deadline: Deadline) -> Iterator[None]:
        """Hold the one write that a label may have in flight."""
        lock = self._write_locks.setdefault((os.getpid(), label), threading.Lock())
        try:
            held = lock.acquire(timeout=deadline.left())
        except TimeoutError:
            held = False
        if not held:
            raise errors.StoreUnavailable(f"another write of {label} is still in flight")
        try:
            yield
        finally:
            lock.release()


class RushDBStore:
    """`port.Store` on one RushDB project. Safe to share between threads."""

    def __init__(self, server: _Server, *, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s

    @classmethod
    def connect(cls, url: str, *, token: str, timeout_s: float = 20.0, pool: int = 16) -> RushDBStore:
        """A store at `rushdb+http(s)://host[:port][/api/v1]` or `rushdb+direct+http(s)://host[:port]`; nothing is sent.

        Raises `errors.SettingsRefused` for a URL or token that cannot be right, or an SDK older than 3.
        """
        _require_sdk(metadata.version("rushdb"))
        base_url, direct = _address(url)
        probe = None if direct else unknown_record
        transport = Transport(base_url, token=token, pool=pool, key_probe=probe)
        return cls(_Server(transport, direct=direct), timeout_s=timeout_s)

    def with_timeout(self, timeout_s: float) -> RushDBStore:
        """This store with another time limit per call; connections are shared, and `close` of either closes both."""
        return RushDBStore(self._server, timeout_s=timeout_s)

    # -- records -------------------------------------------------------------------------------------------------------

    def upsert(
        self, label: str, rows: Sequence[Mapping[str, Value]], merge_by: Sequence[str], *, wake: bool = False
    ) -> Sequence[Record]:
        values.check_label(label)
        batch = values.batch_of(rows, merge_by)
        if wake and len(batch) != 1:
            raise errors.StoreRefused("a waking upsert takes one row")
        if not batch:
            return ()
        options = {
            "mergeBy": list(merge_by),
            "mergeStrategy": "append",
            "suggestTypes": True,  # without it an import stores numbers and booleans as strings
            "returnResult": True,
        }
        with self._call(writes=True) as (db, deadline), self._server.writing(label, deadline):
            if wake:
                found = [db.records.upsert(batch[0], label=label, options=options)]
            else:
                found = list(db.records.create_many(label, batch, options=options))
            return tuple(record for record in map(values.record_of, found) if record.label == label)

    def find(
        self,
        label: str,
        where: Where,
        *,
        limit: int = FIND_LIMIT,
        skip: int = 0,
        order_by: Sequence[tuple[str, str]] = (("__id", "asc"),),
    ) -> Page:
        values.check_label(label)
        query: dict[str, Any] = {
            "labels": [label],
            "where": values.checked_where(where),
            "limit": values.checked_limit(limit),
            "orderBy": values.order_of(order_by),
        }
        if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
            raise errors.StoreRefused("skip must be 0 or more")
        if skip:
            query["skip"] = skip
        with self._call() as (db, _):
            result = db.records.find(query)
            return Page(records=tuple(map(values.record_of, result)), total=result.total)

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
        values.check_label(label)
        values.check_name(property)
        query: dict[str, Any] = {
            "labels": [label],
            "where": values.checked_where(where),
            "limit": values.checked_limit(limit),
        }
        if not where:
            raise errors.StoreRefused("a search needs a where: only then does RushDB filter before it ranks")
        if text is None and vector is None:
            raise errors.StoreRefused("a search needs a text, a vector or both")
        words = values.words_of(text or "")
        numbers = values.checked_vector(vector) if vector is not None else None
        if numbers is None and not (text or "").strip():
            return ()
        with self._call() as (db, _):
            if numbers is None:
                found = self._search_text(db, label, property, query, text or "", words)
            else:
                found = self._search_vector(db, label, property, query, numbers, words)
            return tuple(map(values.record_of, found))

    def delete(self, label: str, record_id: str) -> None:
        values.check_label(label)
        values.check_record_id(record_id)
        try:
            with self._call(writes=True) as (db, _):
                db.records.delete_by_id(record_id)
        except errors.StoreRefused as error:
            if error.status != 404:  # an unknown id is gone already
                raise

    # -- edges ---------------------------------------------------------------------------------------------------------

    def link(self, spec: LinkSpec) -> None:
        for label in (spec.source_label, spec.target_label, spec.type):
            values.check_label(label)
        for name in (spec.source_key, spec.target_key):
            values.check_name(name)
        values.checked_where(spec.source_where)
        values.checked_where(spec.target_where)
        with self._call(writes=True) as (db, _):
            source_where = self._spliceable(db, spec.source_label, spec.source_where)
            target_where = self._spliceable(db, spec.target_label, spec.target_where)
            if source_where is None or target_where is None:
                return
            source = {"label": spec.source_label, "key": spec.source_key, "where": source_where}
            target: dict[str, Any] = {"label": spec.target_label, "key": spec.target_key}
            if target_where:
                target["where"] = target_where
            db.relationships.create_many(source=source, target=target, type=spec.type, direction="out")

    def _spliceable(self, db: rushdb.RushDB, label: str, where: Where) -> dict[str, Any] | None:
        """`where` for a link: as it is, or by record ids when it holds a text that would break the server's statement.
        None when nothing matches."""
        if values.is_spliceable(where):
            return dict(where)
        ids: list[str] = []
        while True:
            query = {"labels": [label], "where": dict(where), "limit": FIND_LIMIT, "orderBy": {"__id": "asc"}}
            page = db.records.find({**query, "skip": len(ids)} if ids else query)
            ids.extend(values.record_of(record).id for record in page)
            if not len(page) or len(ids) >= page.total:
                return {"$id": {"$in": ids}} if ids else None

    def edges(self, label: str, where: Where) -> Sequence[Edge]:
        return self._edges("source", label, where)

    def edges_into(self, label: str, where: Where) -> Sequence[Edge]:
        return self._edges("target", label, where)

    def _edges(self, end: str, label: str, where: Where) -> Sequence[Edge]:
        values.check_label(label)
        query = {end: {"labels": [label], "where": values.checked_where(where)}}
        rows: list[Edge] = []
        with self._call() as (db, _):
            while True:
                page = db.relationships.find(query, pagination={"limit": EDGE_PAGE, "skip": len(rows) or None})
                cut = len(page) < page.total
                rows.extend(map(values.edge_of, page))
                if not len(page) or len(rows) >= page.total:
                    break
        found = list(dict.fromkeys(rows))
        # Pages of edges have no order of their own: when one came twice, another did not come at all.
        if cut and len(found) < page.total:
            raise errors.StoreUnavailable("the edges changed while they were read")
        return tuple(found)

    # -- vectors -------------------------------------------------------------------------------------------------------

    def set_vectors(self, label: str, property: str, vectors: Mapping[str, Sequence[float]]) -> None:
        values.check_label(label)
        values.check_name(property)
        items = [{"recordId": one, "vector": values.checked_vector(vector)} for one, vector in sorted(vectors.items())]
        if not items:
            return
        sizes = {len(item["vector"]) for item in items}
        if len(sizes) != 1:
            raise errors.StoreRefused("the vectors of one call must have one length")
        with self._call(writes=True) as (db, _):
            index = self._external(db, label, property, sizes.pop())
            answer = db.ai.indexes.upsert_vectors(index, {"items": items}).data
            if answer.get("updated") != len(items):
                raise errors.StoreUnavailable("not all vectors were stored", outcome_unknown=True)

    def with_vectors(self, label: str, property: str, record_ids: Sequence[str]) -> frozenset[str]:
        values.check_label(label)
        values.check_name(property)
        ids = sorted(set(record_ids))
        found: set[str] = set()
        with self._call() as (db, _):
            for size in self._sizes(db, label, property):
                for start in range(0, len(ids), ID_PAGE):
                    # A search leaves out the records that have no vector; what it is asked for does not matter.
                    some = ids[start : start + ID_PAGE]
                    query = {
                        "propertyName": property,
                        "labels": [label],
                        "queryVector": [1.0] + [0.0] * (size - 1),
                        "sourceType": "external",
                        "where": {"$id": {"$in": some}},
                        "limit": len(some),
                    }
                    found.update(values.record_of(record).id for record in db.records.vector_search(query))
        return frozenset(found.intersection(ids))

    # -- the server ----------------------------------------------------------------------------------------------------

    def ensure_indexes(self, specs: Sequence[IndexSpec]) -> Capabilities:
        for spec in specs:
            values.check_label(spec.label)
            values.check_name(spec.property)
            if spec.dimensions is not None and not 1 <= spec.dimensions <= 4096:
                raise errors.StoreRefused("an index has 1 to 4,096 dimensions")
        with self._call(writes=True) as (db, _):
            known = self._look(db)
            if missing := _missing(known, specs):
                failures = [failure for make in missing if (failure := _attempt(make, db))]
                known = self._look(db)
                if _missing(known, specs):
                    raise (
                        failures[0] if failures else errors.StoreUnavailable("an index is not there after it was made")
                    )
            for spec in specs:
                if spec.dimensions is not None:
                    self._server.ensured[spec.label, spec.property] = spec.dimensions
            return self._capabilities(known)

    def capabilities(self) -> Capabilities:
        self._server.transport.check_open()
        known = self._server.indexes
        if known is None or (known.incomplete and time.monotonic() - known.looked_at > LOOK_AGAIN_S):
            with self._call() as (db, _):
                known = self._look(db)
        return self._capabilities(known)

    def ping(self) -> None:
        self.find(PING_LABEL, {}, limit=1)

    def close(self) -> None:
        self._server.transport.close()

    @contextmanager
    def _call(self, *, writes: bool = False) -> Iterator[tuple[rushdb.RushDB, Deadline]]:
        """The SDK for one call of the port, all of whose requests share one deadline."""
        self._server.transport.check_open()
        deadline = Deadline(self._timeout_s)
        client = EngineClient if self._server.direct else PlatformClient
        with translated(writes=writes):
            yield client(self._server.transport, deadline), deadline

    def _capabilities(self, known: _Indexes) -> Capabilities:
        return Capabilities(
            name="rushdb-direct" if self._server.direct else "rushdb",
            keyword_search=bool(known.text),
            vector_search=True,
            embeds=known.embeds and bool(known.managed),
        )

    def _look(self, db: rushdb.RushDB) -> _Indexes:
        """Ask the server for its indexes, and remember them."""
        external: dict[tuple[str, str, int], str] = {}
        managed: set[tuple[str, str]] = set()
        for row in db.ai.indexes.find().data:
            place = (row["label"], row["propertyName"])
            if row.get("sourceType") != "external":
                managed.add(place)
            elif row.get("similarityFunction") == "cosine":
                external[(*place, row["dimensions"])] = row["id"]
        try:
            text_rows, has_text_indexes = db.text_indexes.find().data, True
        except errors.StoreRefused as error:
            if error.status != 404:
                raise
            text_rows, has_text_indexes = [], False  # RushDB 2.11
        self._server.indexes = _Indexes(
            external=external,
            managed=frozenset(managed),
            text={(row["label"], row["property"]): row["name"] for row in text_rows if row.get("status") == "ready"},
            text_declared=frozenset((row["label"], row["property"]) for row in text_rows),
            has_text_indexes=has_text_indexes,
            embeds=not self._server.direct and db.settings.get().get("embeddingEnabled") is True,
            looked_at=time.monotonic(),
        )
        return self._server.indexes

    def _known(self, db: rushdb.RushDB, pick: Callable[[_Indexes], _T | None]) -> _T | None:
        """What `pick` finds among the indexes. If it finds nothing, they are looked up again, once a minute at most."""
        known = self._server.indexes or self._look(db)
        picked = pick(known)
        if picked is None and time.monotonic() - known.looked_at > LOOK_AGAIN_S:
            picked = pick(self._look(db))
        return picked

    def _text_index(self, db: rushdb.RushDB, label: str, property_name: str) -> str | None:
        return self._known(db, lambda known: known.text.get((label, property_name)))

    def _no_text_index(self, label: str, property_name: str) -> errors.IngestError:
        known = self._server.indexes
        if known is not None and known.text:
            return errors.StoreRefused(f"no text index of {label}.{property_name}: ensure it first")
        return errors.Unsupported("this server has no keyword search: rank a bounded find instead")

    def _external(self, db: rushdb.RushDB, label: str, property_name: str, dimensions: int) -> str:
        index = self._known(db, lambda known: known.external.get((label, property_name, dimensions)))
        if index is None:
            raise errors.StoreRefused(
                f"no vector index of {label}.{property_name} with {dimensions} dimensions: ensure it first"
            )
        return index

    def _sizes(self, db: rushdb.RushDB, label: str, property_name: str) -> list[int]:
        """Dimensions of the index that this process ensured, else of all there are."""
        if (label, property_name) in self._server.ensured:
            return [self._server.ensured[label, property_name]]

        def sizes(known: _Indexes) -> list[int] | None:
            return [size for *place, size in known.external if place == [label, property_name]] or None

        return self._known(db, sizes) or []

    def _search_text(
        self, db: rushdb.RushDB, label: str, property_name: str, query: dict[str, Any], text: str, words: str
    ) -> Any:
        index = self._text_index(db, label, property_name)
        if index is not None:
            return db.records.text_search({"query": words, "index": index, **query}) if words else []
        known = self._server.indexes
        if known is not None and known.embeds and (label, property_name) in known.managed:
            # "managed" is the server's default too; said here because the other sort of index may stand beside it
            return db.records.vector_search(
                {"propertyName": property_name, "query": text, "sourceType": "managed", **query}
            )
        raise self._no_text_index(label, property_name)

    def _search_vector(
        self, db: rushdb.RushDB, label: str, property_name: str, query: dict[str, Any], vector: list[float], words: str
    ) -> Any:
        self._external(db, label, property_name, len(vector))
        request = {"propertyName": property_name, "queryVector": vector, "sourceType": "external", **query}
        if words:
            index = self._text_index(db, label, property_name)
            if index is None:
                raise self._no_text_index(label, property_name)
            request["text"] = {"query": words, "index": index}
        return db.records.vector_search(request)


# -- indexes -----------------------------------------------------------------------------------------------------------


def _missing(known: _Indexes, specs: Sequence[IndexSpec]) -> list[Callable[[rushdb.RushDB], object]]:
    """What to call for each index that `specs` asks for, that the server could have and has not."""
    vectors: dict[tuple[str, str, int | None], Callable[[rushdb.RushDB], object]] = {}
    texts: dict[tuple[str, str], Callable[[rushdb.RushDB], object]] = {}
    for spec in specs:
        place = (spec.label, spec.property)
        definition: dict[str, Any] = {"label": spec.label, "propertyName": spec.property}
        if spec.dimensions is not None and (*place, spec.dimensions) not in known.external:
            definition.update(sourceType="external", dimensions=spec.dimensions, similarityFunction="cosine")
            vectors[*place, spec.dimensions] = functools.partial(_create_vector_index, definition)
        if spec.dimensions is None and known.embeds and place not in known.managed:
            vectors[*place, None] = functools.partial(_create_vector_index, definition)
        if known.has_text_indexes and place not in known.text_declared:
            # The name is given, so that of two that make it at once one gets a 409, not a second index.
            name = f"{spec.label}.{spec.property}.text"[:INDEX_NAME_UNITS]
            words = {"label": spec.label, "property": spec.property, "name": name}
            texts[place] = functools.partial(_create_text_index, words)
    return [*vectors.values(), *texts.values()]


def _create_vector_index(definition: dict[str, Any], db: rushdb.RushDB) -> None:
    db.ai.indexes.create(definition)


def _create_text_index(definition: dict[str, Any], db: rushdb.RushDB) -> None:
    db.text_indexes.create(definition)


def _attempt(make: Callable[[rushdb.RushDB], object], db: rushdb.RushDB) -> errors.IngestError | None:
    """Make one index. Whoever loses to another that makes the same one gets a 409 or a 500: the next look tells."""
    try:
        with translated(writes=True):
            make(db)
    except errors.StoreRefused as error:
        if error.status != 409:
            raise
        return error
    except errors.StoreUnavailable as error:
        if error.status is None:
            raise
        return error
    return None


# -- settings ----------------------------------------------------------------------------------------------------------


def _require_sdk(version: str) -> None:
    if int(version.split(".")[0]) < 3:
        raise errors.SettingsRefused(
            "rushdb", f"SDK {version} hides errors as empty results; install rushdb 3 or later"
        )


def _address(url: str) -> tuple[str, bool]:
    """The base URL of the server, and whether it is an engine."""
    scheme, _, rest = url.partition("://")
    parts = urllib.parse.urlsplit(f"//{rest}")
    direct = scheme in ("rushdb+direct+http", "rushdb+direct+https")
    if not direct and scheme not in ("rushdb+http", "rushdb+https"):
        raise errors.SettingsRefused("MEMORY_STORE_URL", "is no RushDB URL")
    try:
        port = parts.port
    except ValueError:
        raise errors.SettingsRefused("MEMORY_STORE_URL", "has a port that is no number") from None
    if not parts.hostname or not parts.netloc.isascii() or any(one.isspace() for one in url):
        raise errors.SettingsRefused("MEMORY_STORE_URL", "needs a host name")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise errors.SettingsRefused(
            "MEMORY_STORE_URL", "takes no user, query or fragment; the key is MEMORY_STORE_TOKEN"
        )
    path = parts.path.rstrip("/")
    if not direct:
        path = path or "/api/v1"
        if "/api/" not in path:
            raise errors.SettingsRefused("MEMORY_STORE_URL", "ends in /api/v1, or in nothing after the host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme.rpartition('+')[2]}://{host}{f':{port}' if port is not None else ''}{path}", direct
