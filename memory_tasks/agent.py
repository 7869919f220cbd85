"""The local agent: recall and delivery for hosts that are one-shot processes. A composition root.

One process per state directory. It holds what a short hook cannot: the dispatcher of the journal's directory, warm
connections to store and Redis, and what each conversation has already been told.

    socket      `MEMORY_AGENT_SOCKET` (0600) in a directory that only its owner may write; same user or root only
    request     one JSON object a line, at most 64 KiB
    answer      one JSON object a line

    {"op": "recall", "scope": {the five}, "query", "session": {"runtime", "externalSessionId"},
     "deadlineMs", "maxChars"}          -> {"context", "count", "partial", "ms"}
    {"op": "compacted", "scope", "session"}                  -> {"forgot": number}
    {"op": "status"}                    -> counts, dispatcher, recall
    {"op": "flush", "deadlineMs"}       -> {"settled": bool}
    anything else                       -> {"error": code}

Claude Code sends every recalled block again with each later turn, so a conversation is told each memory once: what was
told is remembered for the last 256 conversations, 512 memories each, until the conversation says that it was compacted.

Bounded: connections at once (further ones are closed at once and counted), request size, time without a request.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from producer import errors
from producer.config import ProducerConfig
from producer.hosts import hook
from producer.memory import AgentMemory
from producer.recall import formatting
from producer.recall.engine import Memory
from producer.scope import Scope

__all__ = ["Agent", "Client", "client", "run"]

MAX_CONNECTIONS = 16
MAX_REQUEST_BYTES = 64 * 1024
MAX_SESSIONS = 256
MAX_TOLD = 512
MAX_DEADLINE_MS = 60_000
_MAX_PATH_BYTES = 107  # of a Unix socket's address
_IDLE_S = 10.0
_POLL_S = 0.2
_CLOSE_S = 3.0
_log = logging.getLogger(__name__)


def run(config: ProducerConfig, *, stop: threading.Event) -> None:
    """Serve until `stop` is set. Raises `errors.SettingsRefused` when another agent runs here or the socket cannot be
    made, `errors.JournalFailed` when the journal cannot be opened."""
    with _only_one(config.agent_socket), _listening(config.agent_socket) as listener:
        memory = AgentMemory(config, host="agent")
        try:
            memory.start()
            agent = Agent(config, memory)
            threading.Thread(target=agent.warm_up, name="agent-warm-up", daemon=True).start()
            _log.info("the local agent answers", extra={"action": "agent.started"})
            agent.serve(listener, stop)
        finally:
            memory.close(deadline_s=_CLOSE_S)
    _log.info("the local agent stopped", extra={"action": "agent.stopped"})


class Agent:
    """Answers requests on connections. `serve` blocks until told to stop."""

    def __init__(self, config: ProducerConfig, memory: AgentMemory) -> None:
        self._config = config
        self._memory = memory
        self._told = _Told()
        self._counts: Counter[str] = Counter()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._started_at = time.time()

    def warm_up(self) -> None:
        """Open the connections of recall before the first turn needs them."""
        nobody = Scope(
            agent_id="agent",
            profile_id="warm-up",
            privacy_scope="private",
            participant_scope_hash="0" * 64,
            sandbox_eligible=False,
        )
        self._memory.recall_memories("warm up", scope=nobody)

    def serve(self, listener: socket.socket, stop: threading.Event) -> None:
        listener.settimeout(_POLL_S)
        threads: list[threading.Thread] = []
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError as problem:  # no descriptors left, say: the next round may have some
                self._counts["failedAccepts"] += 1
                _log.warning("the agent cannot accept (errno %s)", problem.errno, extra={"action": "agent.accept"})
                stop.wait(_POLL_S)
                continue
            threads = [thread for thread in threads if thread.is_alive()]
            if not self._may_come(connection) or len(threads) >= MAX_CONNECTIONS:
                self._counts["shed"] += 1
                connection.close()
                continue
            with self._lock:
                self._connections.add(connection)
            thread = threading.Thread(target=self._converse, args=(connection,), name="agent-connection", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no threads left
                self._counts["shed"] += 1
                with self._lock:
                    self._connections.discard(connection)
                connection.close()
                continue
            threads.append(thread)
        with self._lock:
            for connection in self._connections:
                _shut(connection)
        until = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _may_come(self, connection: socket.socket) -> bool:
        """The same user or root. Where the system does not tell, the socket's mode has kept others out."""
        if not hasattr(socket, "SO_PEERCRED"):
            return True
        try:
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return False
        return struct.unpack("3i", told)[1] in (os.getuid(), 0)

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_IDLE_S)
                for line in _lines(connection):
                    answer, take_back = self._answer(line)
                    try:
                        connection.sendall(json.dumps(answer, ensure_ascii=True).encode("ascii") + b"\n")
                    except OSError:
                        take_back()
                        raise
        except (OSError, ValueError):
            self._counts["broken"] += 1  # gone, silent for too long, or no line of ours
        except Exception as problem:  # noqa: BLE001 the edge of a connection: counted, logged, the agent goes on
            self._counts["failed"] += 1
            _log.error("a request failed (%s)", type(problem).__name__, extra={"action": "agent.request_failed"})
        finally:
            with self._lock:
                self._connections.discard(connection)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _answer(self, line: bytes) -> tuple[dict[str, Any], Any]:
        """The answer, and what to do when it cannot be sent."""
        try:
            request = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            request = None
        operation = request.get("op") if isinstance(request, dict) else None
        self._counts["requests"] += 1
        try:
            if operation == "recall":
                return self._recall(request)
            if operation == "compacted":
                return {"forgot": self._told.forget(_conversation(request)[1])}, _nothing
            if operation == "status":
                return self.status(), _nothing
            if operation == "flush":
                return {"settled": self._memory.flush(_deadline_ms(request, 1000) / 1000)}, _nothing
        except errors.ScopeRefused as problem:
            return {"error": problem.reason}, _nothing
        except errors.ContractViolation:
            pass
        self._counts["refusedRequests"] += 1
        return {"error": "invalid_request"}, _nothing

    def _recall(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        started = time.monotonic()
        query = request.get("query")
        if not isinstance(query, str):
            raise errors.ContractViolation("is no recall", field="request")
        scope, conversation = _conversation(request)
        _, runtime, session_id = conversation
        deadline_ms = _deadline_ms(request, self._config.recall_deadline_ms)
        max_chars = min(_whole(request.get("maxChars"), self._config.recall_max_chars), self._config.recall_max_chars)
        found = self._memory.recall_memories(
            query,
            scope=scope,
            session_id=session_id,
            runtime=runtime,
            deadline_ms=deadline_ms,
            skip_ids=self._told.ids(conversation) if session_id else (),
        )
        context, shown = _quoted(found.memories, max_chars)
        took_ms = (time.monotonic() - started) * 1000

        answer = {"context": context, "count": len(shown), "partial": found.partial, "ms": round(took_ms, 1)}
        if not session_id or took_ms > deadline_ms:  # later than that nobody was listening
            return answer, _nothing
        # Before it is sent: the next request of this conversation may come as soon as it was.
        self._told.add(conversation, shown)
        return answer, lambda: self._told.remove(conversation, shown)

    def status(self) -> dict[str, Any]:
        with self._lock:
            connections = len(self._connections)
        return {
            "pid": os.getpid(),
            "uptimeS": round(time.time() - self._started_at, 1),
            "connections": connections,
            "conversations": len(self._told),
            **self._counts,
            **self._memory.status(),
        }


class _Told:
    """Which memories each conversation has been told, the last ones only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_conversation: OrderedDict[Any, OrderedDict[str, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_conversation)

    def ids(self, conversation: Any) -> frozenset[str]:
        with self._lock:
            return frozenset(self._by_conversation.get(conversation, ()))

    def add(self, conversation: Any, ids: Sequence[str]) -> None:
        with self._lock:
            known = self._by_conversation.setdefault(conversation, OrderedDict())
            self._by_conversation.move_to_end(conversation)
            known.update(dict.fromkeys(ids))
            while len(known) > MAX_TOLD:
                known.popitem(last=False)
            while len(self._by_conversation) > MAX_SESSIONS:
                self._by_conversation.popitem(last=False)

    def forget(self, conversation: Any) -> int:
        """How many memories this conversation had been told; it has been told none from now on."""
        with self._lock:
            return len(self._by_conversation.pop(conversation, ()))

    def remove(self, conversation: Any, ids: Sequence[str]) -> None:
        with self._lock:
            known = self._by_conversation.get(conversation, OrderedDict())
            for id_ in ids:
                known.pop(id_, None)


def _quoted(memories: Sequence[Memory], max_chars: int) -> tuple[str, list[str]]:
    """The block for the prompt, and the ids of the memories that found room in it."""
    context, shown = "", []
    kept: list[dict[str, Any]] = []
    for memory in memories:
        longer = formatting.format_context([*kept, memory.quotable()], max_chars=max_chars)
        if longer != context:
            context = longer
            kept.append(memory.quotable())
            shown.append(memory.id)
    return context, shown


def _conversation(request: Mapping[str, Any]) -> tuple[Scope, tuple[str, str | None, str | None]]:
    """Whose request it is, and the conversation that asks."""
    fields, session = request.get("scope"), request.get("session") or {}
    if not isinstance(fields, dict) or not isinstance(session, dict):
        raise errors.ContractViolation("names no scope or no session", field="request")
    runtime, session_id = session.get("runtime"), session.get("externalSessionId")
    if not isinstance(runtime, str | None) or not isinstance(session_id, str | None):
        raise errors.ContractViolation("is no session", field="session")
    scope = Scope.of_fields(fields)
    return scope, (scope.key, runtime, session_id)


def _deadline_ms(request: Mapping[str, Any], default_ms: float) -> float:
    return min(_whole(request.get("deadlineMs"), int(default_ms)), MAX_DEADLINE_MS)


def _whole(value: Any, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise errors.ContractViolation("is not a number above 0", field="request")
    return int(value)


def _nothing() -> None:
    return None


def _lines(connection: socket.socket) -> Iterator[bytes]:
    """Requests until the other side ends. Raises `ValueError` for one that is too long."""
    buffer = b""
    while piece := connection.recv(1 << 16):
        buffer += piece
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            yield line
        if len(buffer) > MAX_REQUEST_BYTES:
            raise ValueError("the request is too long")


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


# -- the socket ------------------------------------------------------------------------------------------------------


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the lock beside the socket. It ends with the process, however that ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        message = f"its directory cannot be used (errno {problem.errno})"
        raise errors.SettingsRefused("MEMORY_AGENT_SOCKET", message) from problem
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.SettingsRefused("MEMORY_AGENT_SOCKET", "another agent runs on this socket") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """The socket, listening; renamed into place, so that a client finds a dead one or one that answers."""
    if len(os.fsencode(path)) + len(".new") > _MAX_PATH_BYTES:
        message = f"its path is longer than {_MAX_PATH_BYTES - len('.new')} bytes: name a shorter one"
        raise errors.SettingsRefused("MEMORY_AGENT_SOCKET", message)
    mode = path.parent.stat().st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise errors.SettingsRefused("MEMORY_AGENT_SOCKET", "others may write its directory: chmod 700")
    draft = Path(f"{path}.new")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        draft.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listener.bind(str(draft))
        finally:
            os.umask(before)
        listener.listen(MAX_CONNECTIONS)
        made = draft.stat().st_ino
        draft.replace(path)
        try:
            yield listener
        finally:
            if path.exists() and path.stat().st_ino == made:
                path.unlink()
    finally:
        listener.close()


# -- the other side --------------------------------------------------------------------------------------------------


class Client:
    """Asks a running agent. Every call raises `ConnectionError` when none answers in time."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def ask(self, request: Mapping[str, Any], *, extra_s: float = 0.0) -> dict[str, Any]:
        answer = hook.ask_agent(str(self._path), request, deadline_s=self._timeout_s + extra_s)
        if answer is None:
            raise ConnectionError("the local agent does not answer; start it with `memory-tasks agent` or `up`")
        return answer

    def status(self) -> dict[str, Any]:
        return self.ask({"op": "status"})

    def flush(self, deadline_s: float) -> bool:
        """Whether everything in the agent's journal so far is settled within `deadline_s`."""
        return bool(
            self.ask({"op": "flush", "deadlineMs": max(1, deadline_s * 1000)}, extra_s=deadline_s).get("settled")
        )


def client(path: Path | str, *, timeout_s: float = 2.0) -> Client:
    """A client of the agent on this socket; connects for each call."""
    return Client(Path(path), timeout_s=timeout_s)
