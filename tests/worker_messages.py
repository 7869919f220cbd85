"""Journal lines and signed messages for tests of the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from producer import capture, identity, message, scope
from producer.dispatcher import Publication
from producer.journal import line as lines

__all__ = ["AT", "JOURNAL", "OTHER_SCOPE", "SCOPE", "episode", "fact", "item", "line", "order", "publication"]

AT = "2026-12-01T12:00:00.000Z"
JOURNAL = "0123456789abcdef" * 2
SCOPE = scope.Scope(
    agent_id="agent",
    profile_id="default",
    privacy_scope="private",
    participant_scope_hash=identity.sha256_hex("someone"),
    sandbox_eligible=False,
)
OTHER_SCOPE = scope.Scope(
    agent_id="other",
    profile_id="default",
    privacy_scope="private",
    participant_scope_hash=identity.sha256_hex("someone else"),
    sandbox_eligible=False,
)
SECRET_WORDS = "the heron nests behind the boathouse"


def episode(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A valid episode event; its texts hold `SECRET_WORDS`, which nobody may find in a log."""
    asked: dict[str, Any] = {
        "scope": SCOPE,
        "runtime": "custom",
        "external_session_id": "session-1",
        "source_event_id": f"turn-{number}",
        "turn_index": 0,
        "user_text": f"Where does it nest, number {number}?",
        "assistant_text": f"{SECRET_WORDS} ({number})",
        "observed_at": AT,
        "conversation_kind": "direct",
        "visibility": "participant",
        "trust_class": "trusted",
        "origin_class": "test",
        "provenance": "test",
    }
    return capture.build_episode(**{**asked, **changes}).event


def fact(text: str = SECRET_WORDS, **changes: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "scope": SCOPE,
        "runtime": "custom",
        "text": text,
        "kind": "place",
        "subject_key": "heron",
        "source_event_id": "write-1",
        "valid_from": AT,
        "visibility": "participant",
        "trust_class": "trusted",
        "provenance": "test",
    }
    return capture.build_fact(**{**asked, **changes}).event


def line(event: Mapping[str, Any], **body: Any) -> lines.Line:
    """The journal's line of an event."""
    id_ = event.get("eventId") or event.get("factId") or "0" * 64
    return lines.parse(lines.encode(kind="event", id=id_, appended_at=AT, body={"event": dict(event), **body}))


def order(value: Mapping[str, Any]) -> lines.Line:
    """The journal's line of an order."""
    return lines.parse(
        lines.encode(kind="order", id=capture.order_id(value), appended_at=AT, body={"order": dict(value)})
    )


def item(of: lines.Line | str, **changes: Any) -> message.Item:
    text = of if isinstance(of, str) else of.text
    return message.Item(**{"line": text, "journal_id": JOURNAL, **changes})


def publication(
    items: Sequence[message.Item],
    key: message.Key,
    *,
    task_id: str,
    queue: str = message.QUEUE,
    **more: Any,
) -> Publication:
    """A signed message, ready for the publisher that hosts use."""
    kwargs = message.arguments(items, **more)
    return Publication(task_id=task_id, queue=queue, kwargs=kwargs, headers=message.sign(kwargs, key), count=len(items))
