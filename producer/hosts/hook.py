"""What every one-shot hook shares, whatever its host: the edge of the process, its input, the local agent.

A hook is one short process per event, on the path of somebody else's turn. So, in this order: it exits 0, it ends
within its budget, it prints its protocol or nothing, and only then does it do its work. `serve` is that edge. Standard
library only, and little of it: the process pays for each import.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

__all__ = ["MAX_INPUT_BYTES", "MAX_STRING_BYTES", "Input", "ask_agent", "read_input", "serve"]

MAX_INPUT_BYTES = 64 << 20
MAX_STRING_BYTES = 1 << 20  # of one text; `producer.capture` looks at far less, and drops the seam of its own cut
_SMALL_BYTES = 1 << 20  # below, the whole input is parsed
_MAX_ANSWER_BYTES = 256 << 10

Input = dict[str, Any]

_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\r\n,\]}]++")
_NESTED = re.compile(rb'[\[\]{}]|"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_WHOLE_ESCAPES = re.compile(rb"(?:[^\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+", re.DOTALL)


def serve(work: Callable[[], bytes], *, budget_s: float) -> NoReturn:
    """Print what `work` returns, if it returns within `budget_s`, and exit 0 in any case.

    Nothing else can be printed: stdout and stderr of everything that runs inside lead nowhere. Threads and buffers that
    are left do not delay the exit: what had to be on disk was synced before `work` returned.
    """
    output = -1
    try:
        for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the host
        signal.setitimer(signal.ITIMER_REAL, budget_s)
        output = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        rest = memoryview(work())
        while rest:
            rest = rest[os.write(output, rest) :]
    except BaseException:  # noqa: BLE001, S110 the edge to the host: nothing may leave; `work` counts what it refuses
        pass
    os._exit(0)


def _leave(*_: object) -> None:
    os._exit(0)


def read_input(descriptor: int = 0) -> Input:
    """The JSON object on stdin, its long texts cut; empty when there is none. Long inputs are not parsed as a whole:
    20 MB of tool output costs neither the time nor five times the memory."""
    data = bytearray()
    while piece := os.read(descriptor, 1 << 20):
        data += piece
        if len(data) > MAX_INPUT_BYTES:
            return {}
    return parse_input(data)


def parse_input(data: bytes | bytearray) -> Input:
    if len(data) > _SMALL_BYTES:
        return _top_level(data)
    try:
        value = json.loads(data.decode("utf-8", "replace").removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _top_level(data: bytes | bytearray) -> Input:
    """The texts, numbers and constants of a JSON object; nested values are passed over. Empty when it is none."""
    found: Input = {}
    at = _skip(data, 0)
    if data[at : at + 1] != b"{":
        return {}
    at = _skip(data, at + 1)
    while data[at : at + 1] != b"}":
        name = _STRING.match(data, at)
        if name is None:
            return {}
        at = _skip(data, name.end())
        if data[at : at + 1] != b":":
            return {}
        at = _skip(data, at + 1)
        end, value = _value(data, at)
        if end == at:
            return {}
        if value is not None:
            found[_text(data, *name.span())] = value
        at = _skip(data, end)
        if data[at : at + 1] == b",":
            at = _skip(data, at + 1)
        elif data[at : at + 1] != b"}":
            return {}
    return found if _skip(data, at + 1) == len(data) else {}


def _skip(data: bytes | bytearray, at: int) -> int:
    space = _SPACE.match(data, at)
    return space.end() if space else at


def _value(data: bytes | bytearray, at: int) -> tuple[int, Any]:
    """Where the value at `at` ends, and what it is; None for nested ones. The same place when there is none."""
    if data[at : at + 1] == b'"':
        string = _STRING.match(data, at)
        return (at, None) if string is None else (string.end(), _text(data, *string.span()))
    if data[at : at + 1] in (b"{", b"["):
        depth = 0
        for token in _NESTED.finditer(data, at):
            if token.group() in (b"{", b"["):
                depth += 1
            elif token.group() in (b"}", b"]"):
                depth -= 1
                if depth == 0:
                    return token.end(), None
        return at, None
    scalar = _SCALAR.match(data, at)
    if scalar is None:
        return at, None
    try:
        return scalar.end(), json.loads(scalar.group())
    except ValueError:
        return at, None


def _text(data: bytes | bytearray, start: int, end: int) -> str:
    """The JSON string literal that stands there as text, cut to `MAX_STRING_BYTES` between characters."""
    is_cut = end - start - 2 > MAX_STRING_BYTES
    inner = data[start + 1 : start + 1 + MAX_STRING_BYTES if is_cut else end - 1]
    if is_cut:
        whole = _WHOLE_ESCAPES.match(inner)
        inner = inner[: whole.end() if whole else 0]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        text: str = json.loads('"' + decoder.decode(inner, final=not is_cut) + '"', strict=False)
    except ValueError:
        return ""
    return text[:-1] if is_cut and text and "\ud800" <= text[-1] <= "\udbff" else text


def ask_agent(path: str, request: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any] | None:
    """The local agent's answer to one request. None: no agent, a frozen one, an answer too late or of no known form."""
    import socket  # lazy: only the hook before a turn asks

    until = time.monotonic() + deadline_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(deadline_s)
            connection.connect(path)
            connection.sendall(json.dumps(request, ensure_ascii=True).encode("ascii") + b"\n")
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < _MAX_ANSWER_BYTES:
                connection.settimeout(max(0.001, until - time.monotonic()))
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                answer += piece
                if time.monotonic() > until:
                    return None
        value = json.loads(answer)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
