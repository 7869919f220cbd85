"""The RushDB adapter without a server: which requests it makes of which call, and what it takes for an answer."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import rushdb

from producer import errors
from producer.store import open_store
from producer.store import rushdb as adapter
from producer.store.port import IndexSpec, LinkSpec
from producer.store.sdk import EngineClient, PlatformClient
from producer.store.transport import Deadline, Transport

RECORDING = json.loads((Path(__file__).parents[1] / "data" / "protocol-2.11.json").read_text("utf-8"))["transcripts"]
LABEL, TEXT = "MEMORY_FACT", "text"
OK: dict[str, Any] = {"data": [], "total": 0, "success": True}
EXTERNAL = {
    "id": "index-1",
    "label": LABEL,
    "propertyName": TEXT,
    "sourceType": "external",
    "similarityFunction": "cosine",
    "dimensions": 4,
}
MANAGED = {**EXTERNAL, "id": "index-2", "sourceType": "managed", "dimensions": 64}
TEXT_INDEX = {"name": "MEMORY_FACT.text.text", "label": LABEL, "property": TEXT, "status": "ready", "pending": 0}


class Script:
    """In the place of a `Transport`: keeps the requests, answers each from a table by route; errors are raised."""

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.answers: dict[str, Any] = {
            "GET /ai/indexes": {"data": [EXTERNAL], "success": True},
            "GET /text-indexes": errors.StoreRefused("no such route", status=404),
            "GET /sdk/settings": {"data": {"embeddingEnabled": False}, "success": True},
            **(answers or {}),
        }

    def call(self, method: str, path: str, body: Any = None, *, what: str, **_: Any) -> Any:
        self.sent.append((method, path, json.loads(json.dumps(body))))
        answer = self.answers.get(what, OK)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(body) if callable(answer) else answer

    def check_open(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def last(self) -> tuple[str, str, Any]:
        return self.sent[-1]


def store_on(script: Script, *, direct: bool = False, timeout_s: float = 5.0) -> adapter.RushDBStore:
    return adapter.RushDBStore(adapter._Server(script, direct=direct), timeout_s=timeout_s)  # type: ignore[arg-type]


# -- the recorded protocol ---------------------------------------------------------------------------------------------

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Recorded to know the server, not because the port makes such requests.
NOT_OF_THE_PORT = {"attach-one", "plain-create-duplicate"}
REFUSED = {
    "by-underscore-id-finds-nothing",
    "episodes-in-session",
    "import-inline-vector",
    "nested-value-in-import",
}


def call_for(store: adapter.RushDBStore, method: str, path: str, body: Any) -> Any:
    """The call of the port that should make this request."""
    route = path.removeprefix("/api/v1")
    match method, route:
        case "POST", "/records/search":
            order = tuple(body["orderBy"].items())
            skip = body.get("skip", 0)
            return store.find(body["labels"][0], body["where"], limit=body["limit"], skip=skip, order_by=order)
        case "POST", "/records/import/json":
            return store.upsert(body["label"], body["data"], body["options"]["mergeBy"])
        case "POST", "/records":
            return store.upsert(body["label"], [body["data"]], body["options"]["mergeBy"], wake=True)
        case "POST", "/relationships/create-many":
            source, target = body["source"], body["target"]
            return store.link(
                LinkSpec(
                    type=body["type"],
                    source_label=source["label"],
                    source_key=source["key"],
                    source_where=source["where"],
                    target_label=target["label"],
                    target_key=target["key"],
                )
            )
        case "POST", "/relationships/search":
            return store.edges(body["source"]["labels"][0], body["source"]["where"])
        case "POST", "/ai/indexes":
            spec = IndexSpec(label=body["label"], property=body["propertyName"], dimensions=body["dimensions"])
            return store.ensure_indexes([spec])
        case "POST", "/ai/search":
            where, vector = body["where"], body["queryVector"]
            return store.search(body["labels"][0], body["propertyName"], where, vector=vector, limit=body["limit"])
        case "DELETE", _:
            return store.delete(LABEL, route.rpartition("/")[2])
    assert route.endswith("/vectors/upsert"), route
    return store.set_vectors(LABEL, TEXT, {item["recordId"]: item["vector"] for item in body["items"]})


def normal(body: Any) -> Any:
    """What may differ: the order of rows (ours are sorted), a skip of nothing, and the size of a page of edges."""
    if not isinstance(body, dict):
        return body
    body = {name: value for name, value in body.items() if name != "skip" or value}
    if isinstance(body.get("data"), list):
        body["data"] = sorted(body["data"], key=lambda row: json.dumps(row, sort_keys=True))
    if "source" in body and "limit" in body:
        del body["limit"]
    return body


@pytest.mark.parametrize(
    "exchange",
    [pytest.param(one, id=one["name"]) for one in RECORDING if one["name"] not in NOT_OF_THE_PORT | REFUSED],
)
def test_a_call_makes_the_very_request_that_was_recorded_and_reads_its_answer(exchange: dict[str, Any]) -> None:
    request, response = exchange["request"], exchange["response"]["body"]
    here = (request["method"], request["path"].removeprefix("/api/v1"))
    script = Script({ID.sub("{}", " ".join(here)): response})
    if here[1] == "/ai/indexes":  # looked at before and after it is made
        script.answers["GET /ai/indexes"] = [{"data": []}, {"data": [response["data"]]}]
    elif "/vectors/" in here[1]:
        script.answers["GET /ai/indexes"] = {"data": [{**EXTERNAL, "id": here[1].split("/")[3]}]}
    answer = call_for(store_on(script), request["method"], request["path"], request["body"])
    made = [(method, path, body) for method, path, body in script.sent if (method, path) == here]
    assert [normal(body) for _, _, body in made] == [normal(request["body"])]
    if here[1] == "/records/search":
        assert ([one.id for one in answer.records], answer.total) == (
            [one["__id"] for one in response["data"]],
            response["total"],
        )
    elif here[1] in ("/records/import/json", "/ai/search"):
        assert [(one.id, one.score) for one in answer] == [
            (one["__id"], one.get("__score")) for one in response["data"]
        ]
    elif here[1] == "/relationships/search":
        assert [(edge.source_id, edge.type, edge.target_id) for edge in answer] == [
            (row["sourceId"], row["type"], row["targetId"]) for row in response["data"]
        ]


@pytest.mark.parametrize("exchange", [pytest.param(one, id=one["name"]) for one in RECORDING if one["name"] in REFUSED])
def test_what_the_port_does_not_have_is_refused_before_anything_is_sent(exchange: dict[str, Any]) -> None:
    script = Script()
    with pytest.raises(errors.Permanent):
        call_for(store_on(script), *(exchange["request"][name] for name in ("method", "path", "body")))
    assert script.sent == []


def test_every_recorded_exchange_is_compared_but_the_few_that_the_port_never_makes() -> None:
    assert len(RECORDING) == 62
    assert {one["name"] for one in RECORDING} > NOT_OF_THE_PORT | REFUSED
    assert len(NOT_OF_THE_PORT | REFUSED) == 6


# -- upsert ------------------------------------------------------------------------------------------------------------


def test_rows_are_sent_sorted_by_merge_key_and_with_all_four_options() -> None:
    script = Script()
    store_on(script).upsert(LABEL, [{"k": "b", "h": 1}, {"k": "a", "h": 2}, {"k": "a", "h": 10}], ["k", "h"])
    method, path, body = script.last
    assert (method, path) == ("POST", "/records/import/json")
    assert [(row["k"], row["h"]) for row in body["data"]] == [("a", 2), ("a", 10), ("b", 1)]
    assert body["options"] == {
        "mergeBy": ["k", "h"],
        "mergeStrategy": "append",
        "suggestTypes": True,
        "returnResult": True,
    }


@pytest.mark.parametrize(
    "name", ["data", "total", "records", "label", "options", "vectors", "$x", "__y", "a`b", "", "n" * 101]
)
def test_a_property_name_that_the_server_would_lose_or_break_on_is_refused(name: str) -> None:
    script = Script()
    with pytest.raises(errors.StoreRefused):
        store_on(script).upsert(LABEL, [{"k": "a", name: 1}], ["k"])
    assert script.sent == []


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, None, [], {}, float("nan"), b""])
def test_a_value_that_would_not_come_back_as_it_was_is_refused(value: Any) -> None:
    script = Script()
    with pytest.raises(errors.StoreRefused):
        store_on(script).upsert(LABEL, [{"k": "a", "v": value}], ["k"])
    assert script.sent == []


@pytest.mark.parametrize("data", [True, {"message": "Import complete", "count": 1}])
def test_an_upsert_that_brings_no_records_back_is_a_good_one(data: Any) -> None:
    script = Script({"POST /records/import/json": {"data": data, "success": True}})
    assert store_on(script).upsert(LABEL, [{"k": "a"}], ["k"]) == ()


def test_properties_of_others_that_are_not_flat_are_left_out() -> None:
    found = {"__id": "i", "__label": LABEL, "__proptypes": {}, "tags": ["a"], "n": 1, "on": True}
    script = Script({"POST /records/search": {"data": [found], "total": 1}})
    (record,) = store_on(script).find(LABEL, {}).records
    assert dict(record.properties) == {"n": 1, "on": True}


class Slow:
    """Answers writes when told to, and counts how many were there at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.now = self.most = 0
        self.lock = threading.Lock()

    def __call__(self, body: Any) -> Any:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.go.wait(5)
        with self.lock:
            self.now -= 1
        return OK


