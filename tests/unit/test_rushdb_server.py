"""The test server's switches do what they say, in a thread and in a process of its own, spoken to in plain HTTP."""

from __future__ import annotations

import ast
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http import client
from pathlib import Path
from typing import Any

import pytest

from tests import rushdb_server as package
from tests.rushdb_server import RunningServer, rushdb_server
from tests.rushdb_server.faults import Fault
from tests.rushdb_server.indexes import parse_query

WRITE_OPTIONS = {"mergeBy": ["eventId"], "mergeStrategy": "append", "suggestTypes": True, "returnResult": True}


class Asking:
    """One persistent connection to a server."""

    def __init__(self, server: RunningServer, *, timeout_s: float = 10.0) -> None:
        self._token = server.token
        self._connection = client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        response = self.response(method, path, body)
        return response.status, json.loads(response.read())

    def response(self, method: str, path: str, body: Any = None) -> client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        return self._connection.getresponse()

    def upsert(self, *event_ids: str, label: str = "EPISODE", **more: Any) -> tuple[int, Any]:
        rows = [{"eventId": event_id, "summary": f"about {event_id}", **more} for event_id in event_ids]
        body = {"label": label, "data": rows, "options": WRITE_OPTIONS}
        return self.ask("POST", "/api/v1/records/import/json", body)

    def upsert_one(self, event_id: str, **more: Any) -> tuple[int, Any]:
        data = {"eventId": event_id, "summary": f"about {event_id}", **more}
        return self.ask("POST", "/api/v1/records", {"label": "EPISODE", "data": data, "options": WRITE_OPTIONS})

    def find(self, where: Any = None, label: str = "EPISODE") -> list[dict[str, Any]]:
        body = {"labels": [label], "where": where or {}, "orderBy": {"__id": "asc"}, "limit": 1000}
        status, answer = self.ask("POST", "/api/v1/records/search", body)
        assert status == 200, answer
        return answer["data"]

    def execute(self, operation: Any) -> tuple[int, Any]:
        body = {"protocolVersion": 1, "operation": operation}
        status, answer = self.ask("POST", "/protocol/v1/execute", body)
        return status, answer.get("response", answer)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with rushdb_server(tmp_path / "rushdb.sqlite") as running:
        yield running
        assert running.crashes() == 0


@pytest.fixture
def asking(server: RunningServer) -> Iterator[Asking]:
    with contextlib.closing(Asking(server)) as one:
        yield one


def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status", "body"),
    [
        ("throttle", 403, {"message": "Forbidden resource", "error": "Forbidden", "statusCode": 403}),
        ("timeout", 408, None),
        ("busy", 429, None),
        ("error", 500, {}),
        ("database_error", 500, {"statusCode": 500, "message": "Neo4j database error occurred"}),
    ],
)
def test_an_error_answer_is_given_once_and_nothing_is_written(
    server: RunningServer, asking: Asking, kind: str, status: int, body: Any
) -> None:
    server.fail(kind, on="write", count=1)
    answered, content = asking.upsert("e1")
    assert answered == status
    assert body is None or content == body
    assert server.records("EPISODE") == []
    assert asking.upsert("e1")[0] == 201
    assert server.faults_taken() == {kind: 1}


def test_busy_says_when_to_come_back(server: RunningServer, asking: Asking) -> None:
    server.fail("busy", retry_after_s=7)
    response = asking.response("POST", "/api/v1/records/search", {"labels": ["EPISODE"]})
    response.read()
    assert (response.status, response.getheader("Retry-After")) == (429, "7")


def test_a_bad_gateway_answers_with_a_page_and_not_with_json(server: RunningServer, asking: Asking) -> None:
    server.fail("bad_gateway")
    response = asking.response("POST", "/api/v1/records/search", {"labels": ["EPISODE"]})
    assert (response.status, response.getheader("Content-Type")) == (502, "text/html")
    assert response.read().startswith(b"<html>")


def test_an_error_after_the_commit_leaves_the_record_there(server: RunningServer, asking: Asking) -> None:
    server.fail("error_after", on="write", count=1)
    assert asking.upsert("e1") == (500, {})
    assert [record.get("eventId") for record in server.records("EPISODE")] == ["e1"]


