"""The command line `memory-tasks`: a composition root. Each command builds its settings, its parts, and prints.

Exit codes: 0 done; 1 the answer is no (refused, unhealthy, lost); 2 the command cannot be carried out as given.
`--json` prints one JSON document on stdout and nothing else there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from memory_tasks import agent as agent_module
from memory_tasks import connect as connect_module
from memory_tasks import demo as demo_module
from memory_tasks import doctor as doctor_module
from memory_tasks import (
    embedded,
    expire_command,
    fact_commands,
    forget_command,
    operator_commands,
    supervisor,
    terminal,
)
from memory_tasks import metrics as metrics_module
from memory_tasks import status as status_module
from memory_tasks import worker as worker_module
from memory_tasks.settings import Settings
from memory_tasks.terminal import AgentId, AsJson, Participant, ProfileId
from producer import config, errors, outcomes, receipt
from producer.memory import AgentMemory
from producer.receipt import State

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Durable ingestion and recall of AI-agent memory.",
)
connect_app = typer.Typer(no_args_is_help=True, help="Connect an agent host.")
app.add_typer(connect_app, name="connect")
app.add_typer(operator_commands.dead_letters_app, name="dead-letters")
app.add_typer(fact_commands.facts_app, name="facts")

# No markup: paths, messages and memories may hold brackets.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

Session = Annotated[str, typer.Option("--session", help="The host's session id.")]
WaitS = Annotated[float, typer.Option("--wait-s", help="With --wait: how long.")]


def main() -> None:
    """Entry point. Errors of ours, and of the disk, become one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # memories hold what not every terminal can show
    try:
        app()
    except errors.IngestError as problem:
        _fail(type(problem).__name__, str(problem))
    except OSError as problem:
        _fail(type(problem).__name__, str(problem))


def _fail(what: str, why: str) -> NoReturn:
    err.print("error", style="red", end=" ")
    err.print(f"{what}: {why}")
    raise SystemExit(2) from None


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


@contextmanager
def _memory(agent: str, profile: str, participant: str) -> Iterator[AgentMemory]:
    settings = config.load(os.environ)
    memory = AgentMemory(settings, scope=terminal.scope_of(settings, agent, profile, participant))
    try:
        yield memory
    finally:
        memory.close(deadline_s=2.0)


def _answer(memory: AgentMemory, outcome: outcomes.Outcome, *, wait: bool, wait_s: float, as_json: bool) -> NoReturn:
    """Print what capture answered, after waiting for its receipt when asked, and exit."""
    settled, state, reason = None, None, ""
    if isinstance(outcome, outcomes.Durable) and wait:
        settled = memory.flush(deadline_s=wait_s)
        state, reason = _state_of(outcome.id)
    if as_json:
        body: dict[str, Any] = {"outcome": "durable" if outcome else "refused"}
        body |= (
            {"id": outcome.id}
            if isinstance(outcome, outcomes.Durable)
            else {"reason": outcome.reason, "detail": outcome.detail}
        )
        if settled is not None:
            body |= {"settled": settled, "state": state.value if state else None, "reason": reason}
        _print_json(body)
    elif isinstance(outcome, outcomes.Durable):
        out.print(
            f"durable {outcome.id}"
            + (
                ""
                if settled is None
                else f", {state.value}: {reason}"
                if state is State.DEAD
                else ", settled"
                if settled
                else f", no receipt within {wait_s:g} s: it stays in the journal"
            )
        )
    else:
        err.print(f"refused {outcome.reason} {outcome.detail}")
    raise typer.Exit(0 if outcome and settled is not False and state is not State.DEAD else 1)


def _state_of(id_: str) -> tuple[State | None, str]:
    """What the journal's last receipt says of this event or order, and why."""
    hashes, last = set(), None
    with terminal.open_journal(config.load(os.environ)) as journal:
        for located in journal.scan():
            line = located.line
            if line.id == id_ and line.kind in ("event", "order"):
                hashes.add(line.hash)
            elif line.kind == "receipt" and line.body.get("lineHash") in hashes:
                last = receipt.of_body(line.id, line.body)
    return (last.state, last.reason) if last is not None else (None, "")


