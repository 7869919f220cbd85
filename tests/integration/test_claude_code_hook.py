"""The Claude Code hooks as Claude Code starts them: one process per event, JSON on stdin."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import agent, connect
from producer import counts
from producer.config import ProducerConfig
from producer.hosts import claude_code, claude_transcript, hook, launch
from producer.journal import Journal
from producer.recall import engine
from producer.recall.merging import Memory
from producer.scope import Scope
from tests.integration.test_agent import running
from tests.redis_server import RedisServer, redis_server

CPU_LIMIT_S = 3.0  # ten times the benchmark's 300 ms; of CPU time, which other work on the machine does not stretch
SCOPE = Scope(
    agent_id="claude-code",
    profile_id="default",
    privacy_scope="private",
    participant_scope_hash="a" * 64,
    sandbox_eligible=False,
)


@dataclass
class Host:
    """Claude Code on one machine, as far as hooks can tell."""

    directory: Path
    socket: Path
    environment: dict[str, str] = field(default_factory=dict)
    limit: str = ""  # shell commands before the hook's

    @property
    def journal_dir(self) -> Path:
        return self.directory / "journal"

    @property
    def config_path(self) -> Path:
        return self.directory / "hook.json"

    @property
    def transcript(self) -> Path:
        return self.directory / "transcript.jsonl"

    def configure(self, **changed: Any) -> None:
        value = {
            "journal_dir": str(self.journal_dir),
            "agent_socket": str(self.socket),
            "agent_id": "claude-code",
            "profile_id": "default",
            "participant_scope_hash": "a" * 64,
        }
        self.config_path.write_text(json.dumps({**value, **changed}))

    def fire(self, stdin: bytes | Mapping[str, Any]) -> bytes:
        """Run the hook; its stdout. It must be silent on stderr, exit 0 and cost little."""
        data = stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode()
        before = cpu_of_children_s()
        done = subprocess.run(
            ["/bin/sh", "-c", self.limit + claude_code.command(self.config_path)],
            input=data,
            capture_output=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.directory), **self.environment},
            timeout=60,
        )
        assert cpu_of_children_s() - before < CPU_LIMIT_S
        assert done.returncode == 0 and done.stderr == b""
        return done.stdout

    def submit(self, prompt: str, *, prompt_id: str = "p-1", session: str = "s-1", **more: Any) -> bytes:
        return self.fire(self.base("UserPromptSubmit", prompt_id, session) | {"prompt": prompt} | more)

    def stop(self, answer: str | None, *, prompt_id: str = "p-1", session: str = "s-1", **more: Any) -> bytes:
        message = {"last_assistant_message": answer, "stop_hook_active": False} if answer is not None else {}
        return self.fire(self.base("Stop", prompt_id, session) | message | more)

    def base(self, event: str, prompt_id: str = "p-1", session: str = "s-1") -> dict[str, Any]:
        return {
            "session_id": session,
            "transcript_path": str(self.transcript),
            "cwd": str(self.directory),
            "hook_event_name": event,
            "prompt_id": prompt_id,
            "permission_mode": "default",
        }

    def events(self) -> list[Any]:
        """The journal's event lines."""
        if not self.journal_dir.is_dir():
            return []
        with Journal.open(
            self.journal_dir, max_bytes=1 << 30, reserve_bytes=1 << 22, segment_max_bytes=1 << 23
        ) as journal:
            return [located.line for located in journal.scan() if located.line.kind == "event"]

    def counted(self) -> dict[str, int]:
        return counts.read(self.journal_dir).get("claude-code", {})


def cpu_of_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="agent-") as short:
        made = Host(directory=tmp_path, socket=Path(short) / "agent.sock")
        made.configure()
        yield made


# -- what it does ----------------------------------------------------------------------------------------------------


def test_a_turn_is_captured_from_the_prompt_and_the_last_answer(host):
    assert host.submit("I prefer the Helix editor") == b""
    assert host.stop("Noted: Helix.") == b""
    (line,) = host.events()
    event = line.body["event"]
    assert (event["userText"], event["assistantText"]) == ("I prefer the Helix editor", "Noted: Helix.")
    assert (event["runtime"], event["externalSessionId"], event["sourceEventId"]) == ("custom", "s-1", "p-1")
    assert (event["turnIndex"], event["conversationKind"], event["provenance"]) == (0, "local", "claude-code:Stop")
    assert {name: event[name] for name in SCOPE.fields()} == SCOPE.fields()
    assert len(line.body["lineKey"]) == len(line.body["sessionKey"]) == 64
    assert host.counted() == {"asked": 1, "unanswered": 1, "seen": 1, "captured": 1}


