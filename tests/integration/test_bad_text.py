"""F33: what is no proper text, as text, as agent, as participant and as session: stored, and recalled by its owner.

That it has one id in Python and in JavaScript is shown by the vectors of the reference (`tests/unit/test_identity.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from producer.memory import AgentMemory
from producer.scope import HostContext
from tests.acceptance.machine import machine
from tests.redis_server import redis_server

BAD = {
    "high": "\ud83d",
    "low": "\udc00x",
    "swapped": "\udc00\ud83d",
    "line separator": "a\u2028b",
    "byte order": "a\ufeffb\ufffe",
    "emoji at the bound": "x" * 5999 + "🚀🚀",
    "NUL": "a\0b",
    "bytes": b"\xff\xfe heron",
    "half a character": "🚀".encode()[:3] + b" heron",
}


def person(bad: str | bytes, name: str) -> HostContext:
    """Bad text in every part; one that is refused there (a NUL, bytes) or too long is replaced by its name."""
    part = bad if isinstance(bad, str) and len(bad) < 100 and "\0" not in bad else name
    return HostContext(
        runtime="hermes",
        platform="telegram",
        agent_id=f"hermes {part}",
        profile_id="default",
        session_id=f"session {part}",
        user=f"maya {part} {name}",
        chat_type="dm",
        sandboxed=False,
    )


def test_bad_text_is_stored_once_under_one_line_each_and_recalled(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as redis, machine(tmp_path, MEMORY_BROKER_URL=redis.broker_url) as made:
        made.start_agent()
        made.start_worker()
        kept: dict[str, Any] = {}
        with AgentMemory(made.settings, host="hermes", dispatches=False) as memory:
            for name, bad in BAD.items():
                text = (
                    bad + f" the grebe of {name}".encode() if isinstance(bad, bytes) else f"{bad} the grebe of {name}"
                )
                owner = person(bad, name)
                kept[name] = memory.capture_turn(
                    session_id=owner.session_id or "", user_text=text, assistant_text=bad, scope=owner
                )
                assert kept[name], (name, kept[name])
                fact = memory.remember(text=text[-200:], kind="note", subject_key=owner.agent_id or "", scope=owner)
                assert fact, (name, fact)
            refused = memory.remember(text="x", kind="note", subject_key="s", scope=person("\0", "\0"))
            assert not refused and refused.reason == "control_character"
        made.wait_until_settled()
        events = [value for _, value in made.lines("event")]
        assert len(events) == len({value["id"] for value in events}) == 2 * len(BAD)
        assert set(made.receipts().values()) == {"stored"}
        assert all(len(made.records("EPISODE", {"eventId": one.id})) == 1 for one in kept.values())
        with AgentMemory(made.settings, host="hermes", dispatches=False) as memory:
            for name, bad in BAD.items():
                found = memory.recall_memories("which grebe?", scope=person(bad, name), limit=10)
                assert {one.label for one in found.memories} >= {"MEMORY_FACT"}, name
                assert all(f"grebe of {name}" in one.text or "x" * 99 in one.text for one in found.memories), name
                "".join(one.text for one in found.memories).encode("utf-8")
