"""The direct form: `POST /protocol/v1/execute`, as the SDK speaks to a RushDB 3 engine.

No engine was recorded, so this is the vendor's own picture of it (the SDK's requests and what it reads of the answers).
Operations that the SDK has and we do not need are refused with an error object. Records behave as in the REST form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from producer.store import port

from . import values
from .answers import Answer, Call, Refusal, not_served
from .indexes import Index, Indexes
from .listener import Request
from .project import FIND_LIMIT_DEFAULT, Project, Row
from .rest import edge_document

_SEARCH_LIMIT_DEFAULT = 10
_EDGES_LIMIT_DEFAULT = 1000
_CODES = {400: "invalid", 401: "unauthorized", 404: "not_found", 408: "timeout", 409: "conflict", 422: "invalid"}

Run = Callable[[str], dict[str, Any]]


class Direct:
    """One project behind one boot token."""

    def __init__(self, project: Project, indexes: Indexes, *, token: str) -> None:
        self._project = project
        self._indexes = indexes
        self._authorization = f"Bearer {token}"

    def call(self, request: Request) -> Call:
        if (request.method, request.path) != ("POST", "/protocol/v1/execute"):
            raise Refusal(404, f"Cannot {request.method} {request.path}")
        if request.headers.get("authorization") != self._authorization:
            raise Refusal(401, "the token is missing or wrong")
        body = values.parse_body(request.body)
        if (
            not isinstance(body, Mapping)
            or body.get("protocolVersion") != 1
            or not isinstance(body.get("operation"), Mapping)
        ):
            raise Refusal(400, "expected protocolVersion 1 and an operation")
        operation = body["operation"]
        request_class, label, run = self._route(operation)
        return Call(
            request_class=request_class,
            body=operation,
            run=lambda effect: Answer(status=200, body={"protocolVersion": 1, "response": run(effect)}),
            label=label,
        )

    def refused(self, refusal: Refusal) -> Answer:
        code = _CODES.get(refusal.status, "internal")
        retryable = refusal.status in (408, 429) or refusal.status >= 500
        error = {"message": refusal.message, "code": code, "retryable": retryable}
        return Answer(status=refusal.status, body={"error": error})

    def _route(self, operation: Mapping[str, Any]) -> tuple[str, str | None, Run]:
        kind = operation.get("kind")
        part = operation.get("mutation" if kind == "mutate" else str(kind)) or {}
        match kind, part.get("kind"):
            case "describe", "buildInfo":
                return "other", None, lambda _: {"kind": "buildInfo", "build": {"name": "rushdb test server"}}
            case "describe", "vectorIndexes":
                return "index", None, lambda _: self._vector_indexes()
            case "describe", "vectorIndex":
                return "index", None, lambda _: self._vector_index(part["name"])
            case "describe", "indexes":
                return "index", None, lambda _: self._declared_indexes()
            case "query", "record":
                return "read", None, lambda _: {"kind": "record", "record": _record(self._existing(part["id"]))}
            case "query", "records":
                return "read", _first(part["query"].get("labels")), lambda _: self._find(part["query"])
            case "query", "relationships":
                return "read", None, lambda _: self._find_edges(part["query"])
            case "query", "vector":
                return "search", _first(part["query"].get("labels")), lambda _: self._by_vector(part["query"])
            case "query", "hybrid":
                return "search", _first(part["query"].get("labels")), lambda _: self._hybrid(part["query"])
            case "mutate", "putRecord" if part.get("mode") == "create":
                return "write", part.get("label"), lambda effect: self._put_record(part, effect)
            case "mutate", "deleteRecord":
                return "delete", None, lambda effect: self._delete(part["id"], effect)
            case "mutate", "linkRecords":
                return (
                    "link",
                    part["command"]["source"].get("label"),
                    lambda effect: self._link(part["command"], effect),
                )
            case "ingest", "documents":
                return "write", part.get("label"), lambda effect: self._ingest(part, effect)
            case "index", "createVector":
                return "index", part["definition"].get("label"), lambda effect: self._create_vector(part, effect)
            case "index", "create" if part["definition"].get("kind") == "text":
                return "index", part["definition"].get("label"), lambda effect: self._create_text(part, effect)
            case "index", "drop" | "dropVector":
                return "index", None, lambda effect: self._drop(part["name"], effect)
            case "index", "upsertVectors":
                index = self._named(part["name"])
                return "vector", index.label, lambda effect: self._put_vectors(index, part["items"], effect)
        raise Refusal(400, f"the test server does not serve {kind}/{part.get('kind')}")

    # -- records -----------------------------------------------------------------------------------------------------

    def _existing(self, record_id: str) -> Row:
        row = self._project.get(record_id)
        if row is None:
            raise Refusal(404, "record not found")
        return row

    def _find(self, query: Mapping[str, Any]) -> dict[str, Any]:
        if query.get("select") or query.get("groupBy"):
            raise not_served("select or groupBy")
        order = query.get("order")
        if isinstance(order, Mapping):
            order = {("__id" if name == "id" else name): direction for name, direction in order.items()}
        limit = query.get("limit", FIND_LIMIT_DEFAULT)
        if not 1 <= limit <= port.FIND_LIMIT:
            raise Refusal(400, f"limit must be 1 to {port.FIND_LIMIT}")
        rows, total = self._project.find(
            query.get("labels") or [],
            query.get("predicate"),
            order=order,
            limit=limit,
            skip=query.get("offset") or 0,
        )
        return {"kind": "records", "records": list(map(_record, rows)), "total": total}

    def _put_record(self, part: Mapping[str, Any], effect: str) -> dict[str, Any]:
        options = part.get("options") or {}
        row = values.strict_properties(part["properties"], stringify=options.get("suggestTypes", True) is not True)
        written = self._written(part["label"], [row], options, effect)[0]
        self._put_inline([part.get("vectors") or []], [written], effect)
        return {"kind": "record", "record": _record(written)}

    def _ingest(self, part: Mapping[str, Any], effect: str) -> dict[str, Any]:
        options = part.get("options") or {}
        documents = part["documents"] if isinstance(part["documents"], list) else [part["documents"]]
        stringify = options.get("suggestTypes", True) is not True
        rows = [values.imported_properties(document, stringify=stringify) for document in documents]
        written = self._written(part["label"], rows, options, effect)
        self._put_inline([document.get("$vectors") or [] for document in documents], written, effect)
        response = {"kind": "ingested", "count": len(written), "relationships": 0}
        return {**response, "records": list(map(_record, written))} if options.get("returnResult") else response

    def _written(
        self, label: str, rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any], effect: str
    ) -> list[Row]:
        stringify = options.get("suggestTypes", True) is not True
        if isinstance(options.get("mergeBy"), list) or options.get("mergeStrategy"):
            return self._project.upsert(
                label,
                rows,
                options.get("mergeBy") or [],
                stringify=stringify,
                rewrite=options.get("mergeStrategy") == "rewrite",
                effect=effect,
            )
        return self._project.create(label, rows, stringify=stringify, effect=effect)

    def _put_inline(
        self, entries_of_rows: Sequence[Sequence[Mapping[str, Any]]], rows: Sequence[Row], effect: str
    ) -> None:
        if any(entries_of_rows) and len(entries_of_rows) != len(rows):
            raise not_served("inline vectors beside rows of one key")
        for entries, row in zip(entries_of_rows, rows, strict=False):
            for entry in entries:
                self._indexes.put_vectors(self._named(entry["index"]), {row.id: entry["vector"]}, effect=effect)

    def _delete(self, record_id: str, effect: str) -> dict[str, Any]:
        was_there = self._project.get(record_id) is not None
        self._project.delete(record_id, effect=effect)
        return {"kind": "mutation", "affected": int(was_there)}

    # -- edges -------------------------------------------------------------------------------------------------------

    def _link(self, command: Mapping[str, Any], effect: str) -> dict[str, Any]:
        source, target = command["source"], command["target"]
        if (
            command.get("allowCartesian")
            or command.get("properties")
            or not source["property"]
            or not target["property"]
        ):
            raise not_served("edges without keys, or with properties")
        if command.get("direction") == "in":
            source, target = target, source
        spec = port.LinkSpec(
            type=command["relationType"],
            source_label=source["label"],
            source_key=source["property"],
            source_where=self._project.where(source.get("predicate")),
            target_label=target["label"],
            target_key=target["property"],
            target_where=self._project.where(target.get("predicate")),
        )
        self._project.link_many(spec, effect=effect)
        return {"kind": "mutation", "affected": 0}

    def _find_edges(self, query: Mapping[str, Any]) -> dict[str, Any]:
        if query.get("predicate"):
            raise not_served("a where on edges beyond their type")
        edges = self._project.edges(
            source=(query.get("sourcePredicate") or {}, query.get("sourceLabels") or []),
            target=(query.get("targetPredicate") or {}, query.get("targetLabels") or []),
            kind=query.get("relationType"),
        )
        start = query.get("offset") or 0
        page = edges[start : start + query.get("limit", _EDGES_LIMIT_DEFAULT)]
        return {"kind": "relationships", "relationships": list(map(edge_document, page)), "total": len(edges)}

    # -- indexes and searches ----------------------------------------------------------------------------------------

    def _named(self, name: str, *sources: str) -> Index:
        for index in self._indexes.all(*(sources or ("external", "text"))):
            if index.name == name:
                return index
        raise Refusal(404, f"no index is named {name}")

    def _vector_indexes(self) -> dict[str, Any]:
        return {"kind": "vectorIndexes", "indexes": [_vector_document(one) for one in self._indexes.all("external")]}

    def _vector_index(self, name: str) -> dict[str, Any]:
        index = self._named(name, "external")
        total, indexed = self._indexes.stats(index)
        stats = {"totalRecords": total, "indexedRecords": indexed, "index": _vector_document(index)}
        return {"kind": "vectorIndex", "stats": stats}

    def _declared_indexes(self) -> dict[str, Any]:
        return {"kind": "indexes", "indexes": [_text_document(one) for one in self._indexes.all("text")]}

    def _create_vector(self, part: Mapping[str, Any], effect: str) -> dict[str, Any]:
        asked = part["definition"]
        if asked.get("similarity", "cosine") != "cosine":
            raise not_served("euclidean similarity")
        index = self._indexes.create(
            label=asked["label"],
            property_name=asked["property"],
            source="external",
            dimensions=asked["dimensions"],
            name=asked["name"],
            effect=effect,
        )
        return {"kind": "vectorIndex", "index": _vector_document(index)}

    def _create_text(self, part: Mapping[str, Any], effect: str) -> dict[str, Any]:
        asked = part["definition"]
        if asked["property"] == "*":
            raise not_served("a text index on every property")
        index = self._indexes.create(
            label=asked["label"], property_name=asked["property"], source="text", name=asked["name"], effect=effect
        )
        return {"kind": "index", "index": _text_document(index)}

    def _drop(self, name: str, effect: str) -> dict[str, Any]:
        self._indexes.drop(self._named(name).key, effect=effect)
        return {"kind": "mutation", "affected": 1}

    def _put_vectors(self, index: Index, items: Sequence[Mapping[str, Any]], effect: str) -> dict[str, Any]:
        self._indexes.put_vectors(index, {item["recordId"]: item["vector"] for item in items}, effect=effect)
        return {"kind": "vectorsUpserted", "updated": len(items), "requested": len(items)}

    def _by_vector(self, query: Mapping[str, Any]) -> dict[str, Any]:
        index = self._named(query["index"], "external")
        limit, skip = query.get("limit", _SEARCH_LIMIT_DEFAULT), query.get("offset") or 0
        rows = self._indexes.by_vector(index, self._searched(query, index), query["vector"], limit=limit, skip=skip)
        return {"kind": "records", "records": list(map(_record, rows)), "vectorSearch": {"mode": "exact"}}

    def _hybrid(self, query: Mapping[str, Any]) -> dict[str, Any]:
        limit, skip = query.get("limit", _SEARCH_LIMIT_DEFAULT), query.get("offset") or 0
        text, vector = query["text"], query.get("vector")
        words = self._named(text["index"], "text")
        where = self._searched(query, words)
        if not text["query"].strip():
            raise Refusal(422, "text.query is required")
        if text.get("allTerms") or text.get("phrase"):
            raise not_served("allTerms or phrase")
        if vector is None:
            rows = self._indexes.by_words(words, where, text["query"], limit=limit, skip=skip)
        else:
            vectors = self._named(vector["index"], "external")
            rows = self._indexes.hybrid(words, vectors, where, text["query"], vector["vector"], limit=limit, skip=skip)
        report = {"matches": skip + len(rows), "pending": 0}
        return {"kind": "records", "records": list(map(_record, rows)), "textSearch": report}

    def _searched(self, query: Mapping[str, Any], index: Index) -> Any:
        """The where of a ranked search. The engine filters first, so that none at all means the whole label."""
        if query.get("labels", [index.label]) != [index.label]:
            raise not_served("a ranked search over labels other than the index's")
        return query.get("predicate") or {index.property_name: {"$exists": True}}


def _record(row: Row) -> dict[str, Any]:
    document = {"id": row.id, "label": row.label, "properties": row.properties, "propertyTypes": row.types}
    return document if row.score is None else {**document, "score": row.score}


def _vector_document(index: Index) -> dict[str, Any]:
    return {
        "name": index.name,
        "label": index.label,
        "property": index.property_name,
        "similarity": "cosine",
        "dimensions": index.dimensions,
        "status": "ready",
    }


def _text_document(index: Index) -> dict[str, Any]:
    return {
        "kind": "text",
        "name": index.name,
        "label": index.label,
        "property": index.property_name,
        "consistency": "immediate",
        "state": "ready",
        "pending": 0,
    }


def _first(labels: Sequence[str] | None) -> str | None:
    return labels[0] if labels else None