def in_threads(*calls: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_writes_of_one_label_go_one_after_the_other_those_of_two_labels_side_by_side() -> None:
    slow = Slow()
    script = Script({"POST /records/import/json": slow, "POST /records": slow})
    store = store_on(script)
    views = (store, store.with_timeout(4.0))
    same = in_threads(*(lambda view=view, k=k: view.upsert("A", [{"k": k}], ["k"]) for view in views for k in "ab"))
    until(lambda: slow.now == 1)
    other = in_threads(lambda: store.upsert("B", [{"k": "a"}], ["k"]))
    until(lambda: slow.now == 2)
    assert slow.most == 2
    slow.go.set()
    for thread in same + other:
        thread.join()
    assert slow.most == 2
    assert len(script.sent) == 5


def test_a_write_that_cannot_have_its_turn_within_its_time_wrote_nothing() -> None:
    slow = Slow()
    store = store_on(Script({"POST /records/import/json": slow}))
    (first,) = in_threads(lambda: store.upsert(LABEL, [{"k": "a"}], ["k"]))
    until(lambda: slow.now == 1)
    with pytest.raises(errors.StoreUnavailable) as caught:
        store.with_timeout(0.05).upsert(LABEL, [{"k": "b"}], ["k"])
    assert caught.value.outcome_unknown is False
    slow.go.set()
    first.join()
    assert store.upsert(LABEL, [{"k": "b"}], ["k"]) == ()


def test_a_write_that_failed_gives_its_turn_back() -> None:
    failed = errors.StoreUnavailable("x", outcome_unknown=True)
    store = store_on(Script({"POST /records/import/json": [failed, OK]}))
    with pytest.raises(errors.StoreUnavailable):
        store.upsert(LABEL, [{"k": "a"}], ["k"])
    store.with_timeout(0.5).upsert(LABEL, [{"k": "a"}], ["k"])


# -- find, edges, delete -----------------------------------------------------------------------------------------------


def test_an_order_always_ends_with_the_record_id() -> None:
    script = Script()
    store_on(script).find(LABEL, {}, order_by=[("observedAt", "desc")])
    assert list(script.last[2]["orderBy"].items()) == [("observedAt", "desc"), ("__id", "asc")]


def row(number: int, *, direction: str = "out") -> dict[str, Any]:
    ends = {"sourceId": f"s{number}", "sourceLabel": "A", "targetId": "t", "targetLabel": "B"}
    return {**ends, "type": "T", "direction": direction, "properties": {}}


def test_edges_are_read_page_by_page() -> None:
    pages = [[row(n) for n in range(1000)], [row(n) for n in range(1000, 1500)]]
    script = Script({"POST /relationships/search": [{"data": page, "total": 1500} for page in pages]})
    assert len(store_on(script).edges("A", {"k": "v"})) == 1500
    assert [body.get("skip") for _, _, body in script.sent] == [None, 1000]


@pytest.mark.parametrize("second", [[row(n) for n in range(500)], []])
def test_edges_that_changed_while_they_were_read_are_not_half_returned(second: list[Any]) -> None:
    pages = [[row(n) for n in range(1000)], second]
    script = Script({"POST /relationships/search": [{"data": page, "total": 1500} for page in pages]})
    with pytest.raises(errors.StoreUnavailable):
        store_on(script).edges("A", {"k": "v"})


def test_an_edge_that_the_server_tells_from_its_other_end_is_turned_round() -> None:
    script = Script({"POST /relationships/search": {"data": [row(1, direction="in")], "total": 1}})
    (edge,) = store_on(script).edges_into("A", {})
    assert (edge.source_id, edge.source_label, edge.target_id, edge.target_label) == ("t", "B", "s1", "A")
    assert script.last[2]["target"] == {"labels": ["A"], "where": {}}


@pytest.mark.parametrize("record_id", ["", "../records/delete", "a/b", "a?b", "a b", "\u00e4", "x" * 200])
def test_only_a_record_id_can_be_deleted(record_id: str) -> None:
    script = Script()
    with pytest.raises(errors.StoreRefused):
        store_on(script).delete(LABEL, record_id)
    assert script.sent == []


def test_a_record_that_is_not_there_is_deleted_already() -> None:
    script = Script({"DELETE /records/{}": errors.StoreRefused("not found", status=404)})
    store_on(script).delete(LABEL, "i")
    script = Script({"mutate deleteRecord": errors.StoreRefused("not found", status=404)})
    store_on(script, direct=True).delete(LABEL, "i")
    assert len(script.sent) == 1
    with pytest.raises(errors.StoreRefused):
        store_on(Script({"DELETE /records/{}": errors.StoreRefused("x", status=400)})).delete(LABEL, "i")


def link(where: Mapping[str, Any]) -> LinkSpec:
    return LinkSpec(type="T", source_label="A", source_key="k", source_where=where, target_label="B", target_key="k")


def test_a_quote_in_a_links_where_never_reaches_the_statement_that_it_would_break() -> None:
    """RushDB 2.11 splices it in unescaped: at best a 500, at worst another statement."""
    found = {"data": [{"__id": "i1", "__label": "A"}, {"__id": "i2", "__label": "A"}], "total": 2}
    script = Script({"POST /records/search": found})
    store_on(script).link(link({"k": {"$in": ["it's", "x"]}}))
    assert [path for _, path, _ in script.sent] == ["/records/search", "/relationships/create-many"]
    assert script.last[2]["source"]["where"] == {"$id": {"$in": ["i1", "i2"]}}


def test_a_link_of_nothing_sends_nothing() -> None:
    script = Script()
    store_on(script).link(link({"k": "it's"}))
    assert [path for _, path, _ in script.sent] == ["/records/search"]


# -- indexes and search ------------------------------------------------------------------------------------------------


def test_a_rushdb_3_platform_gets_text_indexes_and_is_searched_by_word() -> None:
    indexes = [{"data": []}, {"data": [TEXT_INDEX]}]
    script = Script({"GET /text-indexes": indexes, "POST /text-indexes": {"data": TEXT_INDEX}})
    store = store_on(script)
    can = store.ensure_indexes([IndexSpec(label=LABEL, property=TEXT, dimensions=4)])
    assert (can.keyword_search, can.vector_search, can.embeds) == (True, True, False)
    created = [body for method, path, body in script.sent if (method, path) == ("POST", "/text-indexes")]
    assert created == [{"label": LABEL, "property": TEXT, "name": "MEMORY_FACT.text.text"}]
    where = {"scope": "s"}
    store.search(LABEL, TEXT, where, text='-not +must "a phrase" OR NEAR(x)', limit=3)
    assert script.last == (
        "POST",
        "/search/text",
        {
            "query": "not must a phrase or near x",
            "index": "MEMORY_FACT.text.text",
            "labels": [LABEL],
            "where": where,
            "limit": 3,
        },
    )
    store.search(LABEL, TEXT, where, text="tea", vector=[1, 0, 0, 0], limit=3)
    assert script.last == (
        "POST",
        "/ai/search",
        {
            "propertyName": TEXT,
            "labels": [LABEL],
            "queryVector": [1, 0, 0, 0],
            "sourceType": "external",
            "where": where,
            "limit": 3,
            "text": {"query": "tea", "index": "MEMORY_FACT.text.text"},
        },
    )


def test_a_server_that_embeds_gets_a_managed_index_and_the_query_as_it_is() -> None:
    script = Script(
        {
            "GET /ai/indexes": [{"data": []}, {"data": [MANAGED]}],
            "POST /ai/indexes": {"data": MANAGED},
            "GET /sdk/settings": {"data": {"embeddingEnabled": True}},
        }
    )
    store = store_on(script)
    assert store.ensure_indexes([IndexSpec(label=LABEL, property=TEXT)]).embeds is True
    assert {"label": LABEL, "propertyName": TEXT} in [body for _, _, body in script.sent]
    store.search(LABEL, TEXT, {"scope": "s"}, text="What about Tea?")
    assert script.last[2] == {
        "propertyName": TEXT,
        "labels": [LABEL],
        "query": "What about Tea?",
        "sourceType": "managed",
        "where": {"scope": "s"},
        "limit": 20,
    }


@pytest.mark.parametrize(
    "failure",
    [
        errors.StoreRefused("exists", status=409),
        errors.StoreUnavailable("lost the race", outcome_unknown=True, status=500),
    ],
)
def test_an_index_that_another_made_meanwhile_is_found_by_looking_again(failure: Exception) -> None:
    script = Script({"GET /ai/indexes": [{"data": []}, {"data": [EXTERNAL]}], "POST /ai/indexes": failure})
    assert store_on(script).ensure_indexes([IndexSpec(label=LABEL, property=TEXT, dimensions=4)]).vector_search


@pytest.mark.parametrize(
    "failure",
    [
        errors.StoreUnavailable("x", outcome_unknown=True, status=500),
        errors.StoreUnavailable("no answer", outcome_unknown=True),
        errors.StoreRefused("dimensions", status=422),
        errors.StoreDenied("read-only"),
    ],
)
def test_an_index_that_could_not_be_made_says_why(failure: Exception) -> None:
    script = Script({"GET /ai/indexes": {"data": []}, "POST /ai/indexes": failure})
    with pytest.raises(type(failure)) as caught:
        store_on(script).ensure_indexes([IndexSpec(label=LABEL, property=TEXT, dimensions=4)])
    assert caught.value is failure


def test_what_the_server_has_is_asked_once_and_again_after_a_minute_when_something_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script({"GET /text-indexes": [{"data": []}, {"data": [TEXT_INDEX]}]})
    store = store_on(script)
    assert [store.capabilities().keyword_search for _ in range(3)] == [False] * 3
    assert len(script.sent) == 3  # the three lists, once
    monkeypatch.setattr(adapter, "LOOK_AGAIN_S", 0.0)
    assert store.capabilities().keyword_search is True
    assert store.capabilities().keyword_search is True
    assert len(script.sent) == 6


@pytest.mark.parametrize("vector", [[0.0] * 4, [float("nan"), 1, 1, 1], [float("inf"), 1, 1, 1], [1e-300] * 4, []])
def test_a_vector_that_would_fail_every_search_never_leaves(vector: list[float]) -> None:
    script = Script()
    store = store_on(script)
    with pytest.raises(errors.StoreRefused):
        store.search(LABEL, TEXT, {"k": "v"}, vector=vector)
    with pytest.raises(errors.StoreRefused):
        store.set_vectors(LABEL, TEXT, {"i": vector})
    assert script.sent == []


def test_vectors_that_were_stored_in_part_only_are_not_taken_for_stored() -> None:
    partly = {"data": {"updated": 1, "requested": 2}}
    script = Script({"POST /ai/indexes/{}/vectors/upsert": partly})
    with pytest.raises(errors.StoreUnavailable) as caught:
        store_on(script).set_vectors(LABEL, TEXT, {"i": [1, 0, 0, 0], "j": [1, 0, 0, 0]})
    assert caught.value.outcome_unknown is True


# -- answers that cannot be read ---------------------------------------------------------------------------------------

UNREADABLE = [
    {},
    {"data": None, "total": 0},
    {"data": {}, "total": 0},
    {"data": "x", "total": 0},
    {"data": []},
    {"data": [], "total": None},
    {"data": [], "total": "0"},
    {"data": [], "total": True},
    {"data": [None], "total": 1},
    {"data": [[]], "total": 1},
    {"data": [{}], "total": 1},
    {"data": [{"__id": 5, "__label": LABEL}], "total": 1},
    {"data": [{"__id": "i"}], "total": 1},
]


@pytest.mark.parametrize("answer", UNREADABLE, ids=map(json.dumps, UNREADABLE))
def test_an_answer_that_is_no_page_is_never_taken_for_an_empty_one(answer: Any) -> None:
    """ "Nothing there" makes the rules above write again, or worse, forget that something was forgotten."""
    script = Script({"POST /records/search": answer, "POST /relationships/search": answer})
    for call in (store_on(script).find, store_on(script).edges):
        with pytest.raises(errors.StoreUnavailable) as caught:
            call(LABEL, {"k": "v"})
        assert caught.value.outcome_unknown is False


@pytest.mark.parametrize(
    "response", [None, [], {}, {"records": None, "total": 0}, {"records": []}, {"records": [5], "total": 1}]
)
def test_the_same_holds_for_the_engines_form(response: Any) -> None:
    script = Script({"query records": {"protocolVersion": 1, "response": response}})
    with pytest.raises(errors.StoreUnavailable):
        store_on(script, direct=True).find(LABEL, {"k": "v"})


@pytest.mark.parametrize("data", [5, "text", [5], [None], {}])
def test_a_write_whose_answer_cannot_be_read_has_an_unknown_outcome(data: Any) -> None:
    script = Script({"POST /records": {"data": data}})
    with pytest.raises(errors.StoreUnavailable) as caught:
        store_on(script).upsert(LABEL, [{"k": "a"}], ["k"], wake=True)
    assert caught.value.outcome_unknown is True


@pytest.mark.parametrize("answer", [{}, {"success": True}, {"data": None}])
def test_an_answer_without_data_does_not_acknowledge_a_write(answer: Any) -> None:
    routes = ("POST /records", "POST /records/import/json", "POST /relationships/create-many", "DELETE /records/{}")
    store = store_on(Script(dict.fromkeys(routes, answer)))
    for call in (
        lambda: store.upsert(LABEL, [{"k": "a"}], ["k"]),
        lambda: store.upsert(LABEL, [{"k": "a"}], ["k"], wake=True),
        lambda: store.link(link({})),
        lambda: store.delete(LABEL, "i"),
    ):
        with pytest.raises(errors.StoreUnavailable) as caught:
            call()
        assert caught.value.outcome_unknown is True


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "secret words", "retryable": False}, errors.StoreRefused),
        ({"message": "secret words"}, errors.StoreUnavailable),
        ("secret words", errors.StoreUnavailable),
    ],
)
def test_a_good_status_with_an_error_of_the_engine_is_an_error(error: Any, kind: type[errors.IngestError]) -> None:
    script = Script({"ingest documents": {"protocolVersion": 1, "error": error}})
    with pytest.raises(kind) as caught:
        store_on(script, direct=True).upsert(LABEL, [{"k": "a"}], ["k"])
    assert "secret" not in str(caught.value)


