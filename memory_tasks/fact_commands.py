"""The commands over facts: `memory-tasks facts history|show|check`. They read the store, and write nothing.

Exit codes as everywhere: 0 done; 1 the answer is no (nothing such, or the check found something); 2 it cannot be
carried out as given.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from memory_tasks import terminal
from memory_tasks.terminal import AgentId, AsJson, Participant, ProfileId
from producer import config, store
from producer.convergence import check
from producer.convergence.content import TEXT
from producer.journal import segments
from producer.recall import history
from producer.recall import where as recall_where
from producer.store import port

__all__ = ["facts_app"]

facts_app = typer.Typer(no_args_is_help=True, help="Facts: what they were, what they are, whether all is well.")

_TIMEOUT_S = 20.0
_TOLD = ("runtime", "provenance", "trustClass", "sourceEventId", "sessionKey")

_out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
_err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

_FactId = Annotated[str, typer.Argument(metavar="FACT_ID", help="factId of any version.")]


@facts_app.command("history")
def history_command(
    fact_id: _FactId,
    agent: AgentId = "",
    profile: ProfileId = "",
    participant: Participant = "",
    as_json: AsJson = False,
) -> None:
    """Every version of a fact in this scope, the oldest first: who, when, why."""
    settings = config.load(os.environ)
    scope = terminal.scope_of(settings, agent, profile, participant)
    with _store(settings) as opened:
        found = history.history(opened, scope, fact_id, now=_now())
    if as_json:
        _print_json({"versions": [_row(v) for v in found.versions], "cut": found.cut})
    else:
        for version in found.versions:
            _show(version)
        if found.cut:
            _err.print(f"more than {history.MAX_VERSIONS} versions: the rest is not shown")
        if not found.versions:
            _err.print("this scope knows no such fact; name the scope with --agent, --profile and --participant")
    raise typer.Exit(0 if found.versions else 1)


@facts_app.command("show")
def show_command(
    id_: Annotated[str, typer.Argument(metavar="ID", help="factId or eventId.")],
    agent: AgentId = "",
    profile: ProfileId = "",
    participant: Participant = "",
    as_json: AsJson = False,
) -> None:
    """One fact or event of this scope by its id, whatever became of it."""
    settings = config.load(os.environ)
    scope = terminal.scope_of(settings, agent, profile, participant)
    with _store(settings) as opened:
        found = history.by_id(opened, scope, id_, now=_now())
    if found is None:
        _err.print("this scope knows nothing of it; name the scope with --agent, --profile and --participant")
        raise typer.Exit(1)
    if as_json:
        _print_json(_row(found))
    else:
        _show(found)


@facts_app.command("check")
def check_command(
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="All scopes of the store: ids and codes only, for operators.")
    ] = False,
    agent: AgentId = "",
    profile: ProfileId = "",
    participant: Participant = "",
    as_json: AsJson = False,
) -> None:
    """Whether the store holds what its marks ask for. Exits 1 when it found something."""
    settings = config.load(os.environ)
    if everywhere and (agent or profile or participant):
        raise typer.BadParameter("give --everywhere or a scope, not both")
    contents: port.Where = {}
    marks_where: port.Where = {}
    if not everywhere:
        scope = terminal.scope_of(settings, agent, profile, participant)
        contents, marks_where = recall_where.within(scope), recall_where.marks_of(scope)
    with _store(settings) as opened:
        found = check.check(opened, contents=contents, marks_where=marks_where)
    counts = Counter(problem.code for problem in found)
    if as_json:
        rows = [
            {"code": p.code, "label": p.label, "id": p.id, "scopeKey": p.scope_key, "others": list(p.others)}
            for p in found
        ]
        _print_json({"problems": rows, "counts": counts})
    else:
        for problem in found:
            others = f"  with {' '.join(problem.others)}" if problem.others else ""
            _out.print(f"{problem.code}  {problem.label} {problem.id}  scope {problem.scope_key[:12]}{others}")
        _out.print(", ".join(f"{code} {counts[code]}" for code in check.CODES if counts[code]) or "all is well")
    raise typer.Exit(1 if found else 0)


@contextmanager
def _store(settings: config.ProducerConfig) -> Iterator[port.Store]:
    opened = store.open_store(settings.store_url, token=settings.store_token, timeout_s=_TIMEOUT_S)
    try:
        yield opened
    finally:
        opened.close()


def _now() -> str:
    return segments.iso_of_ms(int(time.time() * 1000))


def _row(version: history.Version) -> dict[str, Any]:
    record = version.record or {}
    told = {name: record[name] for name in _TOLD if name in record}
    return {
        "id": version.id,
        "label": version.label,
        "state": str(version.state),
        "since": version.since,
        "endedAt": version.ended_at,
        "by": version.by,
        "text": record.get(TEXT.get(version.label, "")),
        "kind": record.get("kind"),
        "subjectKey": record.get("subjectKey"),
        **told,
    }


def _show(version: history.Version) -> None:
    row = _row(version)
    ended = f" until {version.ended_at}" if version.ended_at else ""
    by = f" by {version.by}" if version.by else ""
    _out.print(str(version.state), style="bold", end="  ")
    _out.print(f"{version.id}  {version.since or '?'}{ended}{by}")
    if row["text"]:
        _out.print("    " + terminal.shown(str(row["text"])).replace("\n", "\n    "))
    told = [f"{name} {terminal.shown(str(row[name]))}" for name in ("kind", "subjectKey", *_TOLD) if row.get(name)]
    if told:
        _out.print("    " + ", ".join(told))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
