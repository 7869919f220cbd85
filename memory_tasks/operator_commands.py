"""The operator's commands over dead letters: `memory-tasks dead-letters list|show|discard` and `memory-tasks replay`.

A dead letter is listed in Redis for all hosts, by code and without content. Its content stands in the journal of the
host that captured it: only there it can be shown, replayed or discarded. A listing that still names it afterwards is
corrected at once when Redis answers, and else when the line is stored, forgotten, or asked about by its dispatcher.

Exit codes as everywhere: 0 done; 1 the answer is no (nothing such here); 2 it cannot be carried out as given.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_tasks import dead_letters, dead_lines
from memory_tasks import status as status_module
from memory_tasks.dead_lines import DeadLine, DeadLines
from memory_tasks.settings import Settings
from producer import errors
from producer.journal import Journal, segments

__all__ = ["dead_letters_app", "replay"]

dead_letters_app = typer.Typer(no_args_is_help=True, help="What was refused for good: list, show, discard.")

# No markup: codes and ids only, but nothing printed here may ever be taken for it.
_out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
_err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...", help=f"Id or line hash, or its first {dead_lines.SHORTEST_PREFIX} or more digits."
    ),
]
_Reason = Annotated[str, typer.Option("--reason", help="All with this code; store_refused is all store_refused:….")]
_All = Annotated[bool, typer.Option("--all", help="All of this host.")]


@dead_letters_app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Of this host, and as many of others.")] = 100,
    as_json: _AsJson = False,
) -> None:
    """List dead letters: those of this host, and what Redis knows of others. No content."""
    settings = Settings.load(os.environ)
    with _dead_lines(settings) as (journal, found):
        here = found.all()[:limit] if found is not None else []
        journal_id = journal.journal_id if journal is not None else ""
    listed, problem = _listed(settings, limit)
    rows = [_row(one, journal_id) for one in here]
    known = {one.line_hash for one in here}
    rows += [_row_of_letter(one) for one in listed if one.line_hash not in known and one.journal_id != journal_id]
    if as_json:
        _print_json({"deadLetters": rows, "redis": problem or "answered"})
    else:
        for row in rows:  # a line each, whole whatever the terminal's width: they are copied and grepped
            where = "here" if row["here"] else f"journal {row['journalId'][:8]}"
            _out.print(
                f"{row['at']}  {row['id'][:16] or '(unreadable)'}  {row['reason']}  deaths {row['deaths']}  {where}"
            )
        if not rows:
            _out.print("none")
        if problem:
            _err.print(f"Redis did not answer ({problem}): dead letters of other hosts are not shown")


@dead_letters_app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(metavar="ID", help="Id or line hash, or its first 8 or more digits.")],
    content: Annotated[
        bool, typer.Option("--content", help="Print the event itself, from this host's journal.")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Show one dead letter; its content only when asked for."""
    settings = Settings.load(os.environ)
    with _dead_lines(settings) as (journal, found):
        chosen, _ = dead_lines.named(found.all(), [name]) if found is not None else ([], [])
        if journal is None or found is None or not chosen:
            _nothing(settings, [name])
            raise typer.Exit(1)
        shown = []
        for one in chosen:
            row = {**_row(one, journal.journal_id), "lineHash": one.line_hash, "kind": one.kind}
            row["appendedAt"] = one.appended_at
            if content:
                row["content"] = found.line(one).body.get(one.kind)
            shown.append(row)
    if as_json:
        _print_json(shown)
        return
    for row in shown:
        table = Table(title=row["id"], title_justify="left", show_header=False)
        for field, value in row.items():
            if field != "content":
                table.add_row(field, str(value))
        _out.print(table)
        if content:
            _out.print(json.dumps(row["content"], indent=2))  # ASCII: no escape sequence reaches the terminal


@dead_letters_app.command("discard")
def discard_command(
    names: _Names = None, everything: _All = False, reason: _Reason = "", as_json: _AsJson = False
) -> None:
    """Give dead letters up for good: their lines leave this host's journal."""
    _act("discarded", DeadLines.discard, names or [], everything, reason, as_json)