def test_a_later_stop_of_the_same_prompt_stands_on_the_same_line_with_the_later_time(host):
    host.submit("question")
    rows = [
        {"type": "user", "promptId": "p-1", "message": {"content": "question"}},
        {"type": "assistant", "timestamp": "2026-12-01T10:00:00.500Z", "message": {"content": [{"type": "text"}]}},
    ]
    host.transcript.write_text("".join(json.dumps(row) + "\n" for row in rows))
    host.stop("first")
    with host.transcript.open("a") as file:
        file.write(json.dumps(rows[1] | {"timestamp": "2026-12-01T10:05:00.500Z"}) + "\n")
    host.stop("second", stop_hook_active=True)
    first, second = host.events()
    assert first.body["lineKey"] == second.body["lineKey"] and first.id != second.id
    assert first.body["event"]["observedAt"] == "2026-12-01T10:00:00.500Z"
    assert second.body["event"]["observedAt"] == "2026-12-01T10:05:00.500Z"


def test_context_comes_from_the_agent_in_claude_codes_form_and_once_per_conversation(host, tmp_path):
    with redis_server(tmp_path / "redis", persistent=False) as server:
        config = _config(host, server)
        with running(config):
            assert host.submit("nothing is known yet") == b""
            host.submit("My editor is Helix. Write \u2028 and </system> too", session="s-1")
            host.stop("Noted.", session="s-1")
            printed = json.loads(host.submit("Which editor do I use?", prompt_id="p-2", session="s-2"))
            assert list(printed) == ["hookSpecificOutput"]
            assert printed["hookSpecificOutput"]["hookEventName"] == "UserPromptSubmit"
            context = printed["hookSpecificOutput"]["additionalContext"]
            assert "Helix" in context and len(context) <= 8000 and "</system>" not in context
            assert host.submit("Which editor do I use?", prompt_id="p-3", session="s-2") == b""
            assert host.submit("Which editor do I use?", prompt_id="p-4", session="s-1") == b""
            # Only a summary is left of the conversation: it may be told again what it was told.
            for source in ("resume", "startup"):
                assert host.fire({**host.base("SessionStart", session="s-2"), "source": source}) == b""
            assert host.submit("Which editor do I use?", prompt_id="p-5", session="s-2") == b""
            assert host.fire({**host.base("SessionStart", session="s-2"), "source": "compact"}) == b""
            assert b"Helix" in host.submit("Which editor do I use?", prompt_id="p-6", session="s-2")
    assert (host.counted()["recalled"], host.counted()["compacted"]) == (2, 1)


def _config(host: Host, server: RedisServer) -> ProducerConfig:
    return ProducerConfig(
        state_dir=host.directory,
        journal_dir=host.journal_dir,
        store_url=f"sqlite:///{host.directory}/store.sqlite3",
        broker_url=server.broker_url,
        redis_url=server.url,
        agent_socket=host.socket,
        producer_key="p" * 32,
        cache_key="c" * 32,
        recall_deadline_ms=2000,
    )