def test_a_lie_answers_like_a_commit_and_writes_nothing(server: RunningServer, asking: Asking) -> None:
    asking.upsert("old", text="kept")
    server.fail("lie", count=2, on="write")
    status, answer = asking.upsert("old", "new", text="changed")
    assert status == 201
    assert [(row["eventId"], row["text"]) for row in answer["data"]] == [("old", "changed"), ("new", "changed")]
    assert asking.upsert_one("new")[0] == 201
    assert [(row["eventId"], row["text"]) for row in asking.find()] == [("old", "kept")]


def test_a_lie_about_deleting_or_linking_changes_nothing(server: RunningServer, asking: Asking) -> None:
    (record,) = asking.upsert("e1")[1]["data"]
    asking.upsert("e1", label="SESSION")
    server.fail("lie", on=("delete", "link"))
    assert asking.ask("DELETE", f"/api/v1/records/{record['__id']}")[0] == 200
    link = {
        "source": {"label": "EPISODE", "key": "eventId"},
        "target": {"label": "SESSION", "key": "eventId"},
        "type": "IN_SESSION",
    }
    assert asking.ask("POST", "/api/v1/relationships/create-many", link)[0] == 201
    assert asking.find() == [record]
    assert asking.ask("POST", "/api/v1/relationships/search", {})[1]["total"] == 0


def test_a_doubled_upsert_makes_another_record_although_one_exists(server: RunningServer, asking: Asking) -> None:
    asking.upsert("e1")
    server.fail("double", count=1)
    asking.upsert("e1")
    assert [row["eventId"] for row in asking.find()] == ["e1", "e1"]
    asking.upsert("e1", seen=True)
    assert [row["seen"] for row in asking.find()] == [True, True], "an upsert updates all that match"
    server.fail("double", count=1)
    asking.upsert_one("e2")
    assert len(asking.find({"eventId": "e2"})) == 2


@pytest.mark.parametrize(("kind", "written"), [("reset", 0), ("reset_after", 1)])
def test_a_reset_connection_may_have_written_or_not(
    server: RunningServer, asking: Asking, kind: str, written: int
) -> None:
    server.fail(kind, on="write")
    with pytest.raises(ConnectionResetError):
        asking.upsert("e1")
    assert len(server.records("EPISODE")) == written


def test_half_a_body_ends_too_early_and_the_write_is_there(server: RunningServer, asking: Asking) -> None:
    server.fail("half_body", on="write")
    with pytest.raises(client.IncompleteRead):
        asking.upsert("e1")
    assert len(server.records("EPISODE")) == 1


def test_a_delayed_answer_comes_after_the_delay_and_the_write_before_it(server: RunningServer, asking: Asking) -> None:
    server.fail("delay", delay_s=0.2, on="write")
    started = time.monotonic()
    thread = threading.Thread(target=asking.upsert, args=("e1",))
    thread.start()
    until(lambda: len(server.records("EPISODE")) == 1)
    assert thread.is_alive()
    thread.join()
    assert time.monotonic() - started >= 0.2


def test_a_hanging_request_ends_when_it_is_released_and_wrote_nothing(server: RunningServer) -> None:
    server.fail("hang", on="write")
    ended: list[BaseException] = []

    def write() -> None:
        with contextlib.closing(Asking(server, timeout_s=60)) as patient:
            try:
                patient.upsert("e1")
            except OSError as error:
                ended.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    until(lambda: server.faults_taken() == {"hang": 1})
    assert thread.is_alive()
    server.release()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(ended[0], ConnectionResetError)
    assert server.records("EPISODE") == []


def test_a_client_that_gives_up_ends_its_hanging_request_only(server: RunningServer, asking: Asking) -> None:
    server.fail("hang", on="write", count=1)
    with contextlib.closing(Asking(server, timeout_s=0.05)) as impatient, pytest.raises(TimeoutError):
        impatient.upsert("e1")
    assert asking.upsert("e2")[0] == 201


def test_a_late_write_is_applied_after_its_caller_gave_up(server: RunningServer, asking: Asking) -> None:
    server.fail("late", on="write", count=1, late_s=0.2)
    with contextlib.closing(Asking(server, timeout_s=0.05)) as impatient, pytest.raises(TimeoutError):
        impatient.upsert("e1")
    assert asking.find() == []
    until(lambda: len(asking.find()) == 1)