def replay(names: _Names = None, everything: _All = False, reason: _Reason = "", as_json: _AsJson = False) -> None:
    """Deliver dead letters of this host again, as they were captured. Whoever drains the journal does it."""
    _act("replayed", DeadLines.replay, names or [], everything, reason, as_json)


def _act(
    done: str,
    act: Callable[[DeadLines, Sequence[DeadLine]], None],
    names: Sequence[str],
    everything: bool,
    reason: str,
    as_json: bool,
) -> None:
    if sum((bool(names), everything, bool(reason))) != 1:
        raise typer.BadParameter("name ids, or give --all, or --reason CODE: exactly one of them")
    settings = Settings.load(os.environ)
    missing: list[str] = []
    chosen: list[DeadLine] = []
    with _dead_lines(settings) as (_, found):
        if found is not None:
            chosen = found.all()
            if names:
                chosen, missing = dead_lines.named(chosen, names)
            elif reason:
                chosen = [one for one in chosen if one.died_of(reason)]
            act(found, chosen)
        else:
            missing = list(names)
    _take_off_listing(settings, chosen)
    if as_json:
        _print_json({done: [one.id for one in chosen], "missing": missing})
    else:
        for one in chosen:
            _out.print(f"{done} {one.id} {one.reason}")
        if missing or not chosen:
            _nothing(settings, missing)
    raise typer.Exit(0 if chosen and not missing else 1)


@contextmanager
def _dead_lines(settings: Settings) -> Iterator[tuple[Journal | None, DeadLines | None]]:
    """The dead lines of this host; None of both when nothing was ever captured here."""
    producer = settings.producer
    if not producer.journal_dir.is_dir():
        yield None, None
        return
    with Journal.open(
        producer.journal_dir,
        max_bytes=producer.journal_max_bytes,
        reserve_bytes=producer.journal_reserve_bytes,
        segment_max_bytes=producer.segment_max_bytes,
    ) as journal:
        yield journal, DeadLines(journal)


def _row(one: DeadLine, journal_id: str) -> dict[str, Any]:
    return {
        "at": one.died_at,
        "id": one.id,
        "lineHash": one.line_hash,
        "reason": one.reason,
        "deaths": one.deaths,
        "journalId": journal_id,
        "here": True,
    }


def _row_of_letter(one: dead_letters.DeadLetter) -> dict[str, Any]:
    return {
        "at": segments.iso_of_ms(one.at_ms),
        "id": one.id,
        "lineHash": one.line_hash,
        "reason": one.reason,
        "deaths": one.deaths,
        "journalId": one.journal_id,
        "here": False,
    }


def _listed(settings: Settings, limit: int) -> tuple[list[dead_letters.DeadLetter], str]:
    """What Redis lists, and why it could not be asked."""
    try:
        client = status_module.open_redis(settings.producer.redis_url)
    except errors.Permanent as problem:
        return [], str(problem)
    try:
        return dead_letters.read(client, settings.producer.tenant, limit=limit), ""
    except errors.RedisUnavailable as problem:
        return [], str(problem)
    finally:
        client.close()


def _take_off_listing(settings: Settings, chosen: Sequence[DeadLine]) -> None:
    if not chosen:
        return
    try:
        client = status_module.open_redis(settings.producer.redis_url)
    except errors.Permanent:
        return
    try:
        dead_letters.take_off(client, settings.producer.tenant, [one.line_hash for one in chosen])
    except errors.RedisUnavailable:
        _err.print("Redis did not answer: its listing names these until they are stored")
    finally:
        client.close()


def _nothing(settings: Settings, names: Sequence[str]) -> None:
    """Say that nothing such is dead here, and where it is when Redis knows."""
    if not names:
        _err.print("no such dead letter in the journal of this host")
    listed = _listed(settings, settings.dead_letters_kept)[0] if names else []
    for name in names:
        wanted = name.lower()
        elsewhere = [one for one in listed if one.id.startswith(wanted) or one.line_hash.startswith(wanted)]
        if elsewhere and len(wanted) >= dead_lines.SHORTEST_PREFIX:
            _err.print(f"{wanted[:64]} stands in journal {elsewhere[0].journal_id}, on another host: run this there")
        else:
            _err.print(f"no dead letter of this host begins with the {len(wanted)} signs given")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
