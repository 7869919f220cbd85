"""One journal line of a history, and the hands that write them: facts, turns, things, links and orders of one scope."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from producer import capture, keys
from producer.journal import line as lines
from producer.journal import segments
from producer.scope import Scope

__all__ = ["Said", "Writer", "scopes_of"]

_YESTERDAY_S = time.time() - 86_400.0  # nothing claims to be of the future


@dataclass(frozen=True, kw_only=True)
class Said:
    """One line. `body` is its event or order."""

    kind: str
    id: str
    body: Mapping[str, Any]
    scope_key: str
    text: str
    line_key: str = ""
    session_key: str = ""

    @property
    def hash(self) -> str:
        return lines.line_hash(self.text)

    @property
    def what(self) -> str:
        """fact, episode, entity, link, retract or forget."""
        return str(self.body.get("eventType") or self.body.get("what"))


def scopes_of(world: str, number: int) -> tuple[Scope, Scope]:
    """Ours, and a neighbour's that differs in its privacy alone: a fact said in both has one id in two scopes."""
    participant = hashlib.sha256(f"{world} {number}".encode()).hexdigest()
    ours, theirs = (
        Scope(
            agent_id="agent",
            profile_id="default",
            privacy_scope=privacy,
            participant_scope_hash=participant,
            sandbox_eligible=False,
        )
        for privacy in ("private", "shared")
    )
    return ours, theirs


class Writer:
    """Writes lines of one scope. The same calls in another scope write the same history there."""

    def __init__(self, scope: Scope, *, began_s: float = _YESTERDAY_S) -> None:
        """`began_s`: what the host's clock said when this began, unix time."""
        self.scope = scope
        self._began_s = began_s
        self.key = keys.scope_key(scope)
        self._orders = 0

    def at(self, seconds: float) -> str:
        return segments.iso_of_ms(int((self._began_s + seconds) * 1000))

    def session(self, name: str) -> str:
        return keys.session_key(runtime="custom", external_session_id=self._external(name), scope=self.scope)

    def _external(self, name: str) -> str:
        """The host's name of a conversation. Some scopes share it, and with it the eventIds of their turns."""
        return f"{name} at {self.key[0]}"

    def fact(self, text: str, *, source: str, at: float, line: str = "", session: str = "", **more: Any) -> Said:
        """`line`: the subject of a single-valued kind that it stands on."""
        event = capture.build_fact(
            scope=self.scope,
            runtime="custom",
            text=text,
            kind="preference",
            subject_key=line or "user",
            source_event_id=source,
            valid_from=self.at(at),
            visibility="participant",
            trust_class=more.pop("trust_class", "trusted"),
            provenance="histories",
            **more,
        ).event
        stands_on = keys.line_key_of_subject(scope_key=self.key, subject_key=line, kind="preference") if line else ""
        session_key = self.session(session) if session else ""
        return self._line("event", event["factId"], event, line_key=stands_on, session_key=session_key)

    def turn(self, text: str, *, source: str, at: float, session: str, on_prompt: bool = False, **more: Any) -> Said:
        """`on_prompt`: a later one of the same source takes its place."""
        event = capture.build_episode(
            scope=self.scope,
            runtime="custom",
            external_session_id=self._external(session),
            source_event_id=source,
            turn_index=0,
            user_text="What does it say?",
            assistant_text=text,
            observed_at=self.at(at),
            conversation_kind="direct",
            visibility="participant",
            trust_class=more.pop("trust_class", "trusted"),
            origin_class="test",
            provenance="histories",
            **more,
        ).event
        session_key = self.session(session)
        stands_on = keys.line_key_of_prompt(session_key=session_key, source_event_id=source) if on_prompt else ""
        return self._line("event", event["eventId"], event, line_key=stands_on, session_key=session_key)

    def thing(self, name: str, version: int, *, label: str, source: str, at: float) -> Said:
        order = capture.build_entity_order(
            scope=self.scope,
            runtime="custom",
            label=label,
            kind="kind",
            name=name,
            properties={"version": version},
            source_event_id=source,
            trust_class="trusted",
            provenance="histories",
            at=self.at(at),
        )
        return self._order(order)

    def key_of_thing(self, name: str, label: str) -> str:
        return keys.object_key(label=label, scope_key=self.key, kind="kind", name=name)

    def link(self, source: tuple[str, str], target: tuple[str, str], *, at: float) -> Said:
        """Between two ends, each a label and a key."""
        return self._order(
            capture.build_link_order(
                scope=self.scope, runtime="custom", type="ABOUT", source=source, target=target, at=self.at(at)
            )
        )

    def retract(self, target: str, *, at: float) -> Said:
        return self._order(
            capture.build_retract_order(scope=self.scope, runtime="custom", target=target, at=self.at(at))
        )

    def forget(self, target: str | Mapping[str, str], *, at: float) -> Said:
        """An id, or a group."""
        named: dict[str, Any] = {"target": target} if isinstance(target, str) else {"group": target}
        return self._order(capture.build_forget_order(scope=self.scope, runtime="custom", at=self.at(at), **named))

    def _order(self, order: dict[str, Any]) -> Said:
        self._orders += 1
        order["nonce"] = hashlib.sha256(f"{self.key} {self._orders}".encode()).hexdigest()[:32]
        return self._line("order", capture.order_id(order), order)

    def _line(self, kind: str, id_: str, body: dict[str, Any], *, line_key: str = "", session_key: str = "") -> Said:
        more = {name: value for name, value in (("lineKey", line_key), ("sessionKey", session_key)) if value}
        name = "event" if kind == "event" else "order"
        text = lines.encode(kind=kind, id=id_, appended_at=self.at(0), body={name: body, **more})
        return Said(
            kind=kind,
            id=id_,
            body=json.loads(json.dumps(body)),
            scope_key=self.key,
            text=text,
            line_key="" if body.get("supersedesFactId") else line_key,  # a name beats the clock
            session_key=session_key,
        )