def test_the_installer_writes_a_configuration_and_a_command_that_work(host, tmp_path):
    config = ProducerConfig(
        state_dir=tmp_path / "state",
        journal_dir=host.journal_dir,
        store_url="sqlite:////none",
        broker_url="redis://localhost:1",
        redis_url="redis://localhost:1",
        agent_socket=host.socket,
    )
    connect.connect_claude_code(tmp_path / "settings.json", config, scope=SCOPE, config_path=host.config_path)
    settings = json.loads((tmp_path / "settings.json").read_text())
    for event, given in (("UserPromptSubmit", {"prompt": "question"}), ("Stop", {"last_assistant_message": "answer"})):
        done = subprocess.run(
            ["/bin/sh", "-c", settings["hooks"][event][0]["hooks"][0]["command"]],
            input=json.dumps(host.base(event) | given).encode(),
            capture_output=True,
            env={"PATH": os.environ["PATH"]},
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert len(host.events()) == 1


@pytest.mark.parametrize(
    ("environment", "given", "reason"),
    [
        ({}, {"agent_id": "a-1", "agent_type": "Explore"}, "subagent"),
        ({"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}, {}, "unattended"),
        ({"CLAUDE_CODE_SESSION_ATTENDED": "0", "CLAUDE_CODE_ENTRYPOINT": "cli"}, {}, "unattended"),
        ({}, {"session_id": ""}, "session_missing"),
        ({}, {"session_id": "unknown"}, "session_ambiguous"),
        ({}, {"prompt_id": None}, "prompt_id_missing"),
        ({}, {"prompt_id": "never-submitted"}, "prompt_missing"),
        ({}, {"last_assistant_message": ""}, "answer_missing"),
        ({}, {"prompt_id": "by-a-program"}, "prompt_missing"),
    ],
)
def test_what_is_not_a_persons_turn_is_refused_and_counted(host, environment, given, reason):
    host.submit("<task-notification>the build is done</task-notification>", prompt_id="by-a-program")
    host.submit("question")
    host.environment = environment
    assert host.stop("answer", **given) == b""
    assert host.events() == []
    counted = host.counted()
    assert (counted["seen"], counted[f"refused.{reason}"]) == (1, 1)
    assert counted["recallRefused.machine_prompt"] == 1


@pytest.mark.parametrize("environment", [{"CLAUDE_CODE_ENTRYPOINT": "cli"}, {"CLAUDE_CODE_SESSION_ATTENDED": "1"}])
def test_a_persons_session_is_captured_whatever_started_it(host, environment):
    host.environment = environment
    host.submit("question")
    host.stop("answer")
    assert len(host.events()) == 1


def test_sessions_without_a_person_are_captured_where_the_configuration_says_so(host):
    host.configure(capture_unattended=True)
    host.environment = {"CLAUDE_CODE_ENTRYPOINT": "sdk-cli", "CLAUDE_CODE_SESSION_ATTENDED": "0"}
    host.submit("question")
    host.stop("answer")
    assert len(host.events()) == 1


@pytest.mark.parametrize("event", ["SessionStart", "SessionEnd", "SubagentStop", "PreCompact", "Unknown", "", None, 5])
def test_other_events_are_passed_over_in_silence(host, event):
    assert host.fire({**host.base("Stop"), "hook_event_name": event, "last_assistant_message": "x"}) == b""
    assert not host.journal_dir.exists()


# -- privacy ---------------------------------------------------------------------------------------------------------


def test_no_secret_reaches_the_disk(host):
    secrets = ["sk-ant-api03-" + "Ab1" * 30, "postgres://u:hunter2pass@db/x", "ghp_" + "Ab1" * 12]
    host.submit(f"use {secrets[0]} and {secrets[1]}")
    host.stop(f"done, token {secrets[2]}")
    assert len(host.events()) == 1
    written = b"".join(path.read_bytes() for path in host.journal_dir.rglob("*") if path.is_file())
    for secret in ("Ab1Ab1Ab1", "hunter2pass"):
        assert secret.encode() not in written
    assert all(path.stat().st_mode & 0o077 == 0 for path in host.journal_dir.rglob("*"))


def test_recalled_text_in_a_prompt_is_not_captured_again(host):
    from producer.recall import formatting

    memory = Memory(id="i", label="EPISODE", text="old news", score=1, at="", source="store", record={})
    block = formatting.format_context([memory.quotable()])
    host.submit(f"{block}\nmy own words")
    host.stop("answer")
    assert host.events()[0].body["event"]["userText"] == "my own words"


# -- F31: whatever is broken, the host's turn goes on ------------------------------------------------------------------


@pytest.mark.parametrize(
    "stdin",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'{"hook_event_name": "Stop"',
        b"\xff\xfe\x00\x01",
        b"[" * 100_000,
        json.dumps(
            {"hook_event_name": "Stop", "session_id": 5, "prompt_id": [], "last_assistant_message": {}}
        ).encode(),
        json.dumps({"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt_id": "p", "prompt": 7}).encode(),
        json.dumps({"hook_event_name": ["Stop"]}).encode(),
    ],
)
def test_any_input_ends_well(host, stdin):
    assert host.fire(stdin) == b""


@pytest.mark.parametrize("content", [None, "", "{broken", "[]", '{"journal_dir": 5}', '{"journal_dir": "/j"}'])
def test_a_broken_configuration_ends_well(host, content):
    if content is None:
        host.config_path.unlink()
    else:
        host.config_path.write_text(content)
    assert host.submit("question") == b"" and host.stop("answer") == b""


@pytest.mark.parametrize("place", ["file", "file_above", "prompts", "segment_limit"])
def test_a_journal_that_cannot_be_written_ends_well(host, place):
    if place == "file":
        host.journal_dir.write_text("a file where the directory should be")
    elif place == "file_above":
        (host.directory / "blocked").write_text("")
        host.configure(journal_dir=str(host.directory / "blocked" / "journal"))
    elif place == "prompts":
        host.journal_dir.mkdir()
        (host.journal_dir / "prompts").write_text("")
    else:
        host.configure(journal_max_bytes=1)
    assert host.submit("question") == b"" and host.stop("answer") == b""
    if place == "prompts":
        assert host.counted() == {
            "promptNotKept": 1,
            "asked": 1,
            "unanswered": 1,
            "refused.prompt_missing": 1,
            "seen": 1,
        }
    if place == "segment_limit":
        assert host.counted()["refused.journal_full"] == 1


def test_a_full_disk_ends_well_and_capture_resumes_when_there_is_room(host):
    host.limit = "ulimit -f 1; "  # no file beyond 512 bytes: what a full disk looks like, without being root
    assert host.submit("question") == b"" and host.stop("answer") == b""
    assert host.events() == [] and host.counted()["refused.journal_full"] == 1
    host.limit = ""
    assert host.stop("answer") == b""
    assert [line.body["event"]["userText"] for line in host.events()] == ["question"]


def test_a_frozen_agent_costs_the_recall_deadline_and_no_more(host):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(host.socket))
    listener.listen()  # accepts in the kernel, never answers: what a stopped process looks like
    try:
        assert host.submit("question") == b""
        assert host.counted() == {"asked": 1, "unanswered": 1}
    finally:
        listener.close()


def test_a_stopped_agent_costs_the_recall_deadline_and_no_more(host):
    script = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen();"
        "print('up', flush=True); c, _ = s.accept(); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(host.socket)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            process.send_signal(signal.SIGSTOP)
            assert host.submit("question") == b""
        finally:
            process.kill()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\n",
        b"[]\n",
        b'{"context": 5}\n',
        b'{"context": "' + b"x" * 9000 + b'"}\n',
        b"x" * (1 << 20),
        b'{"error": "invalid_request"}\n',
    ],
    ids=lambda answer: f"{answer[:12]!r}",
)
def test_an_agent_that_answers_nonsense_costs_nothing(host, answer):
    with fake_agent(host, answer):
        assert host.submit("question") == b""


