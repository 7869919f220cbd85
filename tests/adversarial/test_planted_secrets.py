"""What was said stays where it belongs: words, secrets, people and sessions are planted, and looked for elsewhere.

A whole machine as `memory-tasks up` starts it (Redis, worker, agent, Flower), with the hooks of Claude Code in front
and RushDB behind it. While a message is on its way, and after the end, every place is read that anybody could look at.

    words      what the user and the model said: journal, kept prompts, queue, recent writes, store; nowhere else
    sessions   as words: an event carries its session's id
    people     the raw participant: nowhere at all
    secrets    nowhere at all
"""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis as redis_py

from producer.memory import AgentMemory
from producer.scope import HostContext
from tests.acceptance.machine import Machine, free_port, machine, until
from tests.acceptance.test_up import flower, start_up
from tests.conftest import Tell
from tests.rushdb_server import RunningServer, rushdb_server

PASSWORD = "grebe-and-heron"
PEOPLE = ("okonkwo.maya.7431@example.org", "okonkwo")
SESSIONS = ("sess-quillfeather-991", "prompt-quillfeather-1")
WORDS = ("zanzibarquokka", "velvetthunderclap", "mothballcassowary", "poisonwombatine")
_B64 = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
SECRETS = {
    "anthropic key": "sk-ant-api03-Zq8Zq8Zq8Xw2Xw2Xw2Lk9Lk9Lk9Pm4Pm4Pm4Rt6Rt6Rt6-Yb1Yb1AA",
    "github token": "ghp_Zq8Xw2Lk9Pm4Rt6Yb1Zq8Xw2Lk9Pm4Rt6Yb1",
    "aws key": "AKIAZQ8XW2LK9PM4RT6Y",
    "database password": "hunter2heron",
    "private key": _B64,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJoZXJvbiJ9.Zq8Xw2Lk9Pm4Rt6Yb1Zq8Xw2Lk9Pm4Rt6Yb1abc",
    "assigned password": "Tr0ubadour-heron-99",
}
LEAKY = (
    f"use {SECRETS['anthropic key']} and {SECRETS['github token']}, aws_access_key_id={SECRETS['aws key']}, "
    f"postgres://maya:{SECRETS['database password']}@db.internal/x, password={SECRETS['assigned password']}\n"
    f"-----BEGIN PRIVATE KEY-----\n{_B64}\n-----END PRIVATE KEY-----\nAuthorization: Bearer {SECRETS['jwt']}"
)
KINDS = {"words": WORDS, "sessions": SESSIONS, "people": PEOPLE, "secrets": tuple(SECRETS.values())}
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{40,}")


@dataclass
class Sweep:
    """Looks for what was planted, and counts what it looked at."""

    looked_at: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    def look(self, what: str, data: bytes | str, *, where: str, allowed: tuple[str, ...] = ()) -> None:
        """`allowed`: kinds that may stand there. Also looked at: the same decoded, where it holds base64."""
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        self.looked_at[what] += 1
        self.looked_at[f"{what}, bytes"] += len(raw)
        for form in (raw, *self._decoded(raw)):
            for kind, planted in KINDS.items():
                if kind not in allowed:
                    self.found += [f"{kind} in {where}: {one[:12]}…" for one in planted if one.encode() in form]

    def _decoded(self, raw: bytes) -> Iterator[bytes]:
        for run in _BASE64.finditer(raw):
            whole = len(run[0]) - len(run[0]) % 4
            yield base64.b64decode(run[0][:whole])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with rushdb_server(tmp_path_factory.mktemp("rushdb") / "data.sqlite") as made:
        yield made


@pytest.fixture
def made(tmp_path: Path, server: RunningServer) -> Iterator[Machine]:
    where = {"MEMORY_STORE_URL": f"rushdb+{server.url}", "MEMORY_STORE_TOKEN": server.token}
    with machine(tmp_path, MEMORY_FLOWER_PASSWORD=PASSWORD, **where) as one:
        yield one


