"""`memory-tasks forget`: shows what an order to forget names, gives it, and prints its receipt.

Exit codes as everywhere: 0 the order is settled and nothing of what it names is left in the store; 1 not yet, or it was
refused (a dry run: it names nothing); 2 it cannot be carried out as given.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from memory_tasks import forget_survey, forgetting, terminal, waits
from memory_tasks.forget_survey import Here, Survey, Target
from memory_tasks.settings import Settings
from memory_tasks.terminal import AgentId, AsJson, Participant, ProfileId
from producer import capture
from producer.convergence import forget, ordered
from producer.convergence.content import EPISODE
from producer.journal import segments
from producer.journal.line import Line
from producer.memory import AgentMemory, forget_group
from producer.receipt import State

__all__ = ["forget_command"]

_SHOWN = 1000  # targets
_ANSWERED_WITHIN_S = 15.0  # dead letters and settled lines of this host, once the order is settled
_RUNTIME = "custom"
_REFUSED = {
    "everywhere_not_allowed": "this key may not order forgetting in every scope: give the order with an operator's key "
    "(MEMORY_KEY_ID, MEMORY_PRODUCER_KEY; `operator` in MEMORY_TENANTS_FILE)",
    "scope_not_allowed": "this key may not write for this agent and profile",
}

_out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
_err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


_EVERYWHERE_TAKES = "--everywhere takes one of: an ID, --participant, --participant-hash, --agent with --profile"


def forget_command(
    id_: Annotated[str, typer.Argument(metavar="[ID]", help="eventId or factId.")] = "",
    session: Annotated[str, typer.Option("--session", help="A conversation, by its host's session id.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Everything of the scope's participant.")] = False,
    entity: Annotated[str, typer.Option("--entity", help="All versions of a thing, by its key.")] = "",
    label: Annotated[str, typer.Option("--label", help="With --entity: ENTITY, TASK or ARTIFACT.")] = "ENTITY",
    runtime: Annotated[str, typer.Option("--runtime", help="With --session: the runtime of its host.")] = _RUNTIME,
    everywhere: Annotated[
        bool,
        typer.Option(
            "--everywhere",
            help="In every scope, with an operator's key: an ID, --participant, --participant-hash, or --agent "
            "with --profile.",
        ),
    ] = False,
    participant_hash: Annotated[
        str, typer.Option("--participant-hash", help="With --everywhere: the participantScopeHash.")
    ] = "",
    agent: AgentId = "",
    profile: ProfileId = "",
    participant: Participant = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be forgotten; write nothing.")] = False,
    content: Annotated[bool, typer.Option("--content", help="Show the texts of the targets too.")] = False,
    wait_s: Annotated[float, typer.Option("--wait-s", min=0, help="How long to wait for the order's receipt.")] = 60.0,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget an event, a fact, a conversation, a person or a thing, for ever; says where something is still pending."""
    if as_json and not (yes or dry_run):
        raise typer.BadParameter("--json asks nothing: add --yes, or --dry-run")
    settings = Settings.load(os.environ)

    def made() -> dict[str, Any]:
        if everywhere:
            if session or everything or entity or (participant and participant_hash):
                raise typer.BadParameter(_EVERYWHERE_TAKES)
            named = terminal.scope_of(settings.producer, "", "", participant) if participant else None
            return _everywhere(id_, named.participant_scope_hash if named else participant_hash, agent, profile)
        if participant_hash:
            raise typer.BadParameter("--participant-hash goes with --everywhere")
        scope = terminal.scope_of(settings.producer, agent, profile, participant)
        group = forget_group(
            scope,
            runtime=runtime,
            session_id=session or None,
            everything=everything,
            entity_key=entity or None,
            label=label,
        )
        if bool(id_) == (group is not None):
            raise typer.BadParameter("give an ID, --session, --all or --entity: exactly one of them")
        return capture.build_forget_order(scope=scope, runtime=_RUNTIME, at=_now(), target=id_ or None, group=group)

    order = made()
    named = _named(order)
    found = forget_survey.survey(settings, forget.target_of(order), named)
    if dry_run:
        _dry_run(settings, named, order, found, content=content, as_json=as_json)
    if not yes:
        with_here = _targets(settings, named, found)
        _show_targets(with_here, found, content=content)
        typer.confirm("Forget this for ever?", abort=True, err=True)
    _give(settings, made(), found, wait_s=wait_s, as_json=as_json)