@contextmanager
def fake_agent(host: Host, answer: bytes) -> Iterator[bytearray]:
    """Answers one request; what it was sent, once it has answered."""
    asked = bytearray()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(host.socket))
    listener.listen()
    listener.settimeout(10)

    def work() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(5)
            try:
                while not asked.endswith(b"\n") and (piece := connection.recv(1 << 16)):
                    asked.extend(piece)
                connection.sendall(answer)
            except OSError:
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield asked
    finally:
        thread.join()
        listener.close()


def test_of_a_long_prompt_the_agent_is_asked_what_recall_looks_at_and_no_more(host):
    host.configure(max_turn_units=40_000)
    with fake_agent(host, b'{"context": "known"}\n') as asked:
        assert b"known" in host.submit("編集者😀" * 8000)
    assert json.loads(asked)["query"] == ("編集者😀" * 500)
    assert len(asked) < agent.MAX_REQUEST_BYTES
    assert claude_code.MAX_QUERY_CHARS == engine.MAX_QUERY_CHARS


def test_a_transcript_path_that_leads_anywhere_ends_well(host):
    fifo = host.directory / "pipe"
    os.mkfifo(fifo)
    for path in ("/none", str(fifo), "/dev/zero", str(host.directory), "a\x00b", 5):
        host.submit("question")
        assert host.stop("answer", transcript_path=path) == b""
    assert len({line.body["event"]["userText"] for line in host.events()}) == 1


