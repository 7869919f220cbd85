"""Calls and answers, and the exact error bodies that RushDB 2.11.2 was recorded with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

REASONS = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    408: "Request Timeout",
    409: "Conflict",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
}

JSON_TYPE = "application/json; charset=utf-8"

BAD_GATEWAY_PAGE = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One HTTP answer. `text` (HTML) replaces the JSON `body` when it is set."""

    status: int
    body: Any = None
    text: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, keep_alive: bool = True) -> tuple[bytes, bytes]:
        """The head and the body as they go on the wire; the head states the length of the whole body."""
        if self.text is None:
            body = json.dumps(self.body, separators=(",", ":")).encode()  # ASCII: lone surrogates stay escaped
            content_type = JSON_TYPE
        else:
            body, content_type = self.text.encode(), "text/html"
        lines = [f"HTTP/1.1 {self.status} {REASONS[self.status]}", f"content-type: {content_type}"]
        lines.append(f"content-length: {len(body)}")
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if not keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A request, understood: what fault switches look at, and `run(effect)`, which carries it out."""

    request_class: str
    body: Any
    run: Callable[[str], Answer]
    label: str | None = None


class Refusal(Exception):
    """The request is answered with an error; `message` and `body` are RushDB's own words."""

    def __init__(self, status: int, message: str = "", *, body: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        if body is None:
            body = {"message": message, "error": REASONS[status], "statusCode": status}
        self.body = body


def invalid(reason: str) -> Refusal:
    """400, as the request validation words it."""
    return Refusal(400, f"Request validation of body failed, because: {reason}")


def not_found() -> Refusal:
    """404 of a record (unlike a route's or an index's it has no `error`)."""
    return Refusal(404, "Not Found", body={"message": "Not Found", "statusCode": 404})


def database_error() -> Refusal:
    """500 for anything that Neo4j refused: it may mean a bad query, a deadlock or a database that is down."""
    message = "Neo4j database error occurred"
    return Refusal(500, message, body={"statusCode": 500, "message": message})


def crash() -> Refusal:
    """500 with an empty object: an exception that nothing in RushDB expected."""
    return Refusal(500, "", body={})


def time_budget_spent() -> Refusal:
    message = "The operation exceeded the server-side transaction time budget and was rolled back."
    return Refusal(408, message, body={"statusCode": 408, "message": message})


def throttled() -> Refusal:
    """403, the same as for a wrong key: 2.11 says nothing else when its rate limit is reached."""
    return Refusal(403, "Forbidden resource")


def not_served(what: str) -> Refusal:
    """501: RushDB does this, the test server does not. Loud, so that a caller never leans on a guess of ours."""
    return Refusal(501, f"The test server does not serve {what}")
