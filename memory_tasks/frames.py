"""What a worker and its children say to each other over a socket pair: frames of four bytes' length (big-endian) and
that much JSON (ASCII).

    worker → child   {parts of the settler}                                  first, once
    worker → child   {tenant, agents, profiles, operator, receivedS, until, items: [...]}
    child → worker   {"began": true}                                         before it opens a line
    child → worker   {"handled": [{lineHash, id, refusal, result}, ...]}     one per item, or {"fault": class}

The end of the stream is the end of the other side. Both sides are one installation: frames have no version.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from memory_tasks import incoming, tenants
from memory_tasks.results import Checked, Handled, Result
from producer import errors, message
from producer.convergence import delivery
from producer.receipt import State

__all__ = ["EndOfStream", "answer_of", "handled_of", "receive", "request", "request_of", "send"]

_LENGTH_BYTES = 4
_MAX_BYTES = 256 << 20  # a chunk holds at most 100 lines of 1 MiB; more is no frame of ours
_KINDS: dict[str, type[errors.IngestError]] = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, errors.IngestError)
}


class EndOfStream(Exception):
    """The other side is gone."""


def send(to: socket.socket, value: Mapping[str, Any]) -> None:
    """Send one frame. Raises `EndOfStream`, and `TimeoutError` as the socket's timeout says."""
    data = json.dumps(value, separators=(",", ":")).encode("ascii")
    try:
        to.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    except TimeoutError:
        raise
    except OSError as problem:
        raise EndOfStream from problem


def receive(of: socket.socket) -> dict[str, Any]:
    """The next frame. Raises `EndOfStream`, and `TimeoutError` as the socket's timeout says."""
    length = int.from_bytes(_bytes(of, _LENGTH_BYTES), "big")
    if length > _MAX_BYTES:
        raise EndOfStream
    value: dict[str, Any] = json.loads(_bytes(of, length))
    return value


def _bytes(of: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            piece = of.recv(min(count - len(data), 1 << 20))
        except TimeoutError:
            raise
        except OSError as problem:
            raise EndOfStream from problem
        if not piece:
            raise EndOfStream
        data += piece
    return bytes(data)


def request(items: Sequence[message.Item], grant: tenants.Grant, *, received_s: float, until: float) -> dict[str, Any]:
    """The frame that asks a child to handle these items for a key with this grant; the key itself stays here."""
    return {
        "tenant": grant.tenant,
        "agents": None if grant.agents is None else sorted(grant.agents),
        "profiles": None if grant.profiles is None else sorted(grant.profiles),
        "operator": grant.operator,
        "receivedS": received_s,
        "until": until,
        "items": [item.body() for item in items],
    }


def request_of(frame: Mapping[str, Any]) -> tuple[list[message.Item], tenants.Grant, float, float]:
    """Items, grant, time of receipt and deadline of a request."""
    grant = tenants.Grant(
        key=message.Key(id="", secret=b""),
        tenant=frame["tenant"],
        store_url="",
        agents=None if frame["agents"] is None else frozenset(frame["agents"]),
        profiles=None if frame["profiles"] is None else frozenset(frame["profiles"]),
        operator=frame["operator"],
    )
    items = [
        message.Item(
            line=one["line"],
            journal_id=one["journalId"],
            unsure=one["unsure"],
            deaths=one["deaths"],
            check=one.get("check", False),
            reason=one.get("reason", ""),
        )
        for one in frame["items"]
    ]
    return items, grant, frame["receivedS"], frame["until"]


def answer_of(handled: Sequence[Handled]) -> dict[str, Any]:
    """The frame that answers a request."""
    return {
        "handled": [
            {
                "lineHash": one.entry.line_hash,
                "id": one.entry.id,
                "refusal": one.entry.refusal,
                "result": _result(one.result),
            }
            for one in handled
        ]
    }


def handled_of(frame: Mapping[str, Any], items: Sequence[message.Item]) -> list[Handled]:
    """What became of the items of a request, from its answer."""
    return [
        Handled(
            entry=incoming.Entry(item=item, line_hash=one["lineHash"], id=one["id"], refusal=one["refusal"]),
            result=_result_of(one["result"]),
        )
        for item, one in zip(items, frame["handled"], strict=True)
    ]


def _result(result: Result | None) -> dict[str, Any] | None:
    match result:
        case delivery.Settled():
            return {
                "settled": str(result.state),
                "reason": result.reason,
                "conflict": result.conflict,
                "duplicate": result.duplicate,
                "unsure": result.unsure,
                "cacheErrors": result.cache_errors,
            }
        case delivery.Failed():
            problem = result.error
            return {
                "failed": type(problem).__name__,
                "text": str(problem),
                "says": {name: value for name, value in vars(problem).items() if not name.startswith("_")},
                "unsure": result.unsure,
                "cacheErrors": result.cache_errors,
            }
        case Checked():
            return {"forgotten": result.forgotten}
        case _:
            return None


def _result_of(body: Mapping[str, Any] | None) -> Result | None:
    if body is None:
        return None
    if "forgotten" in body:
        return Checked(forgotten=body["forgotten"])
    if "settled" in body:
        return delivery.Settled(
            state=State(body["settled"]),
            reason=body["reason"],
            conflict=body["conflict"],
            duplicate=body["duplicate"],
            unsure=body["unsure"],
            cache_errors=body["cacheErrors"],
        )
    kind = _KINDS[body["failed"]]
    problem = kind.__new__(kind, body["text"])  # what it was made of is in its attributes, not in its text
    vars(problem).update(body["says"])
    return delivery.Failed(error=problem, unsure=body["unsure"], cache_errors=body["cacheErrors"])