def capture_everything(made: Machine, server: RunningServer) -> list[str]:
    """Turns and facts with all that must not get around; ids of those that RushDB refuses, quoting them."""
    made.connect_claude_code(participant=PEOPLE[0])
    session, prompt = SESSIONS
    made.submit(f"about the {WORDS[0]}: {LEAKY}", session=session, prompt_id=prompt)
    made.answer(f"the {WORDS[1]} says {LEAKY}", session=session, prompt_id=prompt)
    for number, (offset, secret) in enumerate(zip((5990, 5975), ("anthropic key", "assigned password"), strict=True)):
        prompt, split = f"{SESSIONS[1]}-{number}", f"password={SECRETS[secret]}"  # by the bound
        made.submit("x " * (offset // 2) + split, session=session, prompt_id=prompt)
        made.answer("y " * (offset // 2) + split, session=session, prompt_id=prompt)
    context = HostContext(
        runtime="hermes",
        platform="telegram",
        agent_id="hermes",
        profile_id="default",
        session_id=session,
        user=PEOPLE[0],
        chat_type="dm",
        sandboxed=False,
    )
    with AgentMemory(made.settings, scope=context, host="hermes", dispatches=False) as memory:
        kept = memory.remember(
            text=f"{WORDS[2]} {LEAKY}",
            kind=f"token={SECRETS['github token']}",
            subject_key=SECRETS["aws key"],
            provenance=f"https://maya:{SECRETS['database password']}@host/path",
            session_id=SECRETS["jwt"],
            source_event_id=SECRETS["anthropic key"],
        )
        assert kept, kept
        label = memory.remember(  # a scope label that holds a secret is refused, and the refusal does not say it
            text="x", kind="note", subject_key="s", scope=scope_label(context, SECRETS["github token"])
        )
        assert not label and SECRETS["github token"] not in repr(label)
        memory.recall(f"{WORDS[0]} {LEAKY}", session_id=session)
        made.submit(f"{WORDS[0]} again?", session="another", prompt_id="another")
    made.wait_until_settled()
    server.fail("quote", on="write", label="MEMORY_FACT")
    with AgentMemory(made.settings, scope=context, host="hermes", dispatches=False) as memory:
        dead = [
            memory.remember(text=f"{WORDS[3]} {number} {LEAKY}", kind="note", subject_key="s") for number in range(3)
        ]
        assert all(dead)
    made.wait_until_settled()
    server.clear_faults()
    return [one.id for one in dead]


def scope_label(context: HostContext, label: str) -> HostContext:
    return HostContext(**{**{name: getattr(context, name) for name in context.__slots__}, "profile_id": label})


# -- the places -------------------------------------------------------------------------------------------------------


def look_at_redis(sweep: Sweep, made: Machine) -> set[str]:
    """Names and values of every key; the families of names."""
    texts = ("words", "sessions")
    families = set()
    with redis_py.Redis.from_url(f"unix://{made.state}/redis/redis.sock") as client:
        for name in client.scan_iter("*"):
            sweep.look("Redis keys", name, where=f"the name of {name[:40]!r}")
            holds_text = name.startswith((b"memory:recent:", b"memory:unacked")) or name in (
                b"memory",
                b"memory.backlog",
            )
            families.add(re.sub(rb"[0-9a-f-]{32,}", b"#", name).decode())
            for value in values_of(client, name):
                allowed = texts if holds_text else ()
                sweep.look("Redis values", value, where=f"the value of {name[:40]!r}", allowed=allowed)
    return families


def values_of(client: redis_py.Redis, name: bytes) -> list[bytes]:
    match client.type(name):
        case b"string":
            return [client.get(name) or b""]
        case b"hash":
            return [part for pair in client.hgetall(name).items() for part in pair]
        case b"list":
            return client.lrange(name, 0, -1)
        case b"set":
            return list(client.smembers(name))
        case b"zset":
            return [member for member, _ in client.zrange(name, 0, -1, withscores=True)]
        case b"stream":
            return [json.dumps(repr(client.xrange(name))).encode()]
    return []


def look_at_flower(sweep: Sweep, port: int, ids: list[str]) -> None:
    pages = ["/", "/workers", "/tasks", "/broker", "/metrics", "/healthcheck", "/api/tasks?limit=1000", "/api/workers"]
    pages += ["/api/workers?refresh=true", "/api/queues/length", "/api/task/types"]
    pages += [f"/{kind}/{id_}" for id_ in ids for kind in ("task", "api/task/info")]
    for path in pages:
        page = flower(path, port)
        sweep.look("Flower pages", page, where=f"Flower's {path[:30]}")
        sweep.looked_at["Flower pages with a task in them"] += b"memory.ingest" in page


def assert_flower_is_closed(port: int, processes: list[psutil.Process]) -> None:
    """Every page and the API; `/metrics` is open, which is why Flower listens on loopback only; nothing else does."""
    for path in ("/", "/workers", "/tasks", "/broker", "/api/tasks", "/api/workers", "/api/queues/length", "/task/x"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
        with refused.value:
            assert refused.value.code == 401, path
    connections = [one for process in processes for one in process.net_connections("inet")]
    assert {tuple(one.laddr) for one in connections if one.status == psutil.CONN_LISTEN} == {("127.0.0.1", port)}


def look_at_commands(sweep: Sweep, made: Machine, dead: list[str]) -> None:
    for words in (
        ("status", "--json"),
        ("doctor",),
        ("dead-letters", "list"),
        ("dead-letters", "list", "--json"),
        ("dead-letters", "show", dead[0], "--json"),
        ("replay", "0" * 64),
        ("metrics",),
        ("facts", "check"),
        ("facts", "check", "--everywhere", "--json"),
        ("facts", "show", dead[0]),  # of another scope than the one that asks
        ("facts", "history", dead[0]),
        ("facts", "history", LEAKY),
    ):
        done = made.run(*words)
        sweep.look("commands", done.stdout + done.stderr, where=" ".join(words[:2]))


def look_at_processes(sweep: Sweep, processes: list[psutil.Process]) -> None:
    for process in processes:
        sweep.look("processes", "\0".join(process.cmdline()), where=f"the command line of {process.pid}")
        sweep.look("processes", json.dumps(process.environ()), where=f"the environment of {process.pid}")


def look_at_files(sweep: Sweep, made: Machine, logs: Path) -> None:
    texts = ("words", "sessions")
    for path in (*sorted(made.home.rglob("*")), *sorted(logs.glob("*.log"))):
        sweep.look("file names", str(path), where=f"the name of {path.name[:40]}")
        if path.is_file():
            relative = path.relative_to(made.home).as_posix() if path.is_relative_to(made.home) else path.name
            # The journal, kept prompts, and Redis' own files, which hold what its keys hold.
            holds_text = relative.startswith(("state/journal/segment-", "state/journal/prompts/", "state/redis/"))
            sweep.look("files", path.read_bytes(), where=relative, allowed=texts if holds_text else ())
            if path.suffix == ".log":
                sweep.looked_at["lines of logs"] += path.read_bytes().count(b"\n")


def test_nothing_that_was_said_gets_around(made: Machine, server: RunningServer, tmp_path: Path, tell: Tell) -> None:
    sweep = Sweep()
    port = free_port()
    up = start_up(made, flower_port=port)
    until(lambda: flower("/healthcheck", port), "Flower", said=made.logged)
    assert_flower_is_closed(port, made.tree_of(up))
    dead = capture_everything(made, server)

    ids = [value["id"] for _, value in made.lines("event")]
    server.fail("hang", on="write", label="EPISODE")  # a message is in a worker's hands, and in its broker
    made.submit(f"the {WORDS[0]} once more", session=SESSIONS[0], prompt_id="late")
    made.answer(f"{WORDS[1]} {LEAKY}", session=SESSIONS[0], prompt_id="late")
    until(lambda: server.faults_taken().get("hang"), "a message on its way", said=made.logged)
    families = look_at_redis(sweep, made)
    look_at_flower(sweep, port, [*ids[:3], *dead])
    look_at_processes(sweep, made.tree_of(up))
    server.clear_faults()
    server.release()
    look_at_commands(sweep, made, dead)
    made.wait_until_settled()
    families |= look_at_redis(sweep, made)
    look_at_flower(sweep, port, dead)
    assert up.stop() == 0
    look_at_files(sweep, made, tmp_path)
    for label in ("EPISODE", "MEMORY_FACT", "MEMORY_MARK", "SESSION"):
        for record in server.records(label):
            sweep.look("records", json.dumps(dict(record.properties)), where=label, allowed=("words", "sessions"))
    # What was refused is dead with a code, and what went well was stored: the planted words did travel all the way.
    listed = {one["id"]: one["reason"] for one in made.json("dead-letters", "list")["deadLetters"]}
    assert set(dead) <= set(listed) and {listed[id_] for id_ in dead} == {"store_refused:422"}
    stored = json.dumps([dict(record.properties) for record in server.records("EPISODE")])
    assert WORDS[0] in stored and WORDS[1] in stored and SESSIONS[0] in stored
    assert any(name.startswith("memory:recent:") for name in families)
    assert sweep.looked_at["Flower pages with a task in them"] >= 5, sweep.looked_at
    counted = ", ".join(f"{count} {what}" for what, count in sorted(sweep.looked_at.items()))
    tell(f"planted-secret sweep: {len(set(sweep.found))} found in {counted}")
    assert sorted(set(sweep.found)) == []


def test_the_sweep_finds_what_it_looks_for() -> None:
    """Plain, escaped in JSON, and in the base64 of a message's body."""
    for planted in (*WORDS, *SECRETS.values(), *PEOPLE):
        body = base64.b64encode(json.dumps([[], {"line": f"xx {planted} yy"}, {}]).encode()).decode()
        for form in (planted, json.dumps({"a": planted}), json.dumps({"body": body})):
            sweep = Sweep()
            sweep.look("tests", form, where="here")
            assert sweep.found, form


def test_a_host_sees_no_more_than_reasons(tmp_path: Path) -> None:
    """Whatever is wrong with a capture, the answer and the exception behind it name codes and fields."""
    with machine(tmp_path) as made, AgentMemory(made.settings, host="python", dispatches=False) as memory:
        answers: list[Any] = [
            memory.remember(text=LEAKY, kind=LEAKY * 9, subject_key="s", scope=good()),
            memory.remember(text=LEAKY, kind="", subject_key="s", scope=good()),
            memory.remember(text=LEAKY, kind="k", subject_key="s", scope=good(), valid_from=LEAKY),
            memory.remember(text=LEAKY, kind="k", subject_key="s", scope=good(), supersedes=LEAKY),
            memory.remember(text=LEAKY, kind="k", subject_key="s", scope=good(user=f"{PEOPLE[0]}\n")),
            memory.remember(text=LEAKY, kind="k", subject_key="s", scope=good(chat_type=LEAKY)),
            memory.capture_turn(session_id=LEAKY * 9, user_text="u", assistant_text="a", scope=good()),
            memory.capture_turn(session_id="s", user_text="u", assistant_text="a", scope=good(), observed_at=LEAKY),
            memory.capture_turn(session_id="s", user_text="u", assistant_text="a", scope=good(), visibility=LEAKY),
        ]
        assert not any(answers)
        sweep = Sweep()
        sweep.look("answers", repr(answers) + json.dumps(memory.status()), where="an answer")
        assert sweep.found == []


def good(**changed: Any) -> HostContext:
    return HostContext(
        **{
            "runtime": "custom",
            "platform": "local",
            "agent_id": "a",
            "profile_id": "p",
            "session_id": "s",
            "user": PEOPLE[0],
            "sandboxed": False,
            **changed,
        }
    )