def test_a_late_upsert_that_had_looked_before_makes_another_record(server: RunningServer, asking: Asking) -> None:
    server.fail("late_double", on="write", count=1, late_s=0.2)
    with contextlib.closing(Asking(server, timeout_s=0.05)) as impatient, pytest.raises(TimeoutError):
        impatient.upsert("e1")
    asking.upsert("e1")
    assert len(asking.find()) == 1
    until(lambda: len(asking.find()) == 2)


def test_any_answer_can_come_before_a_late_effect(server: RunningServer, asking: Asking) -> None:
    server.fail("error", on="write", count=1, effect="late", late_s=0.1)
    assert asking.upsert("e1") == (500, {})
    assert asking.find() == []
    until(lambda: len(asking.find()) == 1)


def test_a_switch_takes_only_its_classes_and_its_label_after_its_pause(server: RunningServer, asking: Asking) -> None:
    server.fail("error", on=("write", "delete"), label="EPISODE", after=1, count=2)
    statuses = [asking.upsert(name)[0] for name in ("e1", "e2", "e3", "e4")]
    assert statuses == [201, 500, 500, 201]
    server.fail("error", label="SESSION")
    assert asking.upsert("e1")[0] == 201
    assert asking.upsert("s1", label="SESSION")[0] == 500


def test_chance_is_the_same_in_every_run_of_a_seed(tmp_path: Path) -> None:
    def outcomes(name: str, seed: int) -> list[int]:
        with rushdb_server(tmp_path / name) as server, contextlib.closing(Asking(server)) as asking:
            server.fail("error", on="read", probability=0.5, seed=seed)
            return [asking.ask("GET", "/api/v1/records/x")[0] for _ in range(30)]

    first = outcomes("one.sqlite", 1)
    assert first == outcomes("two.sqlite", 1) != outcomes("three.sqlite", 2)
    assert set(first) == {404, 500}


def test_cleared_switches_take_no_further_request(server: RunningServer, asking: Asking) -> None:
    server.fail("error")
    server.clear_faults()
    assert asking.find() == []


def test_lost_indexes_are_gone_with_their_vectors_and_the_records_stay(server: RunningServer, asking: Asking) -> None:
    index = {"label": "EPISODE", "propertyName": "summary", "sourceType": "external", "dimensions": 2}
    search = {
        "labels": ["EPISODE"],
        "propertyName": "summary",
        "sourceType": "external",
        "queryVector": [1, 0],
        "where": {"eventId": "e1"},
    }

    def made() -> str:
        status, answer = asking.ask("POST", "/api/v1/ai/indexes", index)
        assert status == 201
        return answer["data"]["id"]

    (record,) = asking.upsert("e1")[1]["data"]
    items = {"items": [{"recordId": record["__id"], "vector": [1, 0]}]}
    assert asking.ask("POST", f"/api/v1/ai/indexes/{made()}/vectors/upsert", items)[0] == 200
    assert len(asking.ask("POST", "/api/v1/ai/search", search)[1]["data"]) == 1
    server.lose_indexes()
    assert asking.ask("POST", "/api/v1/ai/search", search)[0] == 404
    made()
    assert asking.ask("POST", "/api/v1/ai/search", search)[1]["data"] == []
    assert asking.find() == [record]


def test_unknown_names_in_a_switch_are_refused() -> None:
    with pytest.raises(ValueError, match="no fault"):
        Fault(kind="sulk")
    with pytest.raises(ValueError, match="no request class"):
        Fault(kind="error", on="writes")
    with pytest.raises(ValueError, match="no effect"):
        Fault(kind="error", effect="later")
    with pytest.raises(ValueError, match="has no often"):
        Fault.of_json({"kind": "error", "often": True})


# -- what tests read off it ------------------------------------------------------------------------------------------


def test_requests_are_logged_in_order_with_their_bodies_and_counted_by_class(
    server: RunningServer, asking: Asking
) -> None:
    server.fail("error", on="read", count=1)
    asking.upsert("e1")
    asking.ask("POST", "/api/v1/records/search", {"labels": ["EPISODE"], "where": {"eventId": "e1"}})
    asking.ask("DELETE", "/api/v1/records/none")
    asking.ask("GET", "/api/v1/nope")
    write, read, delete, other = server.requests()
    assert (write.method, write.path, write.label) == ("POST", "/api/v1/records/import/json", "EPISODE")
    assert (read.body["where"], read.fault) == ({"eventId": "e1"}, "error")
    assert (delete.request_class, other.request_class) == ("delete", "other")
    assert server.counts() == {"write": 1, "read": 1, "delete": 1, "other": 1, "connections": 1}
    server.forget_requests()
    assert server.requests() == []


