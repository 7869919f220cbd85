"""The list of read paths is whole, and the where that reaches RushDB holds the scope in every one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import memory_tasks
import producer
from producer import keys
from producer.convergence.content import TEXT
from producer.recall import history, where
from producer.recall.engine import Recall, Session
from producer.store import open_store
from producer.store.port import IndexSpec
from tests.adversarial.read_paths import NO_RECORDS, READ_PATHS, READING_CALLS
from tests.integration.test_recall import ANN, episode, fact, label_of, stored
from tests.rushdb_server import Logged, rushdb_server

# What reads for everybody above it: the adapters, the rules that settle, and the journal itself.
BELOW = ("producer/store/", "producer/convergence/", "producer/journal/")


def reading_calls() -> Iterator[tuple[str, str]]:
    """Every call of one of `READING_CALLS`: `module:qualified name` of the function, and the name called."""
    for package in (producer, memory_tasks):
        root = Path(package.__file__ or "").parent
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root.parent).as_posix()
            if not name.startswith(BELOW):
                module = name.removesuffix(".py").replace("/", ".")
                yield from _calls_in(ast.parse(path.read_text("utf-8")), module, ())


def _calls_in(node: ast.AST, module: str, inside: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in READING_CALLS:
            yield f"{module}:{'.'.join(inside)}", child.func.attr
        yield from _calls_in(child, module, (*inside, child.name) if named else inside)  # type: ignore[attr-defined]


def test_every_place_that_reads_records_is_in_the_list_and_the_list_names_no_other() -> None:
    found = set(reading_calls())
    listed = set(READ_PATHS) | set(NO_RECORDS)
    assert not set(READ_PATHS) & set(NO_RECORDS)
    assert found - listed == set(), "a new read path: say in tests/adversarial/read_paths.py whose records it returns"
    assert listed - found == set(), "these read nothing any more"


def test_a_condition_cannot_take_the_place_of_a_scope_field() -> None:
    for name in keys.SCOPE_FIELDS:
        assert where.within(ANN, **{name: "anything"})[name] == ANN.fields()[name]
        assert where.within(ANN, **{name: {"$exists": True}})[name] == ANN.fields()[name]


def test_only_one_function_puts_scope_fields_into_a_where() -> None:
    """`**scope.fields()` in a dictionary, anywhere in recall, but for `within`."""
    root = Path(where.__file__).parent
    for path in sorted(root.glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            spread = [
                value
                for node in ast.walk(function)
                if isinstance(node, ast.Dict)
                for key, value in zip(node.keys, node.values, strict=True)
                if key is None and "fields()" in ast.unparse(value)
            ]
            assert not spread or function.name == "within", f"{path.name}: {function.name}"


# -- on the wire ------------------------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "platform, bounded find": {},
    "platform, own embeddings": {"embeds": True},
    "platform, our vectors": {},
    "engine, keyword": {"profile": "direct"},
    "engine, hybrid": {"profile": "direct"},
}


NOW = "2026-12-02T00:00:00.000Z"


class OneDirection:
    def embed(self, texts: Any) -> list[list[float]]:
        return [[1.0, 0.0, 0.0] for _ in texts]


class Told:
    """Recent writes and a journal that tell of facts, so that recall asks the store for their copies."""

    def read(self, _scope_key: str) -> list[dict[str, Any]]:
        event = fact("an editor told of a moment ago")
        return [{"id": event["factId"], "label": "MEMORY_FACT", "record": stored(event)}]


def where_of(request: Logged) -> Mapping[str, Any]:
    """The filter of a request, in whichever form."""
    body = request.body
    is_engine = request.path == "/protocol/v1/execute"
    found = body["query"]["query"].get("predicate") if is_engine else body.get("where")
    assert isinstance(found, Mapping), body
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_request_of_a_recall_holds_the_five_fields_in_its_where(form: str, tmp_path: Path) -> None:
    """Content by all five as equalities on top, where nothing widens them; marks, which hold no text, by scopeKey."""
    with_vectors = form in ("platform, our vectors", "engine, hybrid")
    with rushdb_server(tmp_path / "data.sqlite", **FORMS[form]) as server:
        scheme = "rushdb+direct+" if form.startswith("engine") else "rushdb+"
        store = open_store(scheme + server.url, token=server.token)
        specs = [
            IndexSpec(label=label, property=name, dimensions=3 if with_vectors else None)
            for label, name in TEXT.items()
        ]
        store.ensure_indexes(specs)
        foreign = stored(fact("an editor that another adapter wrote"))
        del foreign["contentHash"]
        for row, merge_by in (
            (stored(fact("an editor")), ["factId", "contentHash"]),
            (stored(episode("an editor")), ["eventId", "contentHash"]),
            (foreign, ["factId"]),
        ):
            (record,) = store.upsert(label_of(row), [row], merge_by, wake=True) or store.find(label_of(row), {}).records
            if with_vectors:
                store.set_vectors(label_of(row), TEXT[label_of(row)], {record.id: [1.0, 0.0, 0.0]})
        server.forget_requests()
        recall = Recall(store, Told(), embedder=OneDirection() if with_vectors else None, deadline_ms=20_000)  # type: ignore[arg-type]
        try:
            found = recall.recall(ANN, "editor", session=Session(runtime="custom", external_session_id="here"))
            id_ = next(one.id for one in found.memories if one.label == "MEMORY_FACT")
            assert history.by_id(store, ANN, id_, now=NOW) and history.history(store, ANN, id_, now=NOW).versions
        finally:
            recall.close()
            store.close()
        assert len(found.memories) >= 2 and not found.partial
        requests = [one for one in server.requests() if one.request_class in ("read", "search")]
    asked = {one.label for one in requests}
    assert {"EPISODE", "MEMORY_FACT", "MEMORY_MARK"} >= asked >= {"EPISODE", "MEMORY_FACT"}
    assert sum("factId" in where_of(one) for one in requests) >= 1  # the copies
    assert "MEMORY_MARK" in asked
    for one in requests:
        if one.label == "MEMORY_MARK":
            assert where_of(one)["scopeKey"] in ({"$in": [ANN.key, "*"]}, ANN.key)
        else:
            assert {name: where_of(one).get(name) for name in keys.SCOPE_FIELDS} == ANN.fields()
            assert "scopeKey" not in where_of(one)