def _everywhere(id_: str, participant_hash: str, agent: str, profile: str) -> dict[str, Any]:
    group: dict[str, str] | None = None
    if participant_hash:
        group = {"participant": participant_hash.lower()}
    elif agent or profile:
        if not (agent and profile):
            raise typer.BadParameter("--everywhere takes --agent together with --profile")
        group = {"agentId": agent, "profileId": profile}
    if sum((bool(id_), bool(participant_hash), bool(agent or profile))) != 1:
        raise typer.BadParameter(_EVERYWHERE_TAKES)
    return capture.build_forget_order(scope=None, runtime=_RUNTIME, at=_now(), target=id_ or None, group=group)


def _named(order: Mapping[str, Any]) -> ordered.Order:
    named = ordered.of_body(order)
    if named is None:
        raise typer.BadParameter("names nothing that can be forgotten")
    return named


# -- the order ---------------------------------------------------------------------------------------------------------


def _give(settings: Settings, order: Mapping[str, Any], before: Survey, *, wait_s: float, as_json: bool) -> NoReturn:
    named = _named(order)
    with terminal.open_journal(settings.producer) as journal, AgentMemory(settings.producer, host="forget") as memory:
        line = journal.append_order(order)
        here = Here(journal, named)
        memory.start()  # delivers it, where no agent does
        state, reason = _settled(here, line, wait_s)
        report: dict[str, Any] = {"order": _shown_order(line, order), "outcome": "refused", "reason": reason}
        report |= {"settledAt": None, "places": []}
        is_done = False
        if state is not State.DEAD:
            rows = _places(settings, order, named, line, here, before, wait_s=wait_s)
            report["places"] = [row.row() for row in rows]
            report["outcome"] = "pending"
            if state is State.STORED:
                settled_ms = here.index.entries[bytes.fromhex(line.hash)].last_ms
                report |= {"outcome": "forgotten", "settledAt": segments.iso_of_ms(settled_ms)}
                is_done = rows[0].state is forgetting.PlaceState.DONE
    if as_json:
        _print_json(report)
    else:
        _show(report, wait_s)
    raise typer.Exit(0 if is_done else 1)


def _places(
    settings: Settings,
    order: Mapping[str, Any],
    named: ordered.Order,
    line: Line,
    here: Here,
    before: Survey,
    *,
    wait_s: float,
) -> list[forgetting.Place]:
    """The receipt; when the order is settled, once this host has done its part or some seconds are over."""
    entry = here.index.entries[bytes.fromhex(line.hash)]
    if not entry.is_terminal:
        return forgetting.places(settings, before, here, settled_ms=None, forgotten=(), is_group=True)
    waits.until(lambda: _follow(here).is_answered, deadline_s=min(wait_s, _ANSWERED_WITHIN_S))
    return forgetting.places(
        settings,
        forget_survey.survey(settings, forget.target_of(order), named, order_id=line.id),
        here,
        settled_ms=entry.last_ms,
        forgotten=_episodes(before, here),
        is_group=not order.get("target"),
    )


def _settled(here: Here, line: Line, wait_s: float) -> tuple[State | None, str]:
    """What became of the order within this time."""
    entry = here.index.entries[bytes.fromhex(line.hash)]
    waits.until(lambda: _follow(here) is here and entry.is_terminal, deadline_s=wait_s)
    return entry.state, entry.last.reason if entry.last is not None else ""


def _follow(here: Here) -> Here:
    here.index.poll()
    return here


