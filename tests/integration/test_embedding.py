"""The embeddings client against a real HTTP server."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from producer import embedding, errors

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, str], bytes]]


class Endpoint:
    """Answers with one vector per text, unless a test says otherwise."""

    def __init__(self) -> None:
        self.answer: Answer = self.vectors
        self.requests: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.slow_s = 0.0
        self.connections = 0

    def vectors(self, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        data = [{"index": n, "embedding": [float(len(text)), 1.0, 0.5]} for n, text in enumerate(request["input"])]
        return 200, {}, json.dumps({"data": data[::-1]}).encode()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    state = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            state.connections += 1

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append(request)
            state.tokens.append(self.headers.get("Authorization"))
            status, headers, body = state.answer(request)
            if state.slow_s:
                threading.Event().wait(state.slow_s)
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                return

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1/embeddings"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def client(endpoint: Any, **more: Any) -> embedding.Embedder:
    return embedding.Embedder(endpoint.url, **{"model": "m", "dimensions": 3, "timeout_s": 5.0, **more})


def test_one_vector_per_text_comes_back_in_their_order_over_one_kept_connection(endpoint):
    made = client(endpoint, token="secret")
    texts = [f"{'x' * (n % 7)}" + "\ud83d" * (n == 3) for n in range(150)]
    vectors = made.embed(texts)
    assert [v[0] for v in vectors] == [float(len(text)) for text in texts]
    assert [len(r["input"]) for r in endpoint.requests] == [64, 64, 22]
    assert endpoint.requests[0]["model"] == "m" and set(endpoint.tokens) == {"Bearer secret"}
    assert endpoint.connections == 1
    assert made.embed([]) == []
    made.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (408, errors.StoreUnavailable),
        (500, errors.StoreUnavailable),
        (503, errors.StoreUnavailable),
        (302, errors.StoreUnavailable),
        (429, errors.StoreThrottled),
        (400, errors.StoreRefused),
        (413, errors.StoreRefused),
        (422, errors.StoreRefused),
        (401, errors.SettingsRefused),
        (403, errors.SettingsRefused),
        (404, errors.SettingsRefused),
    ],
)
def test_each_refusal_says_whether_to_try_again(endpoint, status, error):
    endpoint.answer = lambda request: (status, {"Retry-After": "7"}, b"secret text")
    made = client(endpoint)
    with pytest.raises(error) as caught:
        made.embed(["x"])
    assert "secret text" not in str(caught.value)
    if status == 429:
        assert caught.value.retry_after_s == 7
    made.close()


@pytest.mark.parametrize(
    ("vector", "error"),
    [
        ([1.0, 2.0], errors.SettingsRefused),
        ([math.nan, 1.0, 1.0], errors.StoreRefused),
        ([math.inf, 1.0, 1.0], errors.StoreRefused),
        (["x", 1.0, 1.0], errors.StoreUnavailable),
        (None, errors.StoreUnavailable),
    ],
)
def test_a_vector_that_no_index_can_hold_is_refused(endpoint, vector, error):
    body = json.dumps({"data": [{"index": 0, "embedding": vector}]}).encode()
    endpoint.answer = lambda request: (200, {}, body)
    made = client(endpoint)
    with pytest.raises(error):
        made.embed(["x"])
    made.close()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data": []}', b'{"data": [{"index": 1, "embedding": []}]}'])
def test_an_answer_of_another_form_is_an_outage(endpoint, body):
    endpoint.answer = lambda request: (200, {}, body)
    made = client(endpoint)
    with pytest.raises(errors.StoreUnavailable):
        made.embed(["x"])
    made.close()


def test_an_endpoint_that_hangs_or_is_not_there_costs_the_timeout_at_most(endpoint):
    endpoint.slow_s = 1.0
    made = client(endpoint, timeout_s=0.2)
    started = time.monotonic()
    with pytest.raises(errors.StoreUnavailable):
        made.embed(["x"])
    assert time.monotonic() - started < 0.9
    made.close()
    gone = embedding.Embedder("http://127.0.0.1:9/v1", model="m", dimensions=3, timeout_s=0.5)
    with pytest.raises(errors.StoreUnavailable):
        gone.embed(["x"])
    gone.close()


def test_without_an_endpoint_there_is_no_embedder_and_a_model_needs_its_length():
    assert embedding.open_embedder(url="", model="", dimensions=0) is None
    with pytest.raises(errors.SettingsRefused):
        embedding.open_embedder(url="http://127.0.0.1:9", model="m", dimensions=0)


def test_a_text_that_the_model_can_place_nowhere_gets_zeros_that_callers_leave_out(endpoint):
    body = json.dumps({"data": [{"index": 0, "embedding": [0.0, 0.0, 0.0]}]}).encode()
    endpoint.answer = lambda request: (200, {}, body)
    made = client(endpoint)
    assert made.embed(["..."]) == [[0.0, 0.0, 0.0]]
    made.close()