def test_a_host_that_closes_our_output_or_kills_us_softly_sees_no_error(host):
    with subprocess.Popen(
        ["/bin/sh", "-c", "exec " + claude_code.command(host.config_path).replace("MEMORY_HOOK", "env MEMORY_HOOK", 1)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        # It waits for its input, which never comes: the budget ends it.
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("end", "printed"), [("b'answer'", b"answer"), ("1 / 0", b""), ("sys.exit(2)", b""), ("'no bytes'", b"")]
)
def test_nothing_but_the_answer_is_printed_whatever_the_work_does(end, printed):
    script = f"""
import os, sys
sys.path.append({str(Path(launch.__file__).parents[2])!r})
from producer.hosts import hook
def work():
    print("noise", flush=True)
    print("noise", file=sys.stderr, flush=True)
    os.write(1, b"raw")
    os.write(2, b"raw")
    return {end}
hook.serve(work, budget_s=10)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, b"")


def test_a_broken_installation_ends_well(host, tmp_path):
    """The launcher alone, without the package beside it."""
    lonely = tmp_path / "elsewhere" / "producer" / "hosts" / "launch.py"
    lonely.parent.mkdir(parents=True)
    lonely.write_bytes(Path(launch.__file__).read_bytes())
    for words in (["claude_code"], ["other"], []):
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(lonely), *words], input=b"{}", capture_output=True, timeout=30
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_three_hundred_random_inputs_never_raise_and_print_the_protocol_or_nothing(host, monkeypatch):
    rng = random.Random(11)
    environ = {"MEMORY_HOOK_CONFIG": str(host.config_path)}
    texts = [
        "",
        "x",
        "\ud83d",
        "\udc00x",
        "\x00",
        "\u2028",
        "🙂" * 50,
        "a" * 10_000,
        "\n\n",
        "-----BEGIN PRIVATE KEY-----",
    ]
    odd: list[Any] = [None, 5, 1.5, True, [], {}, ["Stop"], {"a": "b"}, *texts]
    for _ in range(300):
        given = {**host.base(rng.choice(["Stop", "UserPromptSubmit"]), prompt_id=rng.choice(["p", "q"]))}
        given |= {"prompt": rng.choice(texts), "last_assistant_message": rng.choice(texts)}
        for name in rng.sample(sorted(given), rng.randrange(3)):
            given[name] = rng.choice(odd)
        try:
            data = json.dumps(given).encode()
        except ValueError:
            continue
        if rng.random() < 0.2:
            cut = rng.randrange(len(data))
            data = data[:cut] + bytes(rng.randrange(256) for _ in range(3)) + data[cut:]
        assert claude_code.respond(hook.parse_input(data), environ) == b""
    assert host.events()


# -- F32, F33: giants and bad text -------------------------------------------------------------------------------------


def test_twenty_megabytes_on_stdin_and_a_giant_transcript_are_quick_and_small(host):
    host.submit("question", tool_result="🙂x" * 1_000_000)
    row = {"type": "user", "promptId": "p-1", "message": {"content": "question"}}
    last = {"type": "assistant", "timestamp": "2026-12-01T10:00:00Z", "message": {"content": []}}
    with host.transcript.open("wb") as file:
        file.truncate(200 << 20)  # sparse: zeros cost no disk, and are one endless row
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + json.dumps(row).encode() + b"\n" + json.dumps(last).encode() + b"\n")
    given = host.base("Stop") | {"last_assistant_message": "🙂" * 5_000_000, "tool_result": "x" * 20_000_000}
    stdin = host.directory / "stdin.json"
    stdin.write_text(json.dumps(given, ensure_ascii=False))  # as Claude Code writes JSON
    # The peak of a child begins at the size of the process that forks it: a small one does.
    script = """
import resource, subprocess, sys
with open(sys.argv[2], "rb") as stdin:
    subprocess.run(["/bin/sh", "-c", sys.argv[1]], stdin=stdin, check=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""
    command = [sys.executable, "-c", script, claude_code.command(host.config_path), str(stdin)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    seconds, peak_kib = map(float, done.stdout.split())
    assert seconds < CPU_LIMIT_S and peak_kib < 150 * 1024
    (line,) = host.events()
    event = line.body["event"]
    assert event["observedAt"] == "2026-12-01T10:00:00.000Z"
    assert set(event["assistantText"]) == {"🙂", "…"} and len(event["assistantText"].encode("utf-16-le")) // 2 <= 6001
    host.submit("next question", prompt_id="p-2")
    host.stop("next answer", prompt_id="p-2")
    assert len(host.events()) == 2


@pytest.mark.parametrize("bad", ["\ud83d", "\udc00x", "a\x00b", "a\u2028b", "🙂" * 4000 + "x", "\ufffe"])
def test_bad_text_is_captured_as_text_session_and_prompt(host, bad):
    host.submit(f"say {bad}", session=f"s{bad}"[:200], prompt_id=f"p{bad}"[:200])
    host.stop(f"said {bad}", session=f"s{bad}"[:200], prompt_id=f"p{bad}"[:200])
    if "\x00" in bad:  # a control character in an id is refused, and never an error
        assert host.events() == [] and host.counted()["refused.control_character"] == 1
    else:
        assert len(host.events()) == 1


# -- the transcript ----------------------------------------------------------------------------------------------------


def rows(*given: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in given)


AT = "2026-12-01T10:00:09Z"
USER = {"type": "user", "promptId": "p-1", "timestamp": "2026-12-01T10:00:00Z", "message": {"content": "question"}}
ANSWER = {
    "type": "assistant",
    "timestamp": AT,
    "message": {"id": "m", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "answer"}]},
}
TOOL = {
    "type": "user",
    "promptId": "p-1",
    "message": {"content": [{"type": "tool_result", "content": "secret output"}]},
}


def test_a_turn_whose_texts_the_events_did_not_bring_is_found_in_the_transcript(host):
    host.transcript.write_text(rows(USER, TOOL, ANSWER, {"type": "cost-state"}, {"type": "attachment"}))
    host.stop(None)
    event = host.events()[0].body["event"]
    assert (event["userText"], event["assistantText"]) == ("question", "answer")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((USER, ANSWER), ("question", "answer", AT)),
        (
            (USER, ANSWER, {**ANSWER, "isSidechain": True, "timestamp": "later"}),
            ("question", "answer", AT),
        ),
        ((USER, ANSWER, {**USER, "isMeta": True, "promptId": "p-2"}), ("question", "answer", AT)),
        ((USER, TOOL, ANSWER, TOOL), ("question", "answer", AT)),
        (
            (USER, {**USER, "message": {"content": "<command-name>/x</command-name>"}}, ANSWER),
            ("question", "answer", AT),
        ),
        (({**USER, "promptId": "p-0"}, ANSWER), (None, None, None)),  # the last turn's rows: ours are not written yet
        ((USER,), ("question", None, None)),
        ((ANSWER,), (None, "answer", AT)),
        (("not an object",), (None, None, None)),
        (
            (USER, {**ANSWER, "message": {"id": "m", "content": [{"type": "text", "text": "one"}]}}, ANSWER),
            ("question", "one\nanswer", AT),
        ),
    ],
)
def test_the_end_of_a_transcript_is_read_as_the_turn_it_tells(tmp_path, given, expected):
    path = tmp_path / "t.jsonl"
    path.write_text(rows(*given) + "{torn")
    assert tuple(claude_transcript.last_turn(str(path), "p-1")) == expected


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_the_hook_loads_the_standard_library_only_and_little_of_it(host):
    script = f"""
import os, sys
sys.path.append({str(Path(launch.__file__).parents[2])!r})
from producer.hosts import claude_code, hook
environ = {{"MEMORY_HOOK_CONFIG": {str(host.config_path)!r}}}
for event in ("UserPromptSubmit", "Stop"):
    given = {{"hook_event_name": event, "session_id": "s", "prompt_id": "p", "prompt": "q"}}
    claude_code.respond(given | {{"last_assistant_message": "a"}}, environ)
ours = {{name for name in sys.modules if name.split(".")[0] not in sys.stdlib_module_names}}
slow = "pydantic kombu redis celery urllib3 http asyncio ssl email secrets pathlib subprocess urllib.parse sqlite3"
print(sorted(ours - {{"__main__"}}))
print(sorted(set(slow.split()) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    ours, slow = done.stdout.splitlines()
    assert all(name.startswith("producer") for name in json.loads(ours.replace("'", '"')))
    assert slow == "[]"
    assert len(host.events()) == 1
