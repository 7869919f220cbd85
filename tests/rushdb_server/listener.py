"""HTTP/1.1 on a loopback socket: persistent connections, one thread each, and everything that can go wrong with them.

Small on purpose: it reads requests with a Content-Length, and hands each with its connection to a callable that answers
on it, or does not. The backlog is large: clients that open a connection per request would be refused otherwise.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, cast

from .answers import Answer

BACKLOG = 512
_POLL_S = 0.01
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class Connection:
    """One client's connection, as the application sees it."""

    def __init__(self, sock: socket.socket, stopping: threading.Event) -> None:
        self._sock = sock
        self.stopping = stopping
        self.is_open = True

    def send(self, answer: Answer) -> None:
        self._send(b"".join(answer.encode()))

    def send_half(self, answer: Answer) -> None:
        """Send the head, which promises the whole body, and half of the body; then close."""
        head, body = answer.encode()
        self._send(head + body[: len(body) // 2])
        self.is_open = False

    def reset(self) -> None:
        """Let the client see ECONNRESET, not an orderly end."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.is_open = False

    def wait(self, seconds: float) -> None:
        """Wait that long, shorter only when the server stops."""
        self.stopping.wait(seconds)

    def wait_until_left(self, released: threading.Event) -> None:
        """Return when the client has gone, `released` is set, or the server stops."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLRDHUP)
        while not self.stopping.is_set() and not released.is_set():
            for _, event in poll.poll(_POLL_S * 1000):
                if event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
                    return
                time.sleep(_POLL_S)  # bytes of a next request wait unread; do not spin on them

    def _send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError:  # the client has gone; the next read ends the connection
            self.is_open = False


class Listener:
    """Serves until `close`. The port is bound when the constructor returns."""

    def __init__(self, respond: Callable[[Request, Connection], None], *, port: int = 0) -> None:
        self._respond = respond
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.accepted = 0
        self._threads: dict[socket.socket, threading.Thread] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(BACKLOG)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._acceptor = threading.Thread(target=self._accept, name="rushdb-server-accept", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening, cut every connection and wait for the threads."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._socket.close()
        with self._lock:
            threads = list(self._threads.items())
        for sock, _ in threads:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for _, thread in threads:
            thread.join()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = self._socket.accept()
            except OSError:
                if self._stopping.is_set():
                    return
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(sock,), name="rushdb-server", daemon=True)
            with self._lock:
                self.accepted += 1
                self._threads[sock] = thread
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        connection = Connection(sock, self._stopping)
        try:
            with sock.makefile("rb", buffering=1 << 16) as reader:
                while connection.is_open and not self._stopping.is_set():
                    request = _read_request(cast(BinaryIO, reader))
                    if request is None:
                        return
                    self._respond(request, connection)
                    if request.headers.get("connection", "").lower() == "close":
                        return
        except OSError:  # the client has gone
            pass
        finally:
            with self._lock:
                self._threads.pop(sock, None)
            sock.close()


def _read_request(reader: BinaryIO) -> Request | None:
    """The next whole request, or None when the client is done, has gone or speaks something else."""
    line = reader.readline(1 << 16)
    parts = line.split()
    if len(parts) != 3:
        return None
    headers: dict[str, str] = {}
    while (line := reader.readline(1 << 16)) not in (b"\r\n", b"\n"):
        if not line:
            return None
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length") or 0)
    body = reader.read(length) if length else b""
    if len(body) < length:
        return None
    return Request(method=parts[0].decode("latin-1"), path=parts[1].decode("latin-1"), headers=headers, body=body)
