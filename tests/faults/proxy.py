"""A fault proxy for TCP or a unix socket: stands between two processes, and goes wrong when told to.

    pass      bytes go through
    delay     each piece `delay_s` later
    freeze    connections are accepted, nothing goes through; what was held back goes on when the mode changes
    swallow   connections are accepted, what clients send is thrown away, nothing is answered
    reset     all connections are reset (RST), new ones too
    refuse    nobody listens; connections are closed
    cut       a connection is reset after `after_bytes` bytes of answers, in the middle of one
    answer    the next request of a connection is not forwarded but answered with `data`; `count` times, then pass

One accepting thread and two threads per connection. `mode` is switched at run time by the process that holds it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FaultProxy", "fault_proxy"]

_MODES = frozenset({"pass", "delay", "freeze", "swallow", "reset", "refuse", "cut", "answer"})
_PIECE = 1 << 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Address = tuple[str, int] | str  # host and port, or the path of a unix socket


class _Connection:
    """A client's socket and ours to the server. Ended by whichever side ends first."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.answered = 0  # bytes that came back
        self.running = 2
        self.ended = False
        self.lock = threading.Lock()

    def sockets(self) -> list[socket.socket]:
        return [one for one in (self.client, self.server) if one is not None]

    def end(self, *, reset: bool) -> None:
        """Wake both threads; the last of them closes. The first word counts: after a reset no polite end."""
        with self.lock:
            if self.ended:
                return
            self.ended = True
        for one in self.sockets():
            with contextlib.suppress(OSError):
                if reset and one.family != socket.AF_UNIX:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    one.shutdown(socket.SHUT_RD)
                else:
                    one.shutdown(socket.SHUT_RDWR)

    def leave(self) -> bool:
        """Whether this was the last thread; it has closed the sockets."""
        with self.lock:
            self.running -= 1
            if self.running:
                return False
        for one in self.sockets():
            one.close()
        return True


class FaultProxy:
    """Listens on a free loopback port (`port`, `host`), or on `path`; forwards to `upstream`."""

    host = "127.0.0.1"

    def __init__(self, upstream: Address, *, path: str = "") -> None:
        self.upstream = upstream
        self.path = path
        self.port = 0
        self.accepted = 0
        self._mode = "pass"
        self._delay_s = 0.0
        self._after_bytes = 0
        self._answer = b""
        self._answers_left = 0
        self._changed = threading.Condition()
        self._connections: set[_Connection] = set()
        self._threads: set[threading.Thread] = set()
        self._listener: socket.socket | None = None
        self._listen()

    # What tests switch

    @property
    def mode(self) -> str:
        return self._mode

    def set(self, mode: str, *, delay_s: float = 0.0, after_bytes: int = 0, data: bytes = b"", count: int = 1) -> None:
        """Behave so from now on, also on connections that are open."""
        if mode not in _MODES:
            raise ValueError(f"no mode is named {mode!r}; there are {', '.join(sorted(_MODES))}")
        with self._changed:
            self._mode, self._delay_s, self._after_bytes = mode, delay_s, after_bytes
            self._answer, self._answers_left = data, count
            for connection in self._connections:
                connection.answered = 0
            self._changed.notify_all()
        if mode == "refuse":
            self._stop_listening()
        elif self._listener is None:
            self._listen()
        if mode in ("refuse", "reset"):
            self.drop(reset=mode == "reset")

    def drop(self, *, reset: bool = True) -> None:
        """End the connections that are open."""
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            connection.end(reset=reset)

    def close(self) -> None:
        with self._changed:
            self._mode = "reset"
            self._changed.notify_all()
        self._stop_listening()
        self.drop()
        for thread in list(self._threads):
            thread.join(5.0)

    # Listening

    def _listen(self) -> None:
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                Path(self.path).unlink()
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(self.path)
        else:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            self.port = listener.getsockname()[1]
        listener.listen(128)
        self._listener = listener
        self._run(self._accept, listener)

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _run(self, what: object, *arguments: object) -> None:
        thread = threading.Thread(target=self._guarded, args=(what, *arguments), name="fault-proxy", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _guarded(self, what: object, *arguments: object) -> None:
        try:
            what(*arguments)  # type: ignore[operator]
        finally:
            self._threads.discard(threading.current_thread())

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            connection = _Connection(client)
            with self._changed:
                self._connections.add(connection)
            self._run(self._serve, connection)

    def _serve(self, connection: _Connection) -> None:
        if self._mode != "reset":
            with contextlib.suppress(OSError):
                connection.server = self._connected()
        if connection.server is None:
            connection.end(reset=True)
            connection.running = 1
        else:
            self._run(self._pump, connection, connection.server, connection.client, False)
            self._pump(connection, connection.client, connection.server, True)
            return
        self._leave(connection)

    def _connected(self) -> socket.socket:
        if isinstance(self.upstream, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.upstream)
            return server
        server = socket.create_connection(self.upstream, timeout=5.0)
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    def _leave(self, connection: _Connection) -> None:
        if connection.leave():
            with self._changed:
                self._connections.discard(connection)

    # Forwarding

    def _pump(self, connection: _Connection, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        try:
            if not self.path and is_request:
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while piece := source.recv(_PIECE):
                if not self._forward(connection, piece, sink, is_request):
                    connection.end(reset=True)
                    break
            else:
                connection.end(reset=False)
        except OSError:
            connection.end(reset=True)
        finally:
            self._leave(connection)

    def _forward(self, connection: _Connection, piece: bytes, sink: socket.socket, is_request: bool) -> bool:
        """Whether the connection lives on."""
        with self._changed:
            while self._mode == "freeze":
                self._changed.wait()
            mode, delay_s, after_bytes = self._mode, self._delay_s, self._after_bytes
            answers = mode == "answer" and is_request and self._answers_left > 0
            if answers:
                self._answers_left -= 1
        if mode == "reset":
            return False
        if mode == "swallow":
            return True
        if mode == "delay":
            time.sleep(delay_s)  # this connection's own thread: nobody else waits
        if answers:
            return self._give_answer(connection)
        if mode == "cut" and not is_request:
            left = after_bytes - connection.answered
            connection.answered += len(piece)
            if len(piece) >= left:
                sink.sendall(piece[: max(0, left)])
                return False
        sink.sendall(piece)
        return True

    def _give_answer(self, connection: _Connection) -> bool:
        """Answer in the server's place, then end. The rest of the request is read, else a reset would eat it."""
        client = connection.client
        client.sendall(self._answer)
        client.shutdown(socket.SHUT_WR)
        client.settimeout(1.0)
        with contextlib.suppress(OSError):
            while client.recv(_PIECE):
                pass
        return False


@contextlib.contextmanager
def fault_proxy(upstream: Address, *, path: str = "") -> Iterator[FaultProxy]:
    """A running proxy, gone at the end."""
    proxy = FaultProxy(upstream, path=path)
    try:
        yield proxy
    finally:
        proxy.close()
