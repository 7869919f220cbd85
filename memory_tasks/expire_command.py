"""The command `memory-tasks expire`: what workers do by themselves now and then, by hand. It runs where a worker could:
with the stores, the Redis and the keys of one.

Exit codes as everywhere: 0 done; 1 not all of it could be done; 2 it cannot be carried out as given.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from memory_tasks import clock, expiry, tenants, worker
from memory_tasks.settings import Settings
from memory_tasks.terminal import AsJson

__all__ = ["expire"]

_SHOWN = 1000  # ids of a dry run, per tenant

_out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)


def expire(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the factIds that would go; change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the facts whose validUntil passed more than MEMORY_EXPIRED_KEPT_S ago from the store, of every tenant."""
    settings = Settings.load(os.environ)
    names = sorted(tenants.Tenants.load(settings.producer, settings.tenants_file).stores())
    parts = worker.Worker(settings)
    try:
        made = parts.expirer()
        rows = [_row(name, _look(made, name) if dry_run else _remove(made, name), dry_run=dry_run) for name in names]
    finally:
        parts.close()
    if as_json:
        sys.stdout.write(json.dumps({"dryRun": dry_run, "tenants": rows}, indent=2) + "\n")
    else:
        for row in rows:
            _show(row, dry_run=dry_run)
    raise typer.Exit(1 if any(row["problem"] or (row["more"] and not dry_run) for row in rows) else 0)


def _look(made: expiry.Expiry, tenant: str) -> expiry.Outcome:
    return made.look(tenant, limit=_SHOWN)


def _remove(made: expiry.Expiry, tenant: str) -> expiry.Outcome:
    """Runs until nothing is left, or one changes nothing."""
    removed = 0
    while True:
        one = made.run(tenant, until=clock.now_s() + 2 * expiry.RUN_S)
        removed += one.removed
        if not one.more or one.problem or not one.removed:
            return expiry.Outcome(removed=removed, kept=one.kept, more=one.more, problem=one.problem)


def _row(tenant: str, outcome: expiry.Outcome, *, dry_run: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"tenant": tenant, "kept": outcome.kept, "more": outcome.more, "problem": outcome.problem}
    return {**row, "wouldGo": list(outcome.ids)} if dry_run else {**row, "removed": outcome.removed}


def _show(row: dict[str, Any], *, dry_run: bool) -> None:
    for id_ in row.get("wouldGo", ()):
        _out.print(id_)
    done = f"{len(row['wouldGo'])} would go" if dry_run else f"{row['removed']} removed"
    kept = f", {row['kept']} kept" if row["kept"] else ""
    more = ", there are more" if row["more"] else ""
    problem = f": {row['problem']}" if row["problem"] else ""
    _out.print(f"{row['tenant']}  {done}{kept}{more}{problem}")
