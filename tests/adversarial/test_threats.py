"""`ops/THREATS.md` claims nothing without a test that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
THREATS = (ROOT / "ops" / "THREATS.md").read_text("utf-8")


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", THREATS))
    assert len(named) >= 25
    for path in {path for path, _ in named}:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert {name for of, name in named if of == path} <= there, path


def test_every_row_of_what_holds_names_a_test() -> None:
    section = THREATS.partition("## What holds")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 10 and all("::test_" in row for row in rows)
