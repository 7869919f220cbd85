"""One machine as its user has it: a state directory, the commands, the services and the hooks, all real processes.

    with machine(tmp_path, MEMORY_STORE_URL=...) as m:
        m.start("worker")                                # until the end, or until `kill` / `stop`
        m.json("remember", "Prefers tabs.", "--wait")    # one JSON document, exit code 0

Everything runs in a directory where modules of our own and our libraries' names lie that end whoever imports them: what
somebody keeps in the current directory must not matter. Processes are stopped by pid, their sockets are in a directory
with a short name, and the environment holds nothing but what is given here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from memory_tasks import agent
from producer import config, store
from producer.store import port

__all__ = ["SHORT_WAITS", "Machine", "Service", "are_gone", "free_port", "machine", "until"]

COMMAND = Path(sys.executable).with_name("memory-tasks")
DEADLINE_S = 60.0
# Short waits, each below half of the visibility timeout, so that what takes minutes in service takes seconds here.
SHORT_WAITS = {
    "MEMORY_VISIBILITY_TIMEOUT_S": "4",
    "MEMORY_RESTORE_INTERVAL_S": "0.5",
    "MEMORY_RETRY_MAX_COUNTDOWN_S": "0.5",
    "MEMORY_STORE_LATE_S": "1",
    "MEMORY_RECALL_DEADLINE_MS": "2000",
}
_STRANGERS = ("celery", "redis", "kombu", "rich", "producer", "memory_tasks")


def until(
    claim: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S, said: Callable[[], str] = lambda: ""
) -> Any:
    """The first true value of `claim`; fails with `what`, and what was `said`, after the deadline."""
    end = time.monotonic() + deadline_s
    while not (value := claim()):
        assert time.monotonic() < end, f"waited in vain for {what}\n{said()}"
        time.sleep(0.02)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def are_gone(processes: Sequence[psutil.Process]) -> bool:
    """Whether none of them runs; one that nobody has waited for yet does not."""
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


class Service:
    """One long-running command, in a process group of its own, with its output in a file."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def logged(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def runs(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.runs():
            self._process.send_signal(number)

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        return self._process.wait(deadline_s)

    def kill(self) -> None:
        """SIGKILL."""
        self.send(signal.SIGKILL)
        self.exit_code()

    def stop(self) -> int:
        """SIGTERM, and SIGKILL for one that does not heed it; the exit code."""
        self.send(signal.SIGTERM)
        try:
            return self.exit_code()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end: {self.logged()[-3000:]}") from None


