"""Events, orders and deliveries for tests, with real ids; and a store that counts, and fails when told to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from producer import identity, keys
from producer.convergence.delivery import Delivery
from producer.store import port

SCOPE = {
    "agentId": "coder",
    "profileId": "default",
    "privacyScope": "private",
    "participantScopeHash": "a" * 64,
    "sandboxEligible": False,
}
OTHER = {**SCOPE, "participantScopeHash": "b" * 64}
SCOPE_KEY = keys.scope_key(SCOPE)
AT = "2026-01-01T12:00:00.000Z"


def at(seconds: float) -> str:
    """AT, so many seconds later."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"2026-01-01T{12 + hours:02}:{minutes:02}:{rest:06.3f}Z"


def episode(
    text: str = "hello", *, scope: Mapping[str, Any] = SCOPE, session: str = "s-1", **given: Any
) -> dict[str, Any]:
    event = {
        "schemaVersion": 1,
        "eventType": "episode",
        "runtime": "custom",
        **scope,
        "externalSessionId": session,
        "sourceEventId": f"turn of {text}",
        "turnIndex": 0,
        "userText": text,
        "assistantText": "I see.",
        "summary": f"User said {text}.",
        "conversationKind": "direct",
        "visibility": "participant",
        "trustClass": "mixed",
        "originClass": "conversation",
        "observedAt": AT,
        "provenance": "test",
        **given,
    }
    return {**event, "eventId": identity.episode_event_id(event)}


def fact(text: str = "likes tea", *, scope: Mapping[str, Any] = SCOPE, **given: Any) -> dict[str, Any]:
    event = {
        "schemaVersion": 1,
        "eventType": "fact",
        "runtime": "custom",
        **scope,
        "text": text,
        "kind": "preference",
        "subjectKey": "user",
        "confidence": 1,
        "active": True,
        "sourceEventId": f"write of {text}",
        "validFrom": AT,
        "visibility": "participant",
        "trustClass": "trusted",
        "provenance": "test",
        **given,
    }
    return {**event, "factId": identity.fact_id(event)}


def id_of(event: Mapping[str, Any]) -> str:
    return event.get("factId") or event["eventId"]


def given(
    event: Mapping[str, Any], *, line: str | None = None, appended_at: str = AT, session: str | None = None
) -> Delivery:
    """The delivery of an event."""
    return Delivery(
        line_hash="0" * 64,
        id=id_of(event),
        kind="event",
        event=event,
        appended_at=appended_at,
        line_key=line,
        session_key=session,
    )


def order(what: str, *, scope: Mapping[str, Any] | None = SCOPE, when: str = AT, **fields: Any) -> Delivery:
    body = {"what": what, "at": when, "nonce": "00" * 8, "runtime": "custom", **fields}
    if scope is not None:
        body["scope"] = dict(scope)
    id_ = identity.sha256_hex(identity.canonical_json(body))
    return Delivery(line_hash="0" * 64, id=id_, kind="order", event=body, appended_at=when)


def session_key(session: str = "s-1", scope: Mapping[str, Any] = SCOPE) -> str:
    return keys.session_key(runtime="custom", external_session_id=session, scope=scope)


WRITES = ("upsert", "link", "delete", "set_vectors")
CALLS = (*WRITES, "find", "edges", "edges_into", "with_vectors")


class CountingStore:
    """Another store, with its calls counted. `fault` sees each call first and may raise."""

    def __init__(self, store: port.Store, fault: Callable[[str, str, Any], None] | None = None) -> None:
        self._store = store
        self.fault = fault
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            label = args[0] if isinstance(args[0], str) else args[0].type
            self.calls[f"{name} {label}"] += 1
            if self.fault is not None:
                self.fault(name, label, args[1] if len(args) > 1 else args[0])
            return real(*args, **kwargs)

        return call

    @property
    def writes(self) -> int:
        return sum(count for name, count in self.calls.items() if name.split()[0] in WRITES)


class Shelf:
    """Recent writes in a dictionary."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Mapping[str, Any]] = {}

    def put_all(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self.entries.update({(scope_key, entry["id"]): entry for scope_key, entry in entries})

    def drop_all(self, entries: Sequence[tuple[str, str]]) -> None:
        for key in entries:
            self.entries.pop(key, None)


def records(store: port.Store, label: str, **where: Any) -> Sequence[port.Record]:
    return store.find(label, where).records