def test_a_connection_serves_many_requests_and_many_connections_are_taken_at_once(server: RunningServer) -> None:
    asked = [Asking(server) for _ in range(200)]
    try:
        for one in asked:
            one._connection.connect()
        assert [one.ask("GET", "/health")[0] for one in asked * 2] == [200] * 400
        assert server.counts()["connections"] == 200
    finally:
        for one in asked:
            one.close()


def test_concurrent_upserts_of_one_key_make_one_record(server: RunningServer) -> None:
    def write() -> None:
        with contextlib.closing(Asking(server)) as one:
            statuses.append(one.upsert("e1")[0])

    statuses: list[int] = []
    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [201] * 8
    assert len(server.records("EPISODE")) == 1


def test_an_import_beyond_the_store_batch_and_of_other_shapes_is_written_whole(
    server: RunningServer, asking: Asking
) -> None:
    names = [f"e{number:03d}" for number in range(250)]
    status, answer = asking.upsert(*names)
    assert (status, [row["eventId"] for row in answer["data"]]) == (201, names)
    body = {"label": "NOTE", "data": [{"a": 1}, {"b": [1, 2]}, {"a": 1}], "options": {**WRITE_OPTIONS, "mergeBy": []}}
    _, first = asking.ask("POST", "/api/v1/records/import/json", body)
    _, again = asking.ask("POST", "/api/v1/records/import/json", body)
    assert len(first["data"]) == 3, "a key twice in one batch, and not there yet: two records"
    assert len(again["data"]) == 2, "a key twice in one batch, and there: one record takes both"
    assert {row["__id"] for row in again["data"]} <= {row["__id"] for row in first["data"]}


def test_a_range_compares_instants_whatever_form_the_question_has(server: RunningServer, asking: Asking) -> None:
    asking.upsert("e1", observedAt="2026-12-01T12:00:00.000Z")
    assert len(asking.find({"observedAt": {"$gte": "2026-12-01T13:00:00+01:00"}})) == 1
    assert asking.find({"observedAt": {"$gt": "2026-12-01T12:00:00Z"}}) == []


@pytest.mark.parametrize(
    ("where", "status"),
    [
        ({"a": {"$in": []}}, 400),
        ({"a": {"$in": ["x", 1]}}, 400),
        ({"a": {"$gt": "yesterday"}}, 400),
        ({"a": {"$gt": True}}, 400),
        ({"a": {"$contains": "x"}}, 501),
        ({"$or": [{}, {"a": 1}]}, 501),
        ({"a": {"$regex": "x"}}, 200),
        ({"__id": "x"}, 200),
    ],
)
def test_a_where_that_2_11_refuses_or_finds_nothing_by_does_so_here(asking: Asking, where: Any, status: int) -> None:
    asking.upsert("e1", a="x")
    answered, answer = asking.ask("POST", "/api/v1/records/search", {"labels": ["EPISODE"], "where": where})
    assert answered == status
    assert status != 200 or answer["data"] == []


def test_a_vector_search_without_a_where_finds_nothing_and_a_zero_vector_poisons_one_with_it(asking: Asking) -> None:
    index = {"label": "EPISODE", "propertyName": "summary", "sourceType": "external", "dimensions": 2}
    key = asking.ask("POST", "/api/v1/ai/indexes", index)[1]["data"]["id"]
    good, zero = asking.upsert("good", "zero")[1]["data"]
    items = [{"recordId": good["__id"], "vector": [1, 0]}, {"recordId": zero["__id"], "vector": [0, 0]}]
    assert asking.ask("POST", f"/api/v1/ai/indexes/{key}/vectors/upsert", {"items": items})[0] == 200
    search = {"labels": ["EPISODE"], "propertyName": "summary", "sourceType": "external", "queryVector": [1, 0]}
    assert asking.ask("POST", "/api/v1/ai/search", search)[1]["data"] == []
    _, found = asking.ask("POST", "/api/v1/ai/search", {**search, "where": {"eventId": "good"}})
    assert [row["__score"] for row in found["data"]] == [pytest.approx(1.0)]
    assert (
        asking.ask("POST", "/api/v1/ai/search", {**search, "where": {"eventId": {"$in": ["good", "zero"]}}})[0] == 500
    )


