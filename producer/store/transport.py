"""JSON over HTTP to one server: a request in, a whole JSON object out, or one of our errors. Nothing else gets through.

What is promised, each with tests named after it:

- Every call ends by its `Deadline`, also against a server that sends one byte a second: the deadline is armed anew
  before each read and write of the socket. (Looking up a host name is the system resolver's and not bounded by it.)
- One try per call. No retry, no redirect is followed, no proxy is used, no other host ever sees the token.
- Connections stay open and are shared by threads, at most `pool` at once; a call waits for a free one within its
  deadline. One that has been idle longer than its server keeps it is not used again. A forked child makes its own.
- An answer counts when it is whole: complete body, UTF-8, one JSON object, no `"success": false`.
- Errors are translated here, once. Their messages hold the route, the status and what to do; never a word of the
  request or the answer.

How a status is read:

    2xx                     the answer; with anything but a whole JSON object: StoreUnavailable (unknown)
    3xx                     StoreUnavailable (unknown): the address is wrong, or something stands in between
    400 "Import failed"     StoreUnavailable: RushDB 2.11 says so for a deadlock; nothing was written
    401, 403 "read-only"    StoreDenied
    403 otherwise           RushDB 2.11's words for a bad key *and* for its rate limit. If the key worked before:
                            StoreThrottled. Else, or after a minute of nothing but 403: one look at a path that no
                            limit can have counted yet (`key_probe`) tells which
    402                     StoreThrottled with a long pause (quota)
    404, 405 without JSON   StoreUnavailable: not RushDB's answer (a proxy whose backend is away)
    408, 425, 5xx           StoreUnavailable (unknown)
    409 of the engine       StoreUnavailable: a conflict; nothing was written
    422 "Embedding prov…"   StoreUnavailable
    429                     StoreThrottled with Retry-After
    other 4xx               StoreRefused

(unknown): `outcome_unknown` is True if the call may change something. The same holds when no whole answer came, once
the first byte of the request was handed to the kernel; before that nothing can have been written.
"""

from __future__ import annotations

import contextvars
import http.client
import json
import os
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email import utils as email_utils
from typing import Any

import urllib3
from urllib3 import connection as urllib3_connection
from urllib3 import exceptions as urllib3_errors
from urllib3.util import parse_url

from producer import errors

__all__ = ["Deadline", "Transport", "unknown_record"]

CONNECT_S = 5.0  # of a call's time, what opening a connection may take
IDLE_S = 30.0  # how long an unused connection is trusted when its server did not say
MAX_BODY_BYTES = 256 << 20  # a find of 1,000 records of the largest turns is about 100 MiB
MAX_PAUSE_S = 3600.0
QUOTA_PAUSE_S = 300.0
THROTTLE_PAUSE_S = 1.0  # RushDB 2.11's window
DENIED_AFTER_S = 60.0  # nothing but 403 for so long is not a rate limit any more


