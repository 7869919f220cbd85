"""The access lists of the runbook, read out of it, so that what an operator copies is what the tests run with."""

from __future__ import annotations

from pathlib import Path

__all__ = ["of_runbook"]

_RUNBOOK = Path(__file__).resolve().parents[1] / "ops" / "runbook.md"


def of_runbook(**passwords: str) -> list[str]:
    """The lines `user …` of the runbook without their first word, each user with the password given for it."""
    found = []
    for line in _RUNBOOK.read_text("utf-8").splitlines():
        if line.startswith("user "):
            name, rules = line.removeprefix("user ").split(" ", 1)
            found.append(f"{name} {rules.replace('>SECRET', '>' + passwords[name])}")
    assert len(found) == len(passwords), "the runbook has other users"
    return found