# -- the managed index -----------------------------------------------------------------------------------------------


def test_a_managed_index_sleeps_through_batches_until_one_single_upsert_wakes_it(tmp_path: Path) -> None:
    now = time.time()
    clock = lambda: now  # noqa: E731
    with (
        rushdb_server(tmp_path / "rushdb.sqlite", embeds=True, embed_delay_s=30, clock=clock) as server,
        contextlib.closing(Asking(server)) as asking,
    ):

        def found() -> set[str]:
            search = {
                "labels": ["EPISODE"],
                "propertyName": "summary",
                "query": "about",
                "where": {"scope": "mine"},
            }
            return {row["eventId"] for row in asking.ask("POST", "/api/v1/ai/search", search)[1]["data"]}

        asking.upsert("first", scope="mine")
        index = {"label": "EPISODE", "propertyName": "summary"}
        assert asking.ask("POST", "/api/v1/ai/indexes", index)[1]["data"]["status"] == "pending"
        assert found() == set()
        now += 31
        assert found() == {"first"}
        assert asking.ask("GET", "/api/v1/ai/indexes")[1]["data"][0]["status"] == "ready"
        asking.upsert("batched", scope="mine")
        now += 3600
        assert found() == {"first"}
        asking.upsert_one("single", scope="mine")
        assert found() == {"first"}
        now += 31
        asking.upsert("after the run", scope="mine")
        assert found() == {"first", "batched", "single"}


def test_without_embeds_the_settings_say_so_and_a_managed_index_is_refused(asking: Asking) -> None:
    assert asking.ask("GET", "/api/v1/sdk/settings")[1]["data"]["embeddingEnabled"] is False
    assert asking.ask("POST", "/api/v1/ai/indexes", {"label": "EPISODE", "propertyName": "summary"})[0] == 422


# -- the direct form -------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Asking]:
    with rushdb_server(tmp_path / "rushdb.sqlite", profile="direct") as running:
        with contextlib.closing(Asking(running)) as one:
            yield one
        assert running.crashes() == 0


def ingested(asking: Asking, *texts: str, **more: Any) -> list[dict[str, Any]]:
    documents = [{"factId": f"f{place}", "text": text, **more} for place, text in enumerate(texts)]
    options = {**WRITE_OPTIONS, "mergeBy": ["factId"]}
    ingest = {"kind": "documents", "label": "MEMORY_FACT", "documents": documents, "options": options}
    status, answer = asking.execute({"kind": "ingest", "ingest": ingest})
    assert (status, answer["kind"]) == (200, "ingested")
    return answer["records"]


def test_the_direct_form_writes_finds_and_deletes(engine: Asking) -> None:
    first, second = ingested(engine, "likes tea", "likes coffee", active=True)
    assert [record["id"] for record in ingested(engine, "likes tea")] == [first["id"]]
    query = {"labels": ["MEMORY_FACT"], "predicate": {"active": True}, "order": {"id": "desc"}, "offset": 0, "limit": 1}
    _, found = engine.execute({"kind": "query", "query": {"kind": "records", "query": query}})
    assert ([record["id"] for record in found["records"]], found["total"]) == ([second["id"]], 2)
    assert found["records"][0]["propertyTypes"] == {"factId": "string", "text": "string", "active": "boolean"}
    delete = {"kind": "mutate", "mutation": {"kind": "deleteRecord", "id": first["id"]}}
    assert [engine.execute(delete)[1]["affected"] for _ in range(2)] == [1, 0]
    status, answer = engine.execute({"kind": "query", "query": {"kind": "record", "id": first["id"]}})
    assert (status, answer["error"]["code"]) == (404, "not_found")


