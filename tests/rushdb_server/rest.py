"""The REST form, as RushDB 2.11.2 speaks it under `/api/v1`.

Statuses, shapes and error texts are those of its recordings. What it does beyond them (transactions, nested imports,
deleting by query, detaching, listing properties) is refused with 501, so that nobody leans on a guess of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from producer.store import port

from . import embedding, values
from .answers import Answer, Call, Refusal, crash, database_error, invalid, not_found, not_served
from .indexes import Index, Indexes, iso
from .listener import Request
from .project import FIND_LIMIT_DEFAULT, Project, Row, key_of

READ_ONLY_SUFFIX = "-read-only"  # a project's key with this behind it is its read-only key
_READS = ("read", "search", "other")
PROJECT_ID = "01a00000-0000-7000-8000-00000000da7a"
_WRONG_TYPE = "value does not match any of the allowed types"
_EDGES_DEFAULT, _EDGES_BEYOND = 1000, 100  # relationships/search: the default limit, and what a greater one becomes


class Rest:
    """One project behind one key, and one read-only key."""

    def __init__(self, project: Project, indexes: Indexes, *, token: str, url: Callable[[], str]) -> None:
        self._project = project
        self._indexes = indexes
        self._authorization = f"Bearer {token}"
        self._url = url

    def call(self, request: Request) -> Call:
        """The call of a request, or the refusal that comes before anything else: route, body, key."""
        path, _, _ = request.path.partition("?")
        if path == "/health" and request.method == "GET":
            return Call(request_class="other", body=None, run=lambda _: Answer(status=200, body={"status": "ok"}))
        match = [request.method, *path.removeprefix("/api/v1/").split("/")] if path.startswith("/api/v1/") else []
        body = values.parse_body(request.body)
        if not isinstance(body, Mapping):
            raise invalid(_WRONG_TYPE)
        if match == ["GET", "settings"]:
            return Call(request_class="other", body=None, run=lambda _: self._settings(public=True))
        route = self._route(match, body)
        if route is None:
            raise Refusal(404, f"Cannot {request.method} {request.path}")
        key = request.headers.get("authorization")
        if key not in (self._authorization, self._authorization + READ_ONLY_SUFFIX):
            raise Refusal(403, "Forbidden resource")
        if key != self._authorization and route[0] not in _READS and request.method != "GET":
            raise Refusal(403, "This API key is read-only and cannot access this endpoint")
        if "x-transaction-id" in request.headers:
            raise not_served("transactions")
        request_class, label, run = route
        return Call(request_class=request_class, body=body, run=run, label=label)

    def refused(self, refusal: Refusal) -> Answer:
        return Answer(status=refusal.status, body=refusal.body)

    def _route(self, match: Sequence[str], body: Any) -> tuple[str, str | None, Callable[[str], Answer]] | None:
        match match:
            case ["POST", "records"]:
                return "write", _label(body), lambda effect: self._write(body, effect)
            case ["POST", "records", "import", "json"]:
                return "write", _label(body), lambda effect: self._import(body, effect)
            case ["POST", "records", "search"]:
                return "read", _first_label(body), lambda _: self._find(body, body.get("where"))
            case ["POST", "records", "delete" | "import"] | ["POST", "records", "import" | "export", "csv"]:
                return "write", None, lambda _: self._not_served("/".join(match[1:]))
            case ["POST", "records", record_id, "search"]:
                return "read", _first_label(body), lambda _: self._find_related(record_id, body)
            case ["GET", "records", record_id]:
                return "read", None, lambda _: self._get(record_id)
            case ["PUT" | "PATCH" as method, "records", record_id]:
                return "write", None, lambda effect: self._replace(record_id, body, method == "PATCH", effect)
            case ["DELETE", "records", record_id]:
                return "delete", None, lambda effect: self._delete(record_id, effect)
            case ["POST", "relationships", "search"]:
                return "read", None, lambda _: self._find_edges(body)
            case ["POST", "relationships", "create-many"]:
                return "link", _label(body.get("source")), lambda effect: self._link_many(body, effect)
            case ["POST" | "PUT", "relationships", "delete-many"] | ["PUT", "relationships", _]:
                return "link", None, lambda _: self._not_served("removing edges")
            case ["POST", "relationships", record_id]:
                return "link", None, lambda effect: self._attach(record_id, body, effect)
            case ["GET", "ai", "indexes"]:
                return "index", None, lambda _: self._list_indexes()
            case ["POST", "ai", "indexes"]:
                return "index", _label(body), lambda effect: self._create_index(body, effect)
            case ["GET", "ai", "indexes", key, "stats"]:
                return "index", None, lambda _: self._index_stats(key)
            case ["DELETE", "ai", "indexes", key]:
                return "index", None, lambda effect: self._drop_index(key, effect)
            case ["POST", "ai", "indexes", key, "vectors", "upsert"]:
                index = self._indexes.get(key)
                label = index.label if index else None
                return "vector", label, lambda effect: self._put_vectors(key, body, effect)
            case ["POST", "ai", "search"]:
                return "search", _first_label(body), lambda _: self._search(body)
            case ["GET", "sdk", "settings"]:
                return "other", None, lambda _: self._settings(public=False)
            case [_, "labels" | "properties" | "tx" | "query" | "tokens", *_] | [_, "ai", "schema", *_]:
                return "other", None, lambda _: self._not_served("/".join(match[1:]))
        return None

    def _not_served(self, what: str) -> Answer:
        raise not_served(what)

    # -- records -----------------------------------------------------------------------------------------------------

    def _write(self, body: Any, effect: str) -> Answer:
        values.refuse_disallowed_keys(body)
        label, options = body.get("label"), body.get("options") or {}
        if not isinstance(label, str) or not label:
            raise invalid(_WRONG_TYPE)
        typed = isinstance(body.get("properties"), list) and "data" not in body
        stringify = options.get("suggestTypes", True) is not True
        if typed:
            data = {one["name"]: one["value"] for one in body["properties"]}
            if None in data.values():
                raise invalid(_WRONG_TYPE)
        else:
            data = body.get("data")
        row = values.strict_properties(data, stringify=stringify)
        vectors = self._inline_vectors(label, [body.get("vectors") or []])
        if not row:
            raise not_found()
        merge_by = options.get("mergeBy")
        if typed and isinstance(body.get("id"), str):
            written = self._project.create_as(label, body["id"], row, merge_by or [], effect)
        elif options.get("mergeStrategy") or isinstance(merge_by, list):
            rewrite = options.get("mergeStrategy") == "rewrite"
            written = self._project.upsert(
                label, [row], merge_by or [], stringify=stringify, rewrite=rewrite, effect=effect
            )[0]
        else:
            written = self._project.create(label, [row], stringify=stringify, effect=effect)[0]
        self._put_inline(vectors, [written], effect)
        if effect != "never":
            self._indexes.woken_by(label, list(row))
        return _single(201, written)

    def _import(self, body: Any, effect: str) -> Answer:
        values.refuse_disallowed_keys(body)
        label, data, options = body.get("label"), body.get("data"), body.get("options")
        if not isinstance(label, str) or not label or not isinstance(data, (list, dict)):
            raise invalid(_WRONG_TYPE)
        rows = data if isinstance(data, list) else [data]
        # The defaults go as soon as any options come: then every value is stored as a string.
        options = {"suggestTypes": True} if options is None else options
        stringify = options.get("suggestTypes") is not True
        clean = [values.imported_properties(row, stringify=stringify) for row in rows]
        vectors = self._inline_vectors(label, [row.get("$vectors") or [] for row in rows])
        merge_by = options.get("mergeBy")
        if "mergeStrategy" in options or isinstance(merge_by, list):
            keys = [key for row in clean if (key := key_of(row, merge_by or []))]
            if vectors and len(keys) != len(set(keys)):
                raise not_served("inline vectors beside rows of one key")
            rewrite = options.get("mergeStrategy") == "rewrite"
            written = self._project.upsert(
                label, clean, merge_by or [], stringify=stringify, rewrite=rewrite, effect=effect
            )
        else:
            written = self._project.create(label, clean, stringify=stringify, effect=effect)
        self._put_inline(vectors, written, effect)
        if not options.get("returnResult"):
            return _ok(201, True)
        if len(written) > 1000:
            return _ok(201, {"message": f"Import complete. {len(written)} records processed.", "count": len(written)})
        return _ok(201, list(map(_record, written)))

    def _find(self, body: Any, where: Any) -> Answer:
        limit, skip = _limit(body), body.get("skip") or 0
        labels = body.get("labels") or []
        if {"select", "groupBy", "aggregate"} & set(body):
            raise not_served("select, groupBy or aggregate")
        rows, total = self._project.find(labels, where, order=body.get("orderBy"), limit=limit, skip=skip)
        return _ok(200, list(map(_record, rows)), total=total)

    def _find_related(self, record_id: str, body: Any) -> Answer:
        related = self._project.related_to(record_id)
        return self._find(body, {"$and": [body["where"], related]} if body.get("where") else related)

    def _get(self, record_id: str) -> Answer:
        row = self._project.get(record_id)
        if row is None:
            raise not_found()
        return _single(200, row)

    def _replace(self, record_id: str, body: Any, merge: bool, effect: str) -> Answer:
        values.refuse_disallowed_keys(body)
        if "data" not in body:
            raise crash()  # the flat body of the SDK's `records.update`
        properties = values.strict_properties(body["data"], stringify=False)
        label = body.get("label")
        return _single(201, self._project.replace(record_id, label, properties, merge=merge, effect=effect))

    def _delete(self, record_id: str, effect: str) -> Answer:
        self._project.delete(record_id, effect=effect)
        return _message(200, f"Record {record_id} was successfully deleted")

    # -- edges -------------------------------------------------------------------------------------------------------

    def _link_many(self, body: Any, effect: str) -> Answer:
        source, target = body.get("source") or {}, body.get("target") or {}
        if body.get("manyToMany") or body.get("properties") or not source.get("key") or not target.get("key"):
            raise not_served("edges without keys, or with properties")
        if body.get("direction", "out").lower() == "in":
            source, target = target, source
        spec = port.LinkSpec(
            type=_edge_type(body),
            source_label=source["label"],
            source_key=source["key"],
            source_where=self._project.where(source.get("where")),
            target_label=target["label"],
            target_key=target["key"],
            target_where=self._project.where(target.get("where")),
        )
        self._project.link_many(spec, effect=effect)
        return _message(201, "Relations have been successfully created")

    def _attach(self, record_id: str, body: Any, effect: str) -> Answer:
        direction = body.get("direction", "out")
        if direction not in ("in", "out", "IN", "OUT"):
            expected = "'in' | 'out' | 'IN' | 'OUT'"
            raise invalid(f"\"direction\" Invalid enum value. Expected {expected}, received '{direction}'")
        if body.get("properties") or direction.lower() == "in":
            raise not_served("edges with properties, or against their direction")
        targets = body.get("targetIds") or []
        targets = [targets] if isinstance(targets, str) else targets
        self._project.attach(record_id, targets, _edge_type(body), effect=effect)
        return _message(201, f"Relations to Record {record_id} have been successfully created")

    def _find_edges(self, body: Any) -> Answer:
        source, target, where = body.get("source") or {}, body.get("target") or {}, body.get("where") or {}
        if set(where) - {"type"}:
            raise not_served("a where on edges beyond their type")
        limit = body.get("limit", _EDGES_DEFAULT)
        limit, skip = limit if limit <= _EDGES_DEFAULT else _EDGES_BEYOND, body.get("skip") or 0
        edges = self._project.edges(
            source=(source.get("where") or {}, source.get("labels") or []),
            target=(target.get("where") or {}, target.get("labels") or []),
            kind=where.get("type"),
        )
        return _ok(200, list(map(edge_document, edges[skip : skip + limit])), total=len(edges))

    # -- indexes and searches ----------------------------------------------------------------------------------------

    def _list_indexes(self) -> Answer:
        return _ok(200, [self._index_document(index) for index in self._indexes.all("managed", "external")])

    def _create_index(self, body: Any, effect: str) -> Answer:
        for name in ("label", "propertyName"):
            if not isinstance(body.get(name), str) or not body[name]:
                raise invalid(f'"{name}" {name} is required and must be a non-empty string')
        if body.get("similarityFunction", "cosine") != "cosine":
            raise not_served("euclidean similarity")
        source = "external" if body.get("external") is True else body.get("sourceType", "managed")
        dimensions = body.get("dimensions", embedding.DIMENSIONS)
        if dimensions < 1:
            raise invalid('"dimensions" Number must be greater than or equal to 1')
        if dimensions > 4096:
            raise invalid('"dimensions" Number must be less than or equal to 4096')
        if source == "managed" and not (self._indexes.embeds and dimensions == embedding.DIMENSIONS):
            raise Refusal(422, "Embedding is not configured")
        index = self._indexes.create(
            label=body["label"], property_name=body["propertyName"], source=source, dimensions=dimensions, effect=effect
        )
        return _ok(201, self._index_document(index))

    def _index_stats(self, key: str) -> Answer:
        index = self._indexes.get(key)
        total, indexed = (0, 0) if index is None else self._indexes.stats(index)
        return _ok(200, {"totalRecords": total, "indexedRecords": indexed})

    def _drop_index(self, key: str, effect: str) -> Answer:
        if not self._indexes.drop(key, effect=effect):
            raise _no_index(key)
        return _ok(202, {"deleted": True, "queued": True})

    def _put_vectors(self, key: str, body: Any, effect: str) -> Answer:
        index = self._indexes.get(key)
        if index is None:
            raise _no_index(key)
        if index.source != "external":
            raise Refusal(422, "Vector upsert is supported only for external indexes")
        vectors = {item["recordId"]: item["vector"] for item in body["items"]}
        self._indexes.put_vectors(index, vectors, effect=effect)
        return _ok(200, {"updated": len(vectors), "requested": len(body["items"])})

    def _search(self, body: Any) -> Answer:
        query, vector = body.get("query"), body.get("queryVector")
        labels, name = body.get("labels"), body.get("propertyName")
        if not labels:
            raise crash()
        if (query is None) == (vector is None):
            raise Refusal(422, "Provide either query or queryVector, but not both")
        source = body.get("sourceType", "managed")
        dimensions = body.get("dimensions") or (embedding.DIMENSIONS if vector is None else len(vector))
        index = self._indexes.matching(labels[0], name, source, dimensions)
        if index is None or body.get("similarityFunction", "cosine") != "cosine":
            matching = "matching the requested vector signature"
            message = f'No embedding index found for label "{labels[0]}" and property "{name}" {matching}'
            raise Refusal(404, message)
        if vector is None:
            if source != "managed":
                raise Refusal(422, "A text query needs a managed index")
            vector = embedding.embed(query)
        if len(vector) != index.dimensions:
            message = f"Query vector length {len(vector)} does not match index dimensions {index.dimensions}"
            raise Refusal(422, message)
        limit, skip = body.get("limit", 20), body.get("skip") or 0
        rows = self._indexes.by_vector(index, body.get("where"), vector, limit=limit, skip=skip)
        return _ok(200, list(map(_record, rows)))

    def _inline_vectors(self, label: str, vectors_of_rows: Sequence[Any]) -> list[tuple[int, Index, list[float]]]:
        """The vectors that came with the rows, by the place of their row; 404 when one has no index."""
        found = []
        for place, entries in enumerate(vectors_of_rows):
            for entry in entries:
                name, vector = entry["propertyName"], entry["vector"]
                index = self._indexes.matching(label, name, "external", len(vector))
                if index is None:
                    signature = f'label "{label}", property "{name}", dimensions {len(vector)}'
                    raise Refusal(404, f"No external embedding index found for {signature}")
                found.append((place, index, vector))
        return found

    def _put_inline(self, vectors: Sequence[tuple[int, Index, list[float]]], rows: Sequence[Row], effect: str) -> None:
        for place, index, vector in vectors:
            if index.property_name in rows[place].properties:  # else it is silently not written
                self._indexes.put_vectors(index, {rows[place].id: vector}, effect=effect)

    def _index_document(self, index: Index) -> dict[str, Any]:
        if index.source == "managed":
            status = "pending" if index.due_at else "ready"
        else:
            total, indexed = self._indexes.stats(index)
            status = "ready" if 0 < total == indexed else "awaiting_vectors"
        return {
            "id": index.key,
            "projectId": PROJECT_ID,
            "label": index.label,
            "propertyName": index.property_name,
            "modelKey": f"stub-{embedding.DIMENSIONS}" if index.source == "managed" else "",
            "sourceType": index.source,
            "similarityFunction": "cosine",
            "dimensions": index.dimensions,
            "vectorPropertyName": f"_emb_{index.source}_cosine_{index.dimensions}",
            "enabled": True,
            "status": status,
            "createdAt": iso(index.created_at),
            "updatedAt": iso(index.updated_at),
        }

    def _settings(self, *, public: bool) -> Answer:
        settings = {
            "selfHosted": True,
            "dashboardUrl": self._url(),
            "googleOAuthEnabled": False,
            "githubOAuthEnabled": False,
            "embeddingEnabled": self._indexes.embeds,
            "llmEnabled": False,
            "synxEnabled": False,
        }
        return _ok(200, settings if public else {**settings, "customDb": False})


def edge_document(edge: port.Edge) -> dict[str, Any]:
    return {
        "sourceId": edge.source_id,
        "targetId": edge.target_id,
        "sourceLabel": edge.source_label,
        "targetLabel": edge.target_label,
        "type": edge.type,
        "properties": {},
        "direction": "out",
    }


def _record(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = {"__id": row.id, "__label": row.label, "__proptypes": row.types}
    for name, value in row.properties.items():
        if not values.vanishes(value):
            document[name] = value
    if row.score is not None:
        document["__score"] = row.score
    return document


def _single(status: int, row: Row) -> Answer:
    """One record. Its properties `data` and `total`, if it has them, are taken for the envelope's."""
    document = _record(row)
    body = {"data": document.get("data", document), "success": True}
    if "data" in document and "total" in document:
        body["total"] = document["total"]
    return Answer(status=status, body=body)