# -- the SDK under us --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [PlatformClient, EngineClient])
def test_requests_that_lose_data_cannot_be_made_at_all(client: type[rushdb.RushDB]) -> None:
    """PATCH loses concurrent changes, a delete by query can empty a project, a transaction can hang or lie."""
    script = Script()
    db = client(script, Deadline(5))  # type: ignore[call-arg, arg-type]
    for call in (
        lambda: db.records.update("i", {"a": 1}),
        lambda: db.records.set("i", {"a": 1}),
        lambda: db.records.delete({"where": {}}),
        lambda: db.records.delete_by_id(["i", "j"]),
        lambda: db.records.attach("i", "j"),
        lambda: db.tx.begin(),
        lambda: db.query.raw({"query": "MATCH (n) DELETE n"}),
        lambda: db.records.find({}, transaction="t") if client is PlatformClient else db.tx.begin(),
        lambda: db.ai.indexes.delete("i"),
    ):
        with pytest.raises(errors.Unsupported):
            call()
    assert script.sent == []


def test_the_sdk_never_holds_the_key() -> None:
    transport = Transport("http://127.0.0.1:1", token="the-key")
    for client in (PlatformClient, EngineClient):
        db = client(transport, Deadline(1))
        engine = vars(db.engine) if db.engine is not None else {}
        assert "the-key" not in [*vars(db).values(), *engine.values()]