def _episodes(before: Survey, here: Here) -> list[Mapping[str, Any]]:
    records = [record.properties for record in before.records if record.label == EPISODE]
    return [*records, *(one.body for one in here.covered if one.body.get("eventType") == "episode")]


# -- what is shown -----------------------------------------------------------------------------------------------------


def _dry_run(
    settings: Settings,
    named: ordered.Order,
    order: Mapping[str, Any],
    found: Survey,
    *,
    content: bool,
    as_json: bool,
) -> NoReturn:
    targets = _targets(settings, named, found)
    if as_json:
        rows = [
            {"place": t.place, "label": t.label, "id": t.id, "at": t.at, **({"text": t.text} if content else {})}
            for t in targets[:_SHOWN]
        ]
        _print_json(
            {
                "dryRun": True,
                "order": _names_of(order),
                "counts": _counts(targets, found),
                "targets": rows,
                "cut": len(targets) > _SHOWN,
                "unreachable": dict(found.unreachable),
            }
        )
    else:
        _show_targets(targets, found, content=content)
    raise typer.Exit(0 if targets else 1)


def _targets(settings: Settings, named: ordered.Order, found: Survey) -> list[Target]:
    if not settings.producer.journal_dir.is_dir():
        return found.targets(None)
    with terminal.open_journal(settings.producer) as journal:
        return found.targets(Here(journal, named))


def _counts(targets: list[Target], found: Survey) -> dict[str, int]:
    counts = dict.fromkeys(("store", "recent_writes", "dead_letters", "journal", "journal_bytes"), 0)
    for target in targets:
        counts[target.place] += 1
    return {**counts, "sessions": found.sessions}


def _show_targets(targets: list[Target], found: Survey, *, content: bool) -> None:
    for target in targets[:_SHOWN]:
        _out.print(f"{target.place:<14} {target.label:<11} {target.id}  {terminal.shown(target.at)}")
        if content and target.text:
            _out.print("    " + terminal.shown(target.text).replace("\n", "\n    "))
    if len(targets) > _SHOWN:
        _out.print(f"and {len(targets) - _SHOWN} more")
    _out.print(", ".join(f"{name} {number}" for name, number in _counts(targets, found).items()))
    for place, problem in found.unreachable.items():
        _err.print(f"{place}: cannot be looked at ({problem})")


def _names_of(order: Mapping[str, Any]) -> dict[str, Any]:
    return {"everywhere": order.get("everywhere") is True, "target": order.get("target"), "group": order.get("group")}


def _shown_order(line: Line, order: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": line.id, "at": order["at"], **_names_of(order)}


def _show(report: Mapping[str, Any], wait_s: float) -> None:
    order_id = report["order"]["id"]
    if report["outcome"] == "refused":
        _err.print(f"refused {report['reason']}: {_REFUSED.get(report['reason'], 'nothing was forgotten')}")
        _err.print(
            f"nothing was forgotten; the order is a dead letter: memory-tasks dead-letters discard {order_id[:16]}"
        )
        return
    if report["outcome"] == "pending":
        why = f" ({report['reason']})" if report["reason"] else ""
        _err.print(f"order {order_id} has no receipt within {wait_s:g} s{why}")
        _err.print(
            "it is durable and is delivered as soon as a worker answers; on this host its targets are not recalled"
        )
    _out.print(f"order {order_id}, " + (f"settled {report['settledAt']}" if report["settledAt"] else "not settled"))
    for row in report["places"]:  # a line each, whole whatever the terminal's width
        until = f" {row['until']}" if row["until"] else ""
        count = "" if row["count"] is None else f"  left {row['count']}"
        note = f"  ({row['detail']})" if row["detail"] else ""
        _out.print(f"{row['place']:<20} {row['state'].replace('_', ' ')}{until}{count}{note}")


def _now() -> str:
    return segments.iso_of_ms(int(time.time() * 1000))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