class Machine:
    """See the module. `env` is the environment of all its processes."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.home = Path(tempfile.mkdtemp(prefix="mt-", dir="/tmp"))
        self.state = self.home / "state"
        self.elsewhere = directory / "elsewhere"
        self.elsewhere.mkdir(parents=True)
        for name in _STRANGERS:
            (self.elsewhere / f"{name}.py").write_text(f"raise SystemExit('the stranger {name} was imported')\n")
        self.env = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "MEMORY_STATE_DIR": str(self.state),
            **SHORT_WAITS,
            **environment,
        }
        self._services: list[Service] = []
        self._seen: list[psutil.Process] = []

    def close(self) -> None:
        try:
            for service in self._services:
                service.stop()
        finally:
            for process in self._seen:
                if process.is_running():  # what a test that failed left behind
                    process.kill()
            shutil.rmtree(self.home, ignore_errors=True)

    # -- commands ----------------------------------------------------------------------------------------------------

    def run(
        self, *words: str, stdin: bytes = b"", changes: Mapping[str, str | None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. `changes` of the environment are for this one; None takes a variable out."""
        env = {name: value for name, value in {**self.env, **(changes or {})}.items() if value is not None}
        done = subprocess.run(
            [str(COMMAND), *words], input=stdin, capture_output=True, env=env, cwd=self.elsewhere, timeout=120
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
        )

    def json(self, *words: str, exit_code: int = 0, changes: Mapping[str, str | None] | None = None) -> Any:
        """What a command prints with `--json`."""
        done = self.run(*words, "--json", changes=changes)
        assert done.returncode == exit_code, f"{done.stdout}\n{done.stderr}\n{self.logged()}"
        return json.loads(done.stdout)

    def start(self, *words: str, changes: Mapping[str, str] | None = None) -> Service:
        """Start a command that runs until it is ended."""
        service = Service(
            [str(COMMAND), *words],
            env={**self.env, **(changes or {})},
            cwd=self.elsewhere,
            log=self.directory / f"{words[0]}-{len(self._services)}.log",
        )
        self._services.append(service)
        return service

    def tree_of(self, service: Service) -> list[psutil.Process]:
        """The process of this service and all below it, as they are now."""
        parent = psutil.Process(service.pid)
        found = [parent, *parent.children(recursive=True)]
        self._seen += found
        return found

    def start_worker(self) -> Service:
        """A worker that takes messages."""
        service = self.start("worker")
        until(lambda: " ready." in service.logged() or not service.runs(), "a worker")
        assert service.runs(), service.logged()
        return service

    def start_agent(self) -> Service:
        """A local agent that answers and has opened what recall needs."""
        service = self.start("agent")
        until(lambda: self.agent_status().get("recall"), "the agent")
        until(lambda: self.agent_status()["recall"]["recalls"], "the agent's first recall")
        return service

    def agent_status(self) -> dict[str, Any]:
        """What the agent says of itself; empty when none answers."""
        try:
            return agent.client(self.settings.agent_socket, timeout_s=2.0).status()
        except ConnectionError:
            return {}

    # -- what is there -----------------------------------------------------------------------------------------------

    @property
    def settings(self) -> config.ProducerConfig:
        return config.load(self.env)

    @contextmanager
    def store(self) -> Iterator[port.Store]:
        opened = store.open_store(self.settings.store_url, token=self.settings.store_token)
        try:
            yield opened
        finally:
            opened.close()

    def records(self, label: str, where: Mapping[str, Any]) -> list[port.Record]:
        with self.store() as opened:
            return list(opened.find(label, dict(where)).records)

    def lines(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """The journal's whole lines of a kind, read as anybody would: lineHash, and the line as JSON."""
        found = []
        for segment in sorted((self.state / "journal").glob("segment-*.jsonl")):
            for text in segment.read_bytes().split(b"\n")[:-1]:
                value = json.loads(text)
                if value.get("kind") == kind:  # the first line of a segment has none
                    found.append((hashlib.sha256(text).hexdigest(), value))
        return found

    def receipts(self) -> dict[str, str]:
        """The state of each line that the journal has a receipt of."""
        return {value["lineHash"]: value["state"] for _, value in self.lines("receipt")}

    def pending(self) -> list[str]:
        """Ids of the events and orders that no terminal receipt speaks for."""
        ended = {line_hash for line_hash, state in self.receipts().items() if state != "deferred"}
        lines = self.lines("event") + self.lines("order")
        return [value["id"] for line_hash, value in lines if line_hash not in ended]

    def wait_until_settled(self) -> None:
        until(lambda: self.lines("event") and not self.pending(), "every receipt", said=self.logged)

    def logged(self) -> str:
        """The end of what each service said."""
        return "\n".join(f"== {service.log.name}\n{service.logged()[-2000:]}" for service in self._services)

    # -- Claude Code -------------------------------------------------------------------------------------------------

    def connect_claude_code(self, participant: str = "maya") -> None:
        """Let the command write Claude Code's settings, and take the hooks' commands from there."""
        path = self.home / ".claude" / "settings.json"
        self.json("connect", "claude-code", "--settings", str(path), "--participant", participant)
        hooks = json.loads(path.read_text())["hooks"]
        self._hooks = {
            event: [entry["command"] for group in groups for entry in group["hooks"]] for event, groups in hooks.items()
        }

    def submit(self, prompt: str, *, session: str, prompt_id: str) -> str:
        """A prompt enters; the context that comes back for it, or ""."""
        printed = self._fire("UserPromptSubmit", session, prompt_id, prompt=prompt)
        if not printed:
            return ""
        output = json.loads(printed)["hookSpecificOutput"]
        assert output["hookEventName"] == "UserPromptSubmit"
        return str(output["additionalContext"])

    def answer(self, text: str, *, session: str, prompt_id: str) -> None:
        """The turn ends with this answer."""
        printed = self._fire("Stop", session, prompt_id, last_assistant_message=text, stop_hook_active=False)
        assert printed == b""

    def _fire(self, event: str, session: str, prompt_id: str, **more: Any) -> bytes:
        given = {
            "session_id": session,
            "transcript_path": str(self.home / "transcript.jsonl"),
            "cwd": str(self.elsewhere),
            "hook_event_name": event,
            "prompt_id": prompt_id,
            "permission_mode": "default",
            **more,
        }
        (command,) = self._hooks[event]
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            input=json.dumps(given).encode(),
            capture_output=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "CLAUDE_CODE_ENTRYPOINT": "cli"},
            cwd=self.elsewhere,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout


@contextmanager
def machine(directory: Path, **environment: str) -> Iterator[Machine]:
    """A machine whose processes are gone at the end."""
    made = Machine(directory, environment)
    try:
        yield made
    finally:
        made.close()
