"""The demo: a conversation through the whole path, with the worker killed in the middle, then recalled and counted.

It runs on real parts: journal, dispatcher, embedded server, Celery worker process, store. Of the caller's settings it
takes the store's and the embedder's; journal, broker and keys are its own, in a directory that is removed afterwards:
a killed worker and short timeouts are nothing for a broker that others use.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from memory_tasks import supervisor, waits
from producer import config, errors, outcomes, scope, store
from producer.memory import AgentMemory
from producer.store import port

__all__ = ["DemoResult", "conversation", "run"]

# Short, so that a message held by the killed worker comes back within seconds, and one that died on its way from the
# broker into the worker (kombu pops before it notes) is published again by the journal. All of it is on this machine.
_TIMES = {
    "MEMORY_VISIBILITY_TIMEOUT_S": "8",
    "MEMORY_RETRY_MAX_COUNTDOWN_S": "2",
    "MEMORY_STORE_LATE_S": "2",
    "MEMORY_REPUBLISH_AFTER_S": "10",
}
_THE_CALLERS = ("MEMORY_STORE_URL", "MEMORY_STORE_TOKEN", "MEMORY_STORE_TIMEOUT_S", "MEMORY_EMBED_")
_FLUSH_DEADLINE_S = 150.0


@dataclass(kw_only=True)
class DemoResult:
    captured: int = 0
    stored: int = 0
    duplicates: int = 0
    lost: int = 0
    settled: bool = False  # every line of the journal has its receipt
    killed_pid: int = 0
    stored_at_kill: int = 0
    seconds: float = 0.0
    recalled: list[dict[str, Any]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        counts_are_right = self.captured == self.stored > 0 and self.lost == 0 and self.duplicates == 0
        return counts_are_right and self.settled and all(r["good"] for r in self.recalled)


def conversation() -> dict[str, Any]:
    """The bundled conversation: sessions of turns, facts, questions with what a good answer holds."""
    return json.loads(resources.files("memory_tasks").joinpath("data/demo_conversation.json").read_text("utf-8"))


def environment(environ: Mapping[str, str], state_dir: Path) -> dict[str, str]:
    """The demo's environment: its own state directory and secrets, the caller's store."""
    env = supervisor.child_environment(environ)
    for name in [name for name in env if name.startswith(config.PREFIX) and not name.startswith(_THE_CALLERS)]:
        del env[name]
    for name in ("MEMORY_SCOPE_SALT", "MEMORY_PRODUCER_KEY", "MEMORY_CACHE_KEY"):
        env[name] = secrets.token_hex(32)
    return {**env, **_TIMES, "MEMORY_STATE_DIR": str(state_dir)}


def run(environ: Mapping[str, str], *, say: Callable[[str], None], keep: bool = False) -> DemoResult:
    """Run it and count. Raises `errors.IngestError` when the parts cannot be started."""
    state_dir = Path(tempfile.mkdtemp(prefix="memory-demo-"))
    env = environment(environ, state_dir)
    settings = config.load(env)
    parts = [supervisor.worker_part(supervisor.worker_command(concurrency=8), grace_s=20.0)]
    boss = supervisor.Supervisor(parts=parts, state_dir=state_dir, env=env, own_redis=True, say=say)
    result, began = DemoResult(), time.monotonic()
    try:
        boss.start()
        _drive(settings, boss, result, say)
    finally:
        result.seconds = round(time.monotonic() - began, 1)
        boss.stop()
        if keep:
            say(f"kept {state_dir}")
        else:
            shutil.rmtree(state_dir, ignore_errors=True)
    return result


def _drive(
    settings: config.ProducerConfig, boss: supervisor.Supervisor, result: DemoResult, say: Callable[[str], None]
) -> None:
    talk = conversation()
    context = scope.HostContext(
        runtime="custom",
        platform="local",
        agent_id="demo",
        profile_id="default",
        session_id="demo",
        user=secrets.token_hex(8),  # a scope of its own: the store may be shared
        sandboxed=False,
    )
    who = scope.scope_of(context, salt=settings.scope_salt, salt_required=True)
    facts: dict[str, str] = {}
    ids: list[tuple[str, str]] = []

    def keep_id(label: str, outcome: outcomes.Outcome) -> str:
        if isinstance(outcome, outcomes.Refused):
            raise errors.SettingsRefused(
                "MEMORY_JOURNAL_DIR", f"capture was refused: {outcome.reason} {outcome.detail}"
            )
        ids.append((label, outcome.id))
        return outcome.id

    with AgentMemory(settings, scope=who) as memory:
        turns = [(s, n, t) for s in talk["sessions"] for n, t in enumerate(s["turns"])]
        half = len(turns) // 2

        def capture(part: Sequence[tuple[dict[str, Any], int, dict[str, str]]]) -> None:
            for session, number, turn in part:
                outcome = memory.capture_turn(
                    session_id=session["id"],
                    user_text=turn["user"],
                    assistant_text=turn["assistant"],
                    turn_index=number,
                    source_event_id=f"{session['id']}/{number}",
                    observed_at=f"{session['day']}T09:{number:02d}:00.000Z",
                )
                keep_id("EPISODE", outcome)

        capture(turns[:half])
        say(f"captured {half} turns; each was on disk before capture returned")
        backend = store.open_store(settings.store_url, token=settings.store_token)
        try:
            _wait(lambda: _stored(backend, ids) > 0, 60.0, boss)
            capture(turns[half:])
            for fact in talk["facts"]:
                facts[fact["key"]] = keep_id(
                    "MEMORY_FACT",
                    memory.remember(
                        text=fact["text"],
                        kind=fact["kind"],
                        subject_key=fact["subjectKey"],
                        valid_from=f"{fact['day']}T09:30:00.000Z",
                        supersedes=facts[fact["supersedes"]] if fact["supersedes"] else None,
                    ),
                )
            result.stored_at_kill = _stored(backend, ids)
            result.killed_pid = boss.kill("worker")
            say(f"killed the worker (SIGKILL, pid {result.killed_pid}): {result.stored_at_kill} of {len(ids)} stored")
            result.settled = _wait(lambda: memory.flush(deadline_s=0.5), _FLUSH_DEADLINE_S, boss)
            _count(backend, ids, result)
            for question in talk["questions"]:
                found = memory.recall_memories(question["ask"], session_id="demo-recall", deadline_ms=2000)
                texts = [m.text for m in found.memories]
                everything = "\n".join(texts)
                good = all(e in everything for e in question["expect"]) and not any(
                    n in everything for n in question.get("never", ())
                )
                result.recalled.append({"question": question["ask"], "memories": texts, "good": good})
        finally:
            backend.close()


def _wait(done: Callable[[], bool], deadline_s: float, boss: supervisor.Supervisor) -> bool:
    """Until `done` or the deadline, and which; what did not happen by then shows in the result."""

    def watched() -> bool:
        boss.watch()
        return done()

    return waits.until(watched, deadline_s=deadline_s, most_s=0.02)


def _find(backend: port.Store, ids: Sequence[tuple[str, str]]) -> list[str]:
    """The ids of all records of these events, one per record (so doubled ones show twice)."""
    found: list[str] = []
    for label, key in (("EPISODE", "eventId"), ("MEMORY_FACT", "factId")):
        wanted = [i for kind, i in ids if kind == label]
        if wanted:
            found += [str(r.get(key)) for r in backend.find(label, {key: {"$in": wanted}}).records]
    return found


def _stored(backend: port.Store, ids: Sequence[tuple[str, str]]) -> int:
    try:
        return len(_find(backend, ids))
    except errors.Retryable:
        return 0


def _count(backend: port.Store, ids: Sequence[tuple[str, str]], result: DemoResult) -> None:
    found = _find(backend, ids)
    result.captured = len(ids)
    result.stored = len(set(found))
    result.duplicates = len(found) - len(set(found))
    result.lost = len({i for _, i in ids} - set(found))
