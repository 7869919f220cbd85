"""The fault proxy does what its modes say, on connections that are open and on new ones."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import FaultProxy, fault_proxy


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends everything back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while piece := connection.recv(1 << 16):
                        connection.sendall(piece)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[FaultProxy]:
    with fault_proxy(echo) as made:
        yield made


def connected(proxy: FaultProxy, *, timeout_s: float = 5.0) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=timeout_s)


def asked(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(1 << 16)


def test_bytes_go_through_both_ways(proxy):
    with connected(proxy) as connection:
        assert asked(connection, b"one") == b"one"
        assert asked(connection, b"two") == b"two"
    assert proxy.accepted == 1


def test_a_frozen_proxy_accepts_and_forwards_nothing_and_later_what_it_held(proxy):
    with connected(proxy) as before:
        assert asked(before, b"x") == b"x"
        proxy.set("freeze")
        with connected(proxy, timeout_s=0.2) as after:
            after.sendall(b"held")
            with pytest.raises(TimeoutError):
                after.recv(10)
            after.settimeout(5.0)
            proxy.set("pass")
            assert after.recv(10) == b"held"
        assert asked(before, b"y") == b"y"


def test_what_is_swallowed_never_arrives(proxy):
    with connected(proxy, timeout_s=0.2) as connection:
        proxy.set("swallow")
        with pytest.raises(TimeoutError):
            asked(connection, b"gone")
        proxy.set("pass")
        connection.settimeout(5.0)
        assert asked(connection, b"back") == b"back"


def test_a_reset_breaks_open_connections_and_new_ones(proxy):
    with connected(proxy) as before:
        assert asked(before, b"x") == b"x"
        proxy.set("reset")
        with pytest.raises(ConnectionError):
            before.recv(10)
        with pytest.raises(ConnectionError), connected(proxy) as after:
            asked(after, b"x")
            after.recv(10)
        proxy.set("pass")
        with connected(proxy) as later:
            assert asked(later, b"z") == b"z"


def test_a_refusing_proxy_listens_no_more_and_again_on_the_same_port(proxy):
    port = proxy.port
    with connected(proxy) as before:
        assert asked(before, b"x") == b"x"
        proxy.set("refuse")
        assert before.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    proxy.set("pass")
    assert proxy.port == port
    with connected(proxy) as later:
        assert asked(later, b"y") == b"y"


def test_an_answer_is_cut_after_so_many_bytes(proxy):
    proxy.set("cut", after_bytes=3)
    with connected(proxy) as connection:
        connection.sendall(b"abcdef")
        got = b""
        with pytest.raises(ConnectionError):
            while piece := connection.recv(10):
                got += piece
        assert got in (b"", b"abc")  # a reset may overtake what came before it


def test_a_delayed_answer_comes_later(proxy):
    proxy.set("delay", delay_s=0.1)
    with connected(proxy) as connection:
        began = time.monotonic()
        assert asked(connection, b"x") == b"x"
        assert time.monotonic() - began >= 0.2  # once each way


def test_one_request_is_answered_in_the_servers_place(proxy):
    proxy.set("answer", data=b"no", count=1)
    with connected(proxy) as first:
        assert asked(first, b"may I?") == b"no"
        assert first.recv(10) == b""
    with connected(proxy) as second:
        assert asked(second, b"and I?") == b"and I?"


def test_it_forwards_from_one_unix_socket_to_another(tmp_path, echo):
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    with (
        fault_proxy(echo, path=first),
        fault_proxy(first, path=second),
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.settimeout(5.0)
        connection.connect(second)
        assert asked(connection, b"through two") == b"through two"


def test_a_closed_proxy_leaves_no_thread(echo):
    with fault_proxy(echo) as proxy, connected(proxy) as connection:
        assert asked(connection, b"x") == b"x"
        proxy.set("freeze")
    assert not [thread for thread in threading.enumerate() if thread.name == "fault-proxy"]