def test_the_direct_form_links_by_key_and_lists_the_edges(engine: Asking) -> None:
    fact, _ = ingested(engine, "likes tea", "likes coffee")
    mutation = {
        "kind": "putRecord",
        "mode": "create",
        "label": "EPISODE",
        "properties": {"eventId": "f0"},
        "options": {},
    }
    episode = engine.execute({"kind": "mutate", "mutation": mutation})[1]["record"]
    command = {
        "relationType": "FROM_EPISODE",
        "direction": "out",
        "allowCartesian": False,
        "properties": {},
        "source": {"label": "MEMORY_FACT", "property": "factId", "predicate": {}},
        "target": {"label": "EPISODE", "property": "eventId", "predicate": {}},
    }
    for _ in range(2):
        assert engine.execute({"kind": "mutate", "mutation": {"kind": "linkRecords", "command": command}})[0] == 200
    query = {"sourceLabels": [], "targetLabels": ["EPISODE"], "targetPredicate": {"eventId": "f0"}, "offset": 0}
    _, found = engine.execute({"kind": "query", "query": {"kind": "relationships", "query": query}})
    assert found["total"] == 1
    assert found["relationships"][0]["sourceId"] == fact["id"]
    assert found["relationships"][0]["targetId"] == episode["id"]


def test_the_direct_form_searches_words_vectors_and_both(engine: Asking) -> None:
    tea, coffee, water = ingested(engine, "likes green tea", "likes black coffee", "drinks water", scope="mine")
    text = {"kind": "text", "name": "words", "label": "MEMORY_FACT", "property": "text", "consistency": "immediate"}
    vector = {"name": "v", "label": "MEMORY_FACT", "property": "text", "dimensions": 2, "similarity": "cosine"}
    assert engine.execute({"kind": "index", "index": {"kind": "create", "definition": text}})[0] == 200
    assert engine.execute({"kind": "index", "index": {"kind": "createVector", "definition": vector}})[0] == 200
    assert engine.execute({"kind": "index", "index": {"kind": "createVector", "definition": vector}})[0] == 409
    items = [{"recordId": tea["id"], "vector": [1, 0]}, {"recordId": water["id"], "vector": [0, 1]}]
    assert engine.execute({"kind": "index", "index": {"kind": "upsertVectors", "name": "v", "items": items}})[0] == 200

    def found(kind: str, query: Any) -> list[str]:
        full = {"labels": ["MEMORY_FACT"], "predicate": {"scope": "mine"}, "offset": 0, "limit": 10, **query}
        status, answer = engine.execute({"kind": "query", "query": {"kind": kind, "query": full}})
        assert status == 200, answer
        return [record["id"] for record in answer["records"]]

    words = {"index": "words", "query": "green tea", "allTerms": False, "phrase": False}
    by_vector = {"property": "text", "vector": [0, 1], "similarity": "cosine", "index": "v"}
    assert found("hybrid", {"text": words}) == [tea["id"]]
    assert found("vector", by_vector) == [water["id"], tea["id"]]
    assert found("vector", {**by_vector, "predicate": {"scope": "other"}}) == []
    assert found("hybrid", {"text": {**words, "query": "coffee"}, "vector": by_vector})[0] in (
        coffee["id"],
        water["id"],
    )
    assert found("hybrid", {"text": {**words, "query": "likes -green"}}) == [coffee["id"]]


def test_each_profile_refuses_the_other_form_and_a_wrong_key(tmp_path: Path) -> None:
    for profile, other, denied in (("2.11", "/protocol/v1/execute", 403), ("direct", "/api/v1/records/search", 401)):
        with (
            rushdb_server(tmp_path / f"{profile}.sqlite", profile=profile) as server,
            contextlib.closing(Asking(server)) as asking,
        ):
            assert asking.ask("POST", other, {})[0] == 404
            asking._token = "wrong"
            own = "/api/v1/records/search" if profile == "2.11" else "/protocol/v1/execute"
            assert asking.ask("POST", own, {"protocolVersion": 1, "operation": {}})[0] == denied


def test_what_the_direct_form_does_not_serve_is_an_error_object(engine: Asking) -> None:
    status, answer = engine.execute({"kind": "mutate", "mutation": {"kind": "deleteRecords", "query": {}}})
    assert (status, "deleteRecords" in answer["error"]["message"]) == (400, True)


def test_faults_of_the_direct_form_come_in_its_own_error_shape(tmp_path: Path) -> None:
    with rushdb_server(tmp_path / "rushdb.sqlite", profile="direct") as server:
        server.fail("database_error", on="write", label="MEMORY_FACT")
        with contextlib.closing(Asking(server)) as asking:
            ingest = {"kind": "documents", "label": "MEMORY_FACT", "documents": [], "options": {}}
            status, answer = asking.execute({"kind": "ingest", "ingest": ingest})
            assert (status, answer["error"]["retryable"]) == (500, True)


