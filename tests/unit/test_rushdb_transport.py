"""The transport under the SDK, against small servers on a socket that do what real ones do when they are ill."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from producer import errors
from producer.store.transport import Deadline, Transport, unknown_record

SECRET = "key-that-nobody-may-see"
PRIVATE = "my secret diary"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Behaviour = Callable[[socket.socket, threading.Event, Request], bool]  # whether the connection stays open


class Stub:
    """A server that answers its nth request with its nth behaviour, and from then on with the last one."""

    def __init__(self, *behaviours: Behaviour, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self._behaviours = list(behaviours)
        self._tls = tls
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            connection.settimeout(0.05)
            with connection:
                while request := self._read(connection):
                    with self._lock:
                        self.requests.append(request)
                        behave = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
                    if not behave(connection, self._closing, request):
                        return
        except OSError:
            connection.close()

    def _read(self, connection: socket.socket) -> Request | None:
        raw = b""
        while True:
            head, separator, body = raw.partition(b"\r\n\r\n")
            if separator:
                lines = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
                if len(body) >= int(headers.get("content-length", "0")):
                    method, path, _ = lines[0].split(" ")
                    return Request(method, path, headers, body)
            try:
                more = connection.recv(65536)
            except TimeoutError:
                if self._closing.is_set():
                    return None
                continue
            if not more:
                return None
            raw += more


def answer(status: int = 200, body: Any = None, *, keep: bool = True, **headers: str) -> Behaviour:
    """A whole answer; `body` is JSON unless it is bytes."""
    content = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
    lines = [f"HTTP/1.1 {status} Because", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    def behave(connection: socket.socket, closing: threading.Event, request: Request) -> bool:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        return keep

    return behave


def raw(content: bytes) -> Behaviour:
    """These bytes, and the connection closes."""

    def behave(connection: socket.socket, closing: threading.Event, request: Request) -> bool:
        connection.sendall(content)
        return False

    return behave


def silence(connection: socket.socket, closing: threading.Event, request: Request) -> bool:
    closing.wait()
    return False


def reset(connection: socket.socket, closing: threading.Event, request: Request) -> bool:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def drip(head: bytes, drop: bytes) -> Behaviour:
    """`head`, then `drop` again and again, faster than any timeout of a single read."""

    def behave(connection: socket.socket, closing: threading.Event, request: Request) -> bool:
        connection.sendall(head)
        while not closing.wait(0.02):
            connection.sendall(drop)
        return False

    return behave


@contextmanager
def stub_of(*behaviours: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    stub = Stub(*behaviours, tls=tls)
    try:
        yield stub
    finally:
        stub.close()


@contextmanager
def served(*behaviours: Behaviour, **options: Any) -> Iterator[tuple[Stub, Transport]]:
    stub = Stub(*behaviours)
    transport = Transport(f"http://127.0.0.1:{stub.port}/api/v1", token=SECRET, **options)
    try:
        yield stub, transport
    finally:
        transport.close()
        stub.close()


def write(transport: Transport, *, seconds: float = 5.0, writes: bool = True) -> dict[str, Any]:
    body = {"label": "EPISODE", "data": [{"userText": PRIVATE}]}
    what = "POST /records/import/json"
    return transport.call("POST", "/records/import/json", body, what=what, writes=writes, deadline=Deadline(seconds))


def failure(*behaviours: Behaviour, seconds: float = 5.0, writes: bool = True, **options: Any) -> errors.IngestError:
    with served(*behaviours, **options) as (_, transport), pytest.raises(errors.IngestError) as caught:
        write(transport, seconds=seconds, writes=writes)
    text = str(caught.value)
    assert SECRET not in text and PRIVATE not in text and "quoted by the server" not in text
    return caught.value


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_a_request_carries_the_key_and_the_json_body_and_its_answer_comes_back() -> None:
    with served(answer(201, {"data": [], "success": True})) as (stub, transport):
        assert write(transport) == {"data": [], "success": True}
    (request,) = stub.requests
    assert (request.method, request.path) == ("POST", "/api/v1/records/import/json")
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body) == {"label": "EPISODE", "data": [{"userText": PRIVATE}]}


def test_a_lone_surrogate_in_a_body_is_sent_as_an_escape() -> None:
    with served(answer()) as (stub, transport):
        transport.call("POST", "/x", {"a": "\ud800"}, what="x", writes=True, deadline=Deadline(5))
    assert stub.requests[0].body == b'{"a":"\\ud800"}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_a_value_that_json_does_not_have_is_refused_before_anything_is_sent(value: object) -> None:
    with served(answer()) as (stub, transport), pytest.raises(errors.StoreRefused):
        transport.call("POST", "/x", {"a": value}, what="x", writes=True, deadline=Deadline(5))
    assert stub.requests == []


@pytest.mark.parametrize("token", ["", "a\nb", "a\r", "schl\u00fcssel", " a", "a "])
def test_a_key_that_no_header_can_carry_is_refused_at_once(token: str) -> None:
    with pytest.raises(errors.SettingsRefused) as caught:
        Transport("http://127.0.0.1:1", token=token)
    assert not token.strip() or token not in str(caught.value)


def test_the_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_of(answer(502, b"proxy")) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        with served(answer(200, {"ok": 1})) as (_, transport):
            assert write(transport) == {"ok": 1}
    assert proxy.connections == 0


# -- connections -------------------------------------------------------------------------------------------------------


def test_calls_in_a_row_share_one_connection() -> None:
    with served(answer()) as (stub, transport):
        for _ in range(5):
            write(transport)
    assert (len(stub.requests), stub.connections) == (5, 1)


def test_an_error_answer_leaves_the_connection_usable() -> None:
    with served(answer(500, {}), answer(404, {"message": "Not Found"}), answer(200, {"ok": 1})) as (stub, transport):
        for _ in range(2):
            with pytest.raises(errors.IngestError):
                write(transport)
        assert write(transport) == {"ok": 1}
    assert stub.connections == 1


def test_half_an_answer_is_never_taken_for_the_next_one() -> None:
    half = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    with served(half, answer(200, {"ok": 1})) as (stub, transport):
        with pytest.raises(errors.StoreUnavailable):
            write(transport)
        assert write(transport) == {"ok": 1}
    assert stub.connections == 2


def test_a_late_answer_is_never_taken_for_that_of_the_next_call() -> None:
    def late(connection: socket.socket, closing: threading.Event, request: Request) -> bool:
        closing.wait(0.3)
        return answer(200, {"late": 1})(connection, closing, request)

    with served(late, answer(200, {"ok": 1})) as (_, transport):
        with pytest.raises(errors.StoreUnavailable):
            write(transport, seconds=0.1)
        assert write(transport) == {"ok": 1}


def test_a_connection_is_not_used_beyond_the_time_its_server_keeps_it() -> None:
    with served(answer(Keep_Alive="timeout=1"), answer(Keep_Alive="timeout=60")) as (stub, transport):
        for _ in range(3):  # a second less than 1 s is none at all; 60 s are plenty
            write(transport)
    assert stub.connections == 2


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    with served(answer(keep=False), answer(200, {"ok": 1})) as (stub, transport):
        write(transport)
        deadline = time.monotonic() + 5
        while any(thread.is_alive() for thread in stub._threads[1:]) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert write(transport) == {"ok": 1}
    assert stub.connections == 2


def test_no_more_connections_are_opened_than_the_pool_holds_and_a_call_waits_for_one_within_its_deadline() -> None:
    failed: list[errors.StoreUnavailable] = []

    def failure_of(transport: Transport) -> errors.StoreUnavailable:
        with pytest.raises(errors.StoreUnavailable) as caught:
            write(transport, seconds=1.0)
        return caught.value

    with served(silence, pool=1) as (stub, transport):
        first = threading.Thread(target=lambda: failed.append(failure_of(transport)))
        first.start()
        deadline = time.monotonic() + 5
        while not stub.requests and time.monotonic() < deadline:
            time.sleep(0.005)
        with pytest.raises(errors.StoreUnavailable) as caught:
            write(transport, seconds=0.2)
        first.join()
    assert caught.value.outcome_unknown is False  # it never left
    assert failed[0].outcome_unknown is True
    assert stub.connections == 1


def test_many_threads_share_the_pool_and_each_gets_its_own_answer() -> None:
    def echo(connection: socket.socket, closing: threading.Event, request: Request) -> bool:
        return answer(200, request.body)(connection, closing, request)

    wrong: list[Any] = []

    def calls(number: int) -> None:
        for turn in range(20):
            body = {"n": number, "turn": turn}
            got = transport.call("POST", "/x", body, what="x", writes=False, deadline=Deadline(10))
            if got != body:
                wrong.append((body, got))

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
    with served(echo, pool=4) as (stub, transport):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(stub.requests) == 160
    assert stub.connections <= 4


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # 3.12: threads and fork; the point of this test
def test_a_forked_child_opens_its_own_connection() -> None:
    with served(answer(200, {"ok": 1})) as (stub, transport):
        write(transport)
        child = os.fork()
        if child == 0:
            os._exit(0 if write(transport) == {"ok": 1} else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert write(transport) == {"ok": 1}
    assert stub.connections == 2


def test_a_closed_store_answers_nothing_more() -> None:
    with served(answer()) as (stub, transport):
        transport.close()
        with pytest.raises(errors.StoreUnavailable) as caught:
            write(transport)
    assert caught.value.outcome_unknown is False
    assert stub.requests == []


# -- deadlines ---------------------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(silence, id="silent"),
        pytest.param(drip(HEAD, b"x"), id="endless header line"),
        pytest.param(drip(HEAD, b"x: y\r\n"), id="endless headers"),
        pytest.param(drip(HEAD + b"Content-Length: 100000\r\n\r\n", b" "), id="endless body"),
        pytest.param(drip(HEAD + b"\r\n", b" "), id="endless body without length"),
        pytest.param(drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"), id="endless chunks"),
    ],
)
def test_a_call_ends_by_its_deadline_whatever_the_server_does(behaviour: Behaviour) -> None:
    began = time.monotonic()
    error = failure(behaviour, seconds=0.4)
    assert 0.3 < time.monotonic() - began < 1.5
    assert isinstance(error, errors.StoreUnavailable)
    assert error.outcome_unknown is True


def test_a_server_that_does_not_read_cannot_hold_a_large_request_beyond_the_deadline() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    transport = Transport(f"http://127.0.0.1:{listener.getsockname()[1]}", token=SECRET)
    began = time.monotonic()
    with listener, pytest.raises(errors.StoreUnavailable) as caught:
        big = {"a": "x" * (32 << 20)}  # takes a while to encode
        transport.call(
            "POST", "/x", big, what="x", writes=True, deadline=Deadline(3.0)
        )  # 32 MiB take a while to encode
    transport.close()
    assert time.monotonic() - began < 10
    assert caught.value.outcome_unknown is True


def test_a_server_that_accepts_nothing_is_given_up_by_the_deadline_and_nothing_was_sent() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    for _ in range(4):  # fill the backlog, so that the next connection gets no answer
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(listener.getsockname())
    transport = Transport(f"http://127.0.0.1:{listener.getsockname()[1]}", token=SECRET)
    began = time.monotonic()
    with pytest.raises(errors.StoreUnavailable) as caught:
        write(transport, seconds=0.4)
    assert time.monotonic() - began < 1.5
    assert caught.value.outcome_unknown is False
    transport.close()
    for one in [listener, *waiting]:
        one.close()


def test_a_deadline_that_has_passed_sends_nothing() -> None:
    with served(answer()) as (stub, transport), pytest.raises(errors.StoreUnavailable) as caught:
        write(transport, seconds=0.0)
    assert caught.value.outcome_unknown is False
    assert stub.requests == []


# -- no whole answer ---------------------------------------------------------------------------------------------------


def test_a_refused_connection_wrote_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    transport = Transport(f"http://127.0.0.1:{port}", token=SECRET)
    with pytest.raises(errors.StoreUnavailable) as caught:
        write(transport)
    transport.close()
    assert caught.value.outcome_unknown is False


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid", "bad..name"])
def test_an_unknown_host_wrote_nothing(host: str) -> None:
    transport = Transport(f"http://{host}", token=SECRET)
    with pytest.raises(errors.StoreUnavailable) as caught:
        write(transport)
    transport.close()
    assert caught.value.outcome_unknown is False


BROKEN = {
    "closed before an answer": raw(b""),
    "reset": reset,
    "half a status line": raw(b"HTTP/1.1 20"),
    "no HTTP": raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "half the headers": raw(HEAD + b"Content-Length: 10\r\n"),
    "half the body": raw(HEAD + b'Content-Length: 100\r\n\r\n{"data":'),
    "half the chunks": raw(HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a":'),
    "a broken chunk": raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}"),
    "too many headers": raw(HEAD + b"a: b\r\n" * 300 + b"\r\n{}"),
    "a header line too long": raw(HEAD + b"a: " + b"b" * 70000 + b"\r\n\r\n{}"),
}
NOT_AN_ANSWER = {
    "empty body": answer(200, b""),
    "null": answer(200, b"null"),
    "a list": answer(200, b"[]"),
    "a string": answer(200, b'"ok"'),
    "HTML": answer(200, b"<html>quoted by the server</html>"),
    "not UTF-8": answer(200, b'{"a": "\xff"}'),
    "half a JSON text": answer(200, b'{"data": [{"a": 1'),
    "NaN": answer(200, b'{"data": NaN}'),
    "too deep": answer(200, b'{"a":' * 100_000),
    "told as failed": answer(200, {"success": False, "message": "quoted by the server"}),
}


@pytest.mark.parametrize("behaviour", [pytest.param(one, id=name) for name, one in (BROKEN | NOT_AN_ANSWER).items()])
@pytest.mark.parametrize("writes", [True, False])
def test_anything_but_a_whole_json_object_leaves_the_outcome_of_a_write_unknown(
    behaviour: Behaviour, writes: bool
) -> None:
    error = failure(behaviour, writes=writes)
    assert isinstance(error, errors.StoreUnavailable)
    assert error.outcome_unknown is writes


@pytest.mark.parametrize(
    "behaviour", [reset, raw(b""), answer(500, {}), answer(429, {}), answer(503, {}, Retry_After="0")]
)
def test_there_is_one_try_per_call(behaviour: Behaviour) -> None:
    with served(behaviour) as (stub, transport):
        for method in ("GET", "POST", "DELETE"):
            with pytest.raises(errors.Retryable):
                transport.call(method, "/x", what="x", writes=True, deadline=Deadline(5))
    assert [request.method for request in stub.requests] == ["GET", "POST", "DELETE"]


def test_an_answer_beyond_the_bound_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producer.store.transport.MAX_BODY_BYTES", 1000)
    for behaviour in (answer(200, {"a": "x" * 1000}), raw(HEAD + b"\r\n" + b" " * 2000)):
        assert isinstance(failure(behaviour), errors.StoreUnavailable)
    with served(answer(200, {"a": "x" * 900})) as (_, transport):
        assert write(transport) == {"a": "x" * 900}


def test_an_answer_in_chunks_or_ended_by_closing_is_whole() -> None:
    chunked = raw(HEAD + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n')
    for behaviour in (chunked, raw(HEAD + b'Connection: close\r\n\r\n{"a":1}')):
        with served(behaviour) as (_, transport):
            assert write(transport) == {"a": 1}


# -- how a status is read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(status: int) -> None:
    with stub_of(answer(200, {"ok": 1})) as elsewhere:
        error = failure(answer(status, b"", Location=f"http://127.0.0.1:{elsewhere.port}/api/v1/records"))
    assert elsewhere.connections == 0
    assert isinstance(error, errors.StoreUnavailable)
    assert error.status == status


@pytest.mark.parametrize("status", [408, 425, 500, 502, 503, 504, 599])
@pytest.mark.parametrize("body", [{}, b"<html>Bad Gateway</html>", {"message": "quoted by the server"}])
def test_a_server_error_or_a_spent_time_budget_leaves_a_write_unknown(status: int, body: Any) -> None:
    error = failure(answer(status, body))
    assert isinstance(error, errors.StoreUnavailable)
    assert (error.outcome_unknown, error.status) == (True, status)
    assert failure(answer(status, body), writes=False).outcome_unknown is False  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [400, 404, 405, 409, 413, 422, 431])
def test_any_other_refusal_is_permanent(status: int) -> None:
    error = failure(answer(status, {"message": "Value quoted by the server", "statusCode": status}))
    assert isinstance(error, errors.StoreRefused)
    assert error.status == status


def test_a_deadlock_of_an_import_may_be_tried_again_and_wrote_nothing() -> None:
    error = failure(answer(400, {"message": "Import failed: ForsetiClient quoted by the server", "statusCode": 400}))
    assert isinstance(error, errors.StoreUnavailable)
    assert (error.outcome_unknown, error.status) == (False, 400)


def test_an_embedding_provider_that_is_down_may_be_tried_again() -> None:
    error = failure(answer(422, {"message": "Embedding provider error: quoted by the server", "statusCode": 422}))
    assert isinstance(error, errors.StoreUnavailable)


@pytest.mark.parametrize("status", [404, 405])
def test_a_not_found_that_is_not_rushdbs_may_be_tried_again(status: int) -> None:
    """An ingress answers so while its backend is away; events must not be given up for it."""
    error = failure(answer(status, b"404 page not found"))
    assert isinstance(error, errors.StoreUnavailable)
    assert error.outcome_unknown is False


def test_a_too_large_batch_is_refused_also_by_a_proxy() -> None:
    assert isinstance(failure(answer(413, b"<html>")), errors.StoreRefused)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "quoted by the server", "code": "CONFLICT"}}, errors.StoreUnavailable),
        ({"message": "quoted by the server", "error": "Conflict", "statusCode": 409}, errors.StoreRefused),
    ],
)
def test_a_conflict_of_the_engine_may_be_tried_again_one_of_the_platform_not(body: Any, kind: type) -> None:
    error = failure(answer(409, body))
    assert type(error) is kind


def test_an_engine_error_that_says_it_is_retryable_is() -> None:
    error = failure(answer(422, {"error": {"message": "quoted by the server", "retryable": True}}))
    assert isinstance(error, errors.StoreUnavailable)


# -- pauses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [
        ("7", 7),
        ("0", 1),
        ("99999999999999999999999999", 3600),
        ("-5", 1),
        ("soon", 1),
        ("1e400", 1),
        ("", 1),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 1),
        ("Fri, 99 Foo 99999 99:99:99 GMT", 1),
    ],
)
def test_retry_after_is_honoured_within_an_hour(header: str, pause_s: float) -> None:
    error = failure(answer(429, {"message": "slow down"}, Retry_After=header))
    assert isinstance(error, errors.StoreThrottled)
    assert error.retry_after_s == pause_s


def test_a_retry_date_is_read_against_the_servers_own_clock() -> None:
    behind = time.time() - 86_400
    headers = {"Date": formatdate(behind, usegmt=True), "Retry_After": formatdate(behind + 30, usegmt=True)}
    assert failure(answer(429, {}, **headers)).retry_after_s == 30  # type: ignore[attr-defined]


def test_a_throttle_without_retry_after_pauses_a_second() -> None:
    assert failure(answer(429, {})).retry_after_s == 1  # type: ignore[attr-defined]


def test_an_overloaded_server_may_say_when_to_come_back() -> None:
    assert failure(answer(503, {}, Retry_After="20")).retry_after_s == 20  # type: ignore[attr-defined]


def test_a_used_up_quota_pauses_long() -> None:
    error = failure(answer(402, {"message": "quota", "success": False}))
    assert isinstance(error, errors.StoreThrottled)
    assert error.retry_after_s == 300


# -- keys --------------------------------------------------------------------------------------------------------------

FORBIDDEN = answer(403, {"message": "Forbidden resource", "error": "Forbidden", "statusCode": 403})
UNKNOWN = answer(404, {"message": "Not Found", "statusCode": 404})


@pytest.mark.parametrize(
    "behaviour",
    [
        answer(401, {"message": "Unauthorized"}),
        answer(403, {"message": "This API key is read-only and cannot access this endpoint", "statusCode": 403}),
        FORBIDDEN,
        answer(403, b"<html>Forbidden</html>"),
    ],
)
def test_a_key_that_never_worked_or_may_not_do_this_is_denied(behaviour: Behaviour) -> None:
    assert isinstance(failure(behaviour), errors.StoreDenied)
    assert isinstance(failure(behaviour, key_probe=unknown_record), errors.StoreDenied)


def test_forbidden_for_a_key_that_worked_before_is_a_rate_limit() -> None:
    with served(answer(), FORBIDDEN) as (_, transport):
        write(transport)
        with pytest.raises(errors.StoreThrottled) as caught:
            write(transport)
    assert caught.value.retry_after_s == 1


def test_forbidden_for_the_first_call_of_a_good_key_is_a_rate_limit_as_an_uncounted_path_shows() -> None:
    with served(FORBIDDEN, UNKNOWN) as (stub, transport):
        transport._key_probe = unknown_record
        with pytest.raises(errors.StoreThrottled):
            write(transport)
    assert (stub.requests[1].method, stub.requests[1].path[:16]) == ("GET", "/api/v1/records/")


def test_nothing_but_forbidden_for_a_minute_is_a_key_that_was_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producer.store.transport.DENIED_AFTER_S", 0.05)
    with served(answer(), FORBIDDEN) as (_, transport):
        write(transport)
        with pytest.raises(errors.StoreThrottled):
            write(transport)
        until = time.monotonic() + 0.06
        while time.monotonic() < until:
            time.sleep(0.01)
        with pytest.raises(errors.StoreDenied):
            write(transport)


def test_an_answer_that_every_key_gets_proves_nothing() -> None:
    with served(answer(), FORBIDDEN) as (_, transport):
        transport.call("GET", "/sdk/settings", what="x", writes=False, deadline=Deadline(5), proves_key=False)
        with pytest.raises(errors.StoreDenied):
            write(transport)


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("tls")
    key, cert = base / "key.pem", base / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(
        ["openssl", "req", *kind, *subject, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return key, cert


def tls_stub(certificate: tuple[Path, Path], behaviour: Behaviour) -> Stub:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    return Stub(behaviour, tls=context)


def test_a_trusted_server_is_spoken_to_over_tls(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    stub = tls_stub(certificate, answer(200, {"ok": 1}))
    transport = Transport(f"https://localhost:{stub.port}/api/v1", token=SECRET)
    try:
        assert write(transport) == {"ok": 1}
        assert write(transport) == {"ok": 1}
    finally:
        transport.close()
        stub.close()
    assert stub.requests[0].headers["authorization"] == f"Bearer {SECRET}"


def test_a_call_over_tls_ends_by_its_deadline_too(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    stub = tls_stub(certificate, drip(HEAD, b"x: y\r\n"))
    transport = Transport(f"https://localhost:{stub.port}", token=SECRET)
    began = time.monotonic()
    with pytest.raises(errors.StoreUnavailable) as caught:
        write(transport, seconds=0.5)
    assert time.monotonic() - began < 1.5
    assert caught.value.outcome_unknown is True
    transport.close()
    stub.close()


def test_a_server_that_nobody_vouches_for_never_sees_the_key(certificate: tuple[Path, Path]) -> None:
    stub = tls_stub(certificate, answer(200, {"ok": 1}))
    transport = Transport(f"https://localhost:{stub.port}", token=SECRET)
    with pytest.raises(errors.StoreUnavailable) as caught:
        write(transport)
    transport.close()
    stub.close()
    assert caught.value.outcome_unknown is False
    assert stub.requests == []


def test_a_plain_server_on_a_tls_address_never_sees_the_key() -> None:
    stub = Stub(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    transport = Transport(f"https://127.0.0.1:{stub.port}", token=SECRET)
    with pytest.raises(errors.StoreUnavailable) as caught:
        write(transport, seconds=1.0)
    transport.close()
    stub.close()
    assert caught.value.outcome_unknown is False