@pytest.mark.parametrize(("version", "good"), [("3.0.0", True), ("4.1", True), ("2.10.0", False), ("1.0", False)])
def test_an_sdk_that_hides_errors_is_refused(version: str, good: bool) -> None:
    if good:
        adapter._require_sdk(version)
        return
    with pytest.raises(errors.SettingsRefused):
        adapter._require_sdk(version)


# -- URLs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("rushdb+https://api.rushdb.com", ("https://api.rushdb.com/api/v1", False)),
        ("rushdb+https://api.rushdb.com/api/v1/", ("https://api.rushdb.com/api/v1", False)),
        ("rushdb+http://127.0.0.1:3000/", ("http://127.0.0.1:3000/api/v1", False)),
        ("rushdb+http://h/prefix/api/v2", ("http://h/prefix/api/v2", False)),
        ("rushdb+http://[::1]:3000", ("http://[::1]:3000/api/v1", False)),
        ("rushdb+direct+http://h:3000", ("http://h:3000", True)),
        ("rushdb+direct+https://h/engine/", ("https://h/engine", True)),
    ],
)
def test_the_address_of_a_server(url: str, address: tuple[str, bool]) -> None:
    assert adapter._address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "rushdb",
        "rushdb+https://",
        "rushdb+https:///api/v1",
        "rushdb://h",
        "https://api.rushdb.com",
        "rushdb+ftp://h",
        "rushdb+http://user:secret@h",
        "rushdb+http://h?token=secret",
        "rushdb+http://h#x",
        "rushdb+http://h:port",
        "rushdb+http://h/api",
        "rushdb+http://h/elsewhere",
        "rushdb+http://h h",
        "postgres://h",
        "sqlite://",
        "sqlite:///",
        "sqlite://relative.db",
        "sqlite::memory:",
    ],
)
def test_an_address_that_cannot_be_right_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(errors.SettingsRefused) as caught:
        open_store(url, token="t")
    assert caught.value.setting == "MEMORY_STORE_URL"
    assert "secret" not in str(caught.value)


def test_a_sqlite_url_names_an_absolute_file(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.sqlite")
    store.upsert(LABEL, [{"k": "a"}], ["k"])
    store.close()
    assert (tmp_path / "a.sqlite").exists()


def test_a_rushdb_store_needs_a_key() -> None:
    with pytest.raises(errors.SettingsRefused) as caught:
        open_store("rushdb+http://127.0.0.1:1")
    assert caught.value.setting == "MEMORY_STORE_TOKEN"