class Deadline:
    """A point on the monotonic clock by which a call has ended."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then. Raises `TimeoutError` when it has passed."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


@dataclass(slots=True)
class _Exchange:
    """The call that this thread is making; sockets read their deadline from it and note that bytes went out."""

    deadline: Deadline
    sent: bool = False


_exchange: contextvars.ContextVar[_Exchange] = contextvars.ContextVar("exchange")


class _Bounded:
    """Socket mixin: each operation gets what is left of the call's deadline.

    A timeout of the socket alone bounds each read, not their sum: headers that come byte by byte would never end.
    """

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(_exchange.get().deadline.left())  # type: ignore[attr-defined]
        return super().recv_into(*args, **kwargs)  # type: ignore[misc]

    def send(self, *args: Any, **kwargs: Any) -> int:
        self._about_to_send()
        return super().send(*args, **kwargs)  # type: ignore[misc]

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self._about_to_send()
        super().sendall(*args, **kwargs)  # type: ignore[misc]

    def _about_to_send(self) -> None:
        exchange = _exchange.get()
        self.settimeout(exchange.deadline.left())  # type: ignore[attr-defined]
        exchange.sent = True


class _PlainSocket(_Bounded, socket.socket):
    pass


class _TlsSocket(_Bounded, ssl.SSLSocket):
    pass


class _Connect:
    """Connection mixin: opens bounded sockets within the deadline, and knows when the server stops keeping one open."""

    _reuse_until = 0.0
    sock: socket.socket | None

    def _new_conn(self) -> socket.socket:
        patience = Deadline(min(CONNECT_S, _exchange.get().deadline.left()))
        host, port = self._dns_host, self.port  # type: ignore[attr-defined]
        failure: OSError | None = None
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError("not a host name") from error
        for family, kind, protocol, _, address in addresses:
            sock = _PlainSocket(family, kind, protocol)
            try:
                sock.settimeout(patience.left())
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect(address)
                sock.settimeout(patience.left())  # for the TLS handshake
                return sock
            except OSError as error:
                sock.close()
                failure = error
        raise failure or OSError("no address")

    def getresponse(self) -> Any:
        response = super().getresponse()  # type: ignore[misc]
        self._reuse_until = time.monotonic() + _kept_open_s(response.headers.get("Keep-Alive", ""))
        return response

    @property
    def is_connected(self) -> bool:
        return super().is_connected and time.monotonic() < self._reuse_until  # type: ignore[misc]


class _Connection(_Connect, urllib3_connection.HTTPConnection):
    pass


class _TlsConnection(_Connect, urllib3_connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: Any  # parsed JSON; None when it is not JSON


class Transport:
    """Connections to the server at `base_url`. Safe to share between threads; `close` when done.

    `key_probe` gives a fresh path whose answer to GET is 403 for a bad key and anything else for a good one.
    """

    def __init__(
        self, base_url: str, *, token: str, pool: int = 16, key_probe: Callable[[], str] | None = None
    ) -> None:
        """`base_url` is `http(s)://host[:port][/path]`. `errors.SettingsRefused`: a token that no header can carry."""
        url = parse_url(base_url)
        if not token or not token.isascii() or not token.isprintable() or token != token.strip():
            raise errors.SettingsRefused(
                "MEMORY_STORE_TOKEN", "must be set to the RushDB API key or engine token, in printable ASCII characters"
            )
        self._tls = url.scheme == "https"
        self._host, self._port, self._path = url.host or "", url.port, (url.path or "").rstrip("/")
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "memory-tasks",
        }
        self._size = pool
        self._pools: dict[int, urllib3.HTTPConnectionPool] = {}  # by process: a forked child shares no connection
        self._closed = False
        self._key_probe = key_probe
        self._key_worked = False
        self._forbidden_since: float | None = None

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        what: str,
        writes: bool,
        deadline: Deadline,
        proves_key: bool = True,
    ) -> dict[str, Any]:
        """The JSON object that the server answered. `what` names the route in messages; it must hold no value.

        `proves_key`: a good answer shows that the key is good (RushDB 2.11 answers some routes whatever the key).
        """
        answer = self._send(method, path, body, what=what, writes=writes, deadline=deadline)
        if not 200 <= answer.status < 300:
            raise self._refusal(answer, what=what, writes=writes, deadline=deadline)
        if not isinstance(answer.body, dict) or answer.body.get("success") is False:
            raise errors.StoreUnavailable(
                f"{what}: the answer is not a whole JSON object", outcome_unknown=writes, status=answer.status
            )
        if proves_key:
            self._key_worked, self._forbidden_since = True, None
        return answer.body

    def check_open(self) -> None:
        if self._closed:
            raise errors.StoreUnavailable("the store is closed")

    def close(self) -> None:
        """Close the connections. Calls that run are not interrupted; further ones raise `StoreUnavailable`."""
        self._closed = True
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    def _send(self, method: str, path: str, body: Any, *, what: str, writes: bool, deadline: Deadline) -> _Answer:
        self.check_open()
        try:
            content = None if body is None else json.dumps(body, allow_nan=False, separators=(",", ":")).encode("ascii")
        except (TypeError, ValueError, RecursionError):
            raise errors.StoreRefused(f"{what}: the request holds a value that JSON does not have") from None
        exchange = _Exchange(deadline)
        token = _exchange.set(exchange)
        try:
            return self._exchanged(method, path, content, deadline)
        except (urllib3_errors.HTTPError, http.client.HTTPException, OSError, ValueError, RecursionError) as error:
            unknown = writes and exchange.sent
            if _timed_out(error):
                text = f"{what}: no whole answer within {deadline.seconds:g} s"
            elif exchange.sent:
                text = f"{what}: the connection broke before a whole answer came"
            else:
                text = f"{what}: the server could not be reached"
            raise errors.StoreUnavailable(text, outcome_unknown=unknown) from error
        finally:
            _exchange.reset(token)

    def _exchanged(self, method: str, path: str, content: bytes | None, deadline: Deadline) -> _Answer:
        response = self._pool().urlopen(
            method,
            self._path + path,
            body=content,
            headers=self._headers,
            retries=False,
            redirect=False,
            timeout=urllib3.Timeout(connect=min(CONNECT_S, deadline.left()), read=deadline.left()),
            pool_timeout=deadline.left(),  # type: ignore[arg-type]  # annotated too narrowly: it goes to Queue.get
            preload_content=False,
            decode_content=False,
        )
        try:
            raw = response.read(MAX_BODY_BYTES + 1, decode_content=False)
            if len(raw) > MAX_BODY_BYTES:
                raise ValueError("body too large")
        except BaseException:
            response.close()  # the rest of the answer must not be taken for the next one
            raise
        finally:
            response.release_conn()
        return _Answer(status=response.status, headers=response.headers, body=_parsed(raw))

    def _pool(self) -> urllib3.HTTPConnectionPool:
        pool = self._pools.get(os.getpid())
        return pool if pool is not None else self._pools.setdefault(os.getpid(), self._new_pool())

    def _new_pool(self) -> urllib3.HTTPConnectionPool:
        if not self._tls:
            return _Pool(self._host, self._port, maxsize=self._size, block=True)
        context = ssl.create_default_context()
        context.sslsocket_class = _TlsSocket
        return _TlsPool(self._host, self._port, maxsize=self._size, block=True, ssl_context=context)

    def _refusal(self, answer: _Answer, *, what: str, writes: bool, deadline: Deadline) -> errors.IngestError:
        status = answer.status
        said = _message(answer.body)
        text = f"{what}: status {status}"
        match status:
            case 401:
                return errors.StoreDenied(f"{text}; set MEMORY_STORE_TOKEN to a valid key")
            case 403:
                if "read-only" in said:
                    return errors.StoreDenied(
                        f"{text}; the key is read-only: set MEMORY_STORE_TOKEN to one that may write"
                    )
                return self._forbidden(text, deadline)
            case 402:
                return errors.StoreThrottled(
                    f"{text}; the project's quota is used up", retry_after_s=QUOTA_PAUSE_S, status=status
                )
            case 429:
                return errors.StoreThrottled(
                    text, retry_after_s=_pause_s(answer.headers) or THROTTLE_PAUSE_S, status=status
                )
            case 408 | 425:
                return errors.StoreUnavailable(text, outcome_unknown=writes, status=status)
        if 300 <= status < 400:
            return errors.StoreUnavailable(
                f"{text}; redirects are not followed: set MEMORY_STORE_URL to the final address",
                outcome_unknown=writes,
                status=status,
            )
        if not 400 <= status < 500:
            failed = errors.StoreUnavailable(text, outcome_unknown=writes, status=status)
            failed.retry_after_s = _pause_s(answer.headers)
            return failed
        if status in (404, 405) and not isinstance(answer.body, dict):
            return errors.StoreUnavailable(
                f"{text} without a JSON body: not RushDB's answer; check MEMORY_STORE_URL", status=status
            )
        engine_error = answer.body.get("error") if isinstance(answer.body, dict) else None
        conflict = isinstance(engine_error, dict) and (status == 409 or engine_error.get("retryable") is True)
        if conflict or said.startswith(("Import failed:", "Embedding provider error:")):
            return errors.StoreUnavailable(text, status=status)
        return errors.StoreRefused(text, status=status)

    def _forbidden(self, text: str, deadline: Deadline) -> errors.IngestError:
        now = time.monotonic()
        self._forbidden_since = self._forbidden_since or now
        throttled = self._key_worked and now - self._forbidden_since < DENIED_AFTER_S
        if not throttled and self._key_probe is not None:
            probe = self._send(
                "GET", self._key_probe(), None, what="GET of an unknown record", writes=False, deadline=deadline
            )
            throttled = probe.status == 404
            if throttled:
                self._key_worked, self._forbidden_since = True, None
        if throttled:
            return errors.StoreThrottled(text, retry_after_s=THROTTLE_PAUSE_S, status=403)
        return errors.StoreDenied(f"{text}; set MEMORY_STORE_TOKEN to a valid key")


def unknown_record() -> str:
    """The path of a record that nobody has: never asked for before, so no rate limit per path can have counted it."""
    return f"/records/{uuid.uuid4()}"


def _timed_out(error: Exception) -> bool:
    """urllib3 wraps a `TimeoutError` of the socket in different ways, by where it came up."""
    kinds = (TimeoutError, urllib3_errors.TimeoutError, urllib3_errors.EmptyPoolError)
    return isinstance(error, kinds) or any(isinstance(part, TimeoutError) for part in error.args)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_not_json)
    except (ValueError, RecursionError):
        return None


def _not_json(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _message(body: Any) -> str:
    """What the server said, to tell cases apart; it may quote values, so it is never passed on."""
    if not isinstance(body, dict):
        return ""
    engine_error = body.get("error")
    said = engine_error.get("message") if isinstance(engine_error, dict) else body.get("message")
    return said if isinstance(said, str) else ""


def _kept_open_s(keep_alive: str) -> float:
    """How long the server keeps an idle connection, by its `Keep-Alive: timeout=5`; a second less for the way there."""
    for part in keep_alive.split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "timeout" and value.isdecimal() and len(value) < 10:
            return min(IDLE_S, max(0.0, int(value) - 1.0))
    return IDLE_S


def _pause_s(headers: Mapping[str, str]) -> float:
    """`Retry-After` in seconds, 0 (none, or nonsense) to `MAX_PAUSE_S`. A date is read against the server's clock."""
    given = headers.get("Retry-After", "").strip()
    if given.isdecimal():
        return min(MAX_PAUSE_S, float(given[:10]))
    try:
        until = email_utils.parsedate_to_datetime(given)
        now = email_utils.parsedate_to_datetime(headers["Date"]).timestamp() if "Date" in headers else time.time()
        return min(MAX_PAUSE_S, max(0.0, until.timestamp() - now))
    except (ValueError, OverflowError, TypeError):
        return 0.0