@app.command()
def up(
    flower_port: Annotated[
        int | None, typer.Option(help="Flower's port on 127.0.0.1; 0: no Flower; default MEMORY_FLOWER_PORT.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Tasks at once; default MEMORY_CONCURRENCY.")] = None,
) -> None:
    """Run everything this machine needs: embedded server, worker, local agent, Flower. One Ctrl-C stops all of it."""
    settings = _worker_settings()
    producer = settings.producer
    port = settings.flower_port if flower_port is None else flower_port
    has_flower = bool(port) and status_module.has_module("flower")
    boss = supervisor.Supervisor(
        parts=supervisor.parts_of(
            worker=supervisor.worker_command(
                concurrency=concurrency or settings.concurrency, name=settings.worker_name
            ),
            flower=supervisor.flower_command(port=port, state_dir=producer.state_dir) if has_flower else None,
            flower_env=supervisor.flower_environment(
                user=settings.flower_user, password=settings.flower_password.get_secret_value()
            ),
        ),
        state_dir=producer.state_dir,
        env=supervisor.child_environment(os.environ),
        own_redis=producer.broker_url == f"redis+socket://{embedded.socket_of(producer.state_dir)}",
        say=out.print,
    )
    with supervisor.only_one(producer.state_dir):
        out.print(f"state    {producer.state_dir}")
        out.print(f"store    {status_module.without_secrets(producer.store_url)}")
        out.print(f"flower   http://127.0.0.1:{port}" if has_flower else "flower   none")
        raise typer.Exit(boss.run())


@app.command()
def agent() -> None:
    """Run the local agent: recall and delivery for hosts that are one-shot processes."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    status_module.log_to_stderr()
    agent_module.run(config.load(os.environ), stop=stop)


@app.command()
def worker(
    concurrency: Annotated[int | None, typer.Option(min=1, help="Tasks at once; default MEMORY_CONCURRENCY.")] = None,
    name: Annotated[str, typer.Option(help="Node name before the host name; default MEMORY_WORKER_NAME.")] = "",
) -> None:
    """Run one worker (Celery, threads). Run as many as you like, here or elsewhere."""
    settings = _worker_settings()
    _become(
        supervisor.worker_command(concurrency=concurrency or settings.concurrency, name=name or settings.worker_name)
    )


@app.command()
def flower(
    address: Annotated[
        str, typer.Option(help="Listen address. Anything but loopback needs a proxy that asks for a password.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Default MEMORY_FLOWER_PORT.")] = None,
) -> None:
    """Run Flower over the same broker. MEMORY_FLOWER_PASSWORD protects its pages; /metrics stays open."""
    settings = Settings.load(os.environ)
    _become(
        supervisor.flower_command(
            port=port or settings.flower_port, state_dir=settings.producer.state_dir, address=address
        ),
        supervisor.flower_environment(user=settings.flower_user, password=settings.flower_password.get_secret_value()),
    )


def _worker_settings() -> Settings:
    """The settings, and whatever else a worker would stumble over, told here in one line."""
    settings = Settings.load(os.environ)
    with contextlib.closing(worker_module.Worker(settings)) as made:
        made.handler()  # connects to nothing
    return settings


def _become(command: list[str], env: Mapping[str, str] | None = None) -> NoReturn:
    """Run a fixed command of ours in place of this process: signals and exit code are its own."""
    os.execve(command[0], command, {**supervisor.child_environment(os.environ), **(env or {})})  # noqa: S606


@app.command()
def demo(
    as_json: AsJson = False,
    keep: Annotated[bool, typer.Option(help="Keep the demo's directory.")] = False,
) -> None:
    """Ingest a conversation through the whole path, kill the worker in the middle, recall, and count."""
    result = demo_module.run(os.environ, say=err.print if as_json else out.print, keep=keep)
    if as_json:
        _print_json(vars(result) | {"good": result.good})
    else:
        for asked in result.recalled:
            table = Table(
                title=asked["question"], title_justify="left", title_style="bold", show_header=False, expand=False
            )
            for number, text in enumerate(asked["memories"], 1):
                table.add_row(str(number), terminal.shown(text))
            out.print(table)
            if not asked["good"]:
                out.print("not what was expected", style="red")
        counts = Table(title="counts", title_justify="left", show_header=True)
        for name in ("captured", "stored", "duplicates", "lost"):
            counts.add_column(name, justify="right")
        counts.add_row(*(str(getattr(result, name)) for name in ("captured", "stored", "duplicates", "lost")))
        out.print(counts)
        out.print(f"{result.seconds} s, worker {result.killed_pid} killed with {result.stored_at_kill} stored")
        if not result.settled:
            err.print("not every line has its receipt yet")
    raise typer.Exit(0 if result.good else 1)


@app.command()
def capture(
    user: Annotated[
        str, typer.Option(help="What the user said; '-' reads a JSON object {user, assistant, ...} from stdin.")
    ],
    assistant: Annotated[str, typer.Option(help="What the assistant answered.")] = "",
    session: Session = "cli",
    agent: AgentId = "",
    profile: ProfileId = "",
    participant: Participant = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the receipt.")] = False,
    wait_s: WaitS = 30.0,
    as_json: AsJson = False,
) -> None:
    """Capture one completed turn."""
    given = _stdin_object(("user", "assistant", "session")) if user == "-" else {}
    with _memory(agent, profile, participant) as memory:
        outcome = memory.capture_turn(
            session_id=given.get("session", session),
            user_text=given.get("user", user),
            assistant_text=given.get("assistant", assistant),
        )
        _answer(memory, outcome, wait=wait, wait_s=wait_s, as_json=as_json)


def _stdin_object(names: tuple[str, ...]) -> dict[str, str]:
    try:
        value = json.loads(sys.stdin.buffer.read(32 << 20).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise errors.ContractViolation("is not JSON; give an object with user and assistant", field="stdin") from None
    if not isinstance(value, dict) or not all(isinstance(value.get(n, ""), str) for n in names):
        raise errors.ContractViolation(f"must be an object with text in {', '.join(names)}", field="stdin")
    if unknown := sorted(set(value) - set(names)):
        raise errors.ContractViolation(
            f"has {len(unknown)} unknown field(s); known are {', '.join(names)}", field="stdin"
        )
    return value


@app.command()
def remember(
    text: Annotated[str, typer.Argument(help="The fact, as one sentence.")],
    kind: Annotated[str, typer.Option(help="preference, rule, schedule, ...")] = "note",
    subject: Annotated[str, typer.Option(help="What it is about: a stable key of yours.")] = "user",
    supersedes: Annotated[str, typer.Option(help="factId of the fact that this one replaces.")] = "",
    session: Session = "cli",
    agent: AgentId = "",
    profile: ProfileId = "",
    participant: Participant = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the receipt.")] = False,
    wait_s: WaitS = 30.0,
    as_json: AsJson = False,
) -> None:
    """Remember a fact."""
    with _memory(agent, profile, participant) as memory:
        outcome = memory.remember(
            text=text, kind=kind, subject_key=subject, supersedes=supersedes or None, session_id=session
        )
        _answer(memory, outcome, wait=wait, wait_s=wait_s, as_json=as_json)


@app.command()
def retract(
    fact_id: Annotated[str, typer.Argument(help="factId of the fact that no longer holds.")],
    agent: AgentId = "",
    profile: ProfileId = "",
    participant: Participant = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the receipt.")] = False,
    wait_s: WaitS = 30.0,
    as_json: AsJson = False,
) -> None:
    """Retract a fact: it stays for history and leaves recall."""
    with _memory(agent, profile, participant) as memory:
        _answer(memory, memory.retract(fact_id), wait=wait, wait_s=wait_s, as_json=as_json)


@app.command()
def recall(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    session: Annotated[str, typer.Option("--session", help="Leave this session's own turns out.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100)] = 6,
    deadline_ms: Annotated[int, typer.Option(min=1, max=60_000)] = 2000,
    agent: AgentId = "",
    profile: ProfileId = "",
    participant: Participant = "",
    as_json: AsJson = False,
) -> None:
    """Recall what is known, as an agent would see it."""
    with _memory(agent, profile, participant) as memory:
        found = memory.recall_memories(query, session_id=session or None, deadline_ms=deadline_ms, limit=limit)
        if as_json:
            _print_json(status_module.recalled_as_dict(found))
        else:
            for m in found.memories:
                out.print(m.label, style="bold", end=" ")
                out.print(f"{m.score:.3f} {m.id[:12]} ", terminal.shown(m.text))
            for problem in found.failures:
                err.print(f"incomplete: {problem}")
            if not found.memories:
                err.print("nothing found")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Journal, queues, counts, agent: where every event is."""
    report = status_module.gather(Settings.load(os.environ))
    if as_json:
        _print_json(report)
    else:
        status_module.show(report, out)


