"""The RushDB SDK over our transport: its public methods build the requests and read the answers; the HTTP is ours.

One client per call of the store (it carries that call's deadline); connections and key stand in the `Transport`. The
SDK never holds the token. Two forms, as the SDK has them:

- `PlatformClient`: the REST form of RushDB Cloud and of the 2.11 platform;
- `EngineClient`: the engine's protocol (`direct=True`), one route `/protocol/v1/execute`.

Only the requests listed here are let through; whatever else the SDK can do (PATCH, PUT, delete by query, transactions,
raw queries) is refused with `errors.Unsupported` before anything is sent. The list also says what an answer must hold:
the SDK takes a missing list for an empty one, and "nothing there" is the one answer that must never be made up.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import rushdb
from rushdb.direct import DirectEngine

from producer import errors
from producer.store.transport import Deadline, Transport

__all__ = ["EngineClient", "PlatformClient", "translated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """One kind of request. `list` names what must be a list in the answer; `total`: it must hold that number."""

    writes: bool = False
    list: str = ""
    total: bool = False
    proves_key: bool = True


_FIND = _Request(list="data", total=True)
_LIST = _Request(list="data")
_WRITE = _Request(writes=True)

_ROUTES: Mapping[str, _Request] = {
    "POST /records": _WRITE,
    "POST /records/import/json": _WRITE,
    "POST /records/search": _FIND,
    "DELETE /records/{}": _WRITE,
    "POST /relationships/create-many": _WRITE,
    "POST /relationships/search": _FIND,
    "GET /ai/indexes": _LIST,
    "POST /ai/indexes": _WRITE,
    "POST /ai/indexes/{}/vectors/upsert": _WRITE,
    "POST /ai/search": _LIST,
    "GET /text-indexes": _LIST,
    "POST /text-indexes": _WRITE,
    "POST /search/text": _LIST,
    "GET /sdk/settings": _Request(proves_key=False),  # answered whatever the key
}
_ID = re.compile(r"(?<=^DELETE /records/)[^/]+$|(?<=^POST /ai/indexes/)[^/]+(?=/vectors/upsert$)")

_OPERATIONS: Mapping[str, _Request] = {
    "query records": _Request(list="records", total=True),
    "query relationships": _Request(list="relationships", total=True),
    "query vector": _Request(list="records"),
    "query hybrid": _Request(list="records"),
    "describe vectorIndexes": _Request(list="indexes"),
    "describe indexes": _Request(list="indexes"),
    "mutate putRecord create": _WRITE,
    "mutate deleteRecord": _WRITE,
    "mutate linkRecords": _WRITE,
    "ingest documents": _WRITE,
    "index createVector": _WRITE,
    "index upsertVectors": _WRITE,
    "index create": _WRITE,
}


class PlatformClient(rushdb.RushDB):
    """The SDK's client for the REST form."""

    def __init__(self, transport: Transport, deadline: Deadline) -> None:
        super().__init__("held-by-the-transport", url="http://rushdb.invalid")
        self._transport = transport
        self._deadline = deadline

    def _make_request(
        self,
        method: str,
        path: str,
        data: dict | None = None,
        headers: dict[str, str] | None = None,
        params: dict[str, Any] | None = None,
    ) -> Any:
        what = _ID.sub("{}", f"{method} {path}")
        request = _ROUTES.get(what)
        if request is None or headers or params:
            raise errors.Unsupported("the SDK was about to send a request that this store never makes")
        answer = self._transport.call(
            method,
            "/" + "/".join(urllib.parse.quote(part, safe="") for part in path.split("/") if part),
            data,
            what=what,
            writes=request.writes,
            deadline=self._deadline,
            proves_key=request.proves_key,
        )
        if answer.get("data") is None:
            raise _malformed(what, request)
        return _checked(answer, what, request)


class EngineClient(rushdb.RushDB):
    """The SDK's client in direct mode: it answers the REST calls of its own methods with protocol operations."""

    def __init__(self, transport: Transport, deadline: Deadline) -> None:
        super().__init__("held-by-the-transport", direct=True, engine_url="http://rushdb.invalid")
        self.engine = _Engine(transport, deadline)


class _Engine(DirectEngine):
    def __init__(self, transport: Transport, deadline: Deadline) -> None:
        super().__init__(engine_url="http://rushdb.invalid", token="held-by-the-transport")  # noqa: S106 (no token)
        self._transport = transport
        self._deadline = deadline

    def execute(self, operation: dict[str, Any]) -> dict[str, Any]:
        # {"kind": "mutate", "mutation": {"kind": "putRecord", "mode": "create", ..}} is "mutate putRecord create"
        inner: Mapping[str, Any] = next((part for part in operation.values() if isinstance(part, dict)), {})
        what = " ".join(str(word) for word in (operation.get("kind"), inner.get("kind"), inner.get("mode")) if word)
        request = _OPERATIONS.get(what)
        if request is None:
            raise errors.Unsupported("the SDK was about to send an operation that this store never makes")
        answer = self._transport.call(
            "POST",
            "/protocol/v1/execute",
            {"protocolVersion": 1, "operation": operation},
            what=what,
            writes=request.writes,
            deadline=self._deadline,
        )
        refusal, response = answer.get("error"), answer.get("response")
        if isinstance(refusal, dict) and refusal.get("retryable") is False:
            raise errors.StoreRefused(f"{what}: refused by the engine")
        if refusal or not isinstance(response, dict):
            raise _malformed(what, request)
        return _checked(response, what, request)


@contextmanager
def translated(*, writes: bool) -> Iterator[None]:
    """Around SDK calls: what the SDK itself raises becomes ours. (What the server said, the transport translated.)"""
    try:
        yield
    except (rushdb.CloudOnlyError, rushdb.DirectModeError) as error:
        raise errors.Unsupported("the engine form of RushDB does not have this") from error
    except rushdb.RushDBError as error:
        raise errors.StoreRefused(f"refused by the RushDB SDK: status {error.status}", status=error.status) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # Arguments were checked before; so it is an answer that the SDK could not read.
        kind = type(error).__name__
        raise errors.StoreUnavailable(f"an answer of unknown form ({kind})", outcome_unknown=writes) from None


def _checked(answer: dict[str, Any], what: str, request: _Request) -> dict[str, Any]:
    if request.list and not isinstance(answer.get(request.list), list):
        raise _malformed(what, request)
    if request.total and (not isinstance(answer.get("total"), int) or isinstance(answer["total"], bool)):
        raise _malformed(what, request)
    return answer


def _malformed(what: str, request: _Request) -> errors.StoreUnavailable:
    return errors.StoreUnavailable(f"{what}: an answer of unknown form", outcome_unknown=request.writes)