def test_a_text_query_is_a_language_of_its_own() -> None:
    assert parse_query("plain words") == ("plain words", [], [])
    assert parse_query('tea +green -"black tea" -sugar') == ("tea green - black tea", ["green"], ["sugar"])
    with pytest.raises(Exception, match="Unbalanced"):
        parse_query('a "half')


# -- restarts and processes ------------------------------------------------------------------------------------------


def test_a_stopped_server_refuses_and_serves_the_same_data_at_the_same_address_again(tmp_path: Path) -> None:
    index = {"label": "EPISODE", "propertyName": "summary", "sourceType": "external", "dimensions": 2}
    own_id = "01a11111-0000-7000-8000-000000000001"
    typed = {
        "label": "EPISODE",
        "id": own_id,
        "properties": [{"name": "eventId", "type": "string", "value": "typed"}],
        "options": WRITE_OPTIONS,
    }
    with rushdb_server(tmp_path / "rushdb.sqlite") as server:
        url = server.url
        with contextlib.closing(Asking(server)) as asking:
            asking.upsert("e1", "e2")
            asking.ask("POST", "/api/v1/records", typed)
            made = asking.ask("POST", "/api/v1/ai/indexes", index)[1]["data"]
            server.stop()
            with pytest.raises(ConnectionError):
                asking.find()
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", server.port)):
            pass
        assert len(server.records("EPISODE")) == 3, "the file can be read while the server is stopped"
        server.start()
        assert server.url == url
        with contextlib.closing(Asking(server)) as asking:
            assert [row["eventId"] for row in asking.find()] == ["e1", "e2", "typed"]
            assert asking.ask("GET", f"/api/v1/records/{own_id}")[0] == 200
            assert asking.ask("GET", "/api/v1/ai/indexes")[1]["data"] == [made]


def test_a_process_can_be_switched_killed_and_started_again(tmp_path: Path) -> None:
    with rushdb_server(tmp_path / "rushdb.sqlite", process=True, token="t1") as server:
        server.fail("error", on=("write", "read"), count=1)
        with contextlib.closing(Asking(server)) as asking:
            assert asking.upsert("e1")[0] == 500
            assert asking.upsert("e1")[0] == 201
        assert server.faults_taken() == {"error": 1}
        assert [request.fault for request in server.requests()] == ["error", None]
        assert (server.counts()["write"], server.crashes()) == (2, 0)
        with pytest.raises(ValueError, match="no fault"):
            server.fail("sulk")
        port = server.port
        server.kill()
        server.start()
        assert server.port == port
        with contextlib.closing(Asking(server)) as asking:
            assert [row["eventId"] for row in asking.find()] == ["e1"]


def test_a_process_can_be_frozen_and_goes_on_where_it_stood(tmp_path: Path) -> None:
    with (
        rushdb_server(tmp_path / "rushdb.sqlite", process=True) as server,
        contextlib.closing(Asking(server)) as asking,
    ):
        asking.find()
        server.freeze()
        with contextlib.closing(Asking(server, timeout_s=0.1)) as impatient, pytest.raises(TimeoutError):
            impatient.find()
        server.thaw()
        assert asking.upsert("e1")[0] == 201


def test_the_control_endpoint_takes_the_token_and_known_orders_only(server: RunningServer, asking: Asking) -> None:
    assert asking.ask("POST", "/__control", {"do": "sulk"})[0] == 400
    asking._token = "wrong"
    assert asking.ask("POST", "/__control", {"do": "clear"})[0] == 403
    assert server.counts() == {"connections": 1}, "orders are no requests"


def test_the_test_server_uses_neither_our_adapter_nor_the_vendors_sdk() -> None:
    imported: set[str] = set()
    for path in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                # `from producer.store import sqlite` names a module, `from producer.store.port import Record` does not
                names = {f".{name.name}" if name.name.islower() else "" for name in node.names}
                imported.update(f"{node.module}{name}" for name in names)
    ours = {name for name in imported if name.split(".")[0] in ("rushdb", "producer", "memory_tasks")}
    assert ours == {"producer.errors", "producer.store.port", "producer.store.sqlite"}