@app.command()
def metrics() -> None:
    """The same as Prometheus text, for a node exporter's textfile directory."""
    sys.stdout.write(metrics_module.text_of(status_module.gather(Settings.load(os.environ))))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check every setting and every part; says what to do. Exits 1 when something is wrong."""
    checks = doctor_module.examine(os.environ)
    if as_json:
        _print_json([vars(c) for c in checks])
    else:
        doctor_module.show(checks, out)
    raise typer.Exit(1 if any(c.level == "fail" for c in checks) else 0)


app.command()(operator_commands.replay)
app.command("forget")(forget_command.forget_command)
app.command()(expire_command.expire)


@connect_app.command("claude-code")
def connect_claude_code(
    settings_path: Annotated[Path, typer.Option("--settings", help="Claude Code's settings.json.")] = Path(
        "~/.claude/settings.json"
    ),
    agent: Annotated[str, typer.Option("--agent", help="agentId of the scope.")] = "claude-code",
    profile: ProfileId = "",
    participant: Participant = "",
    remove: Annotated[bool, typer.Option("--remove", help="Take our hooks out again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add the memory hooks to Claude Code's settings; other hooks stay."""
    settings = config.load(os.environ)
    path = settings_path.expanduser()
    if remove:
        report = connect_module.disconnect_claude_code(path, config_path=connect_module.hook_config_path(settings))
    else:
        report = connect_module.connect_claude_code(
            path, settings, scope=terminal.scope_of(settings, agent, profile, participant)
        )
    if as_json:
        _print_json(report)
    else:
        for name, value in report.items():
            out.print(f"{name}: {value}")


if __name__ == "__main__":
    main()