def _ok(status: int, data: Any, **more: Any) -> Answer:
    return Answer(status=status, body={"data": data, **more, "success": True})


def _message(status: int, message: str) -> Answer:
    return _ok(status, {"message": message})


def _no_index(key: str) -> Refusal:
    return Refusal(404, f'Embedding index "{key}" not found')


def _label(document: Any) -> str | None:
    label = document.get("label") if isinstance(document, Mapping) else None
    return label if isinstance(label, str) else None


def _first_label(body: Any) -> str | None:
    labels = body.get("labels") if isinstance(body, Mapping) else None
    return labels[0] if labels else None


def _limit(body: Any) -> int:
    limit = body.get("limit", FIND_LIMIT_DEFAULT)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise invalid('"limit" Expected number')
    if limit < 1:
        raise invalid('"limit" Number must be greater than or equal to 1')
    if limit > port.FIND_LIMIT:
        raise invalid(f'"limit" Number must be less than or equal to {port.FIND_LIMIT}')
    if limit != int(limit):
        raise database_error()
    return int(limit)


def _edge_type(body: Any) -> str:
    """The type is written into the statement as it is: what is no identifier breaks it."""
    kind = body.get("type") or "RUSHDB_DEFAULT_RELATION"
    if not isinstance(kind, str) or not kind.isidentifier() or not kind.isascii():
        raise database_error()
    return kind
