"""The settings table of the README: printed, written or checked (`python -m ops.settings_table --write README.md`)."""

from __future__ import annotations

import sys
from pathlib import Path

from memory_tasks import settings

BEGIN, END = "<!-- settings: begin (made by make docs) -->", "<!-- settings: end -->"


def table() -> str:
    """The Markdown table, without the marks around it."""
    lines = ["| variable | default | unit | what and why |", "|---|---|---|---|"]
    for row in settings.table():
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.variable}` | {default} | {row.unit} | {row.reason.replace('|', '/')} |")
    return "\n".join(lines)


def replaced(text: str) -> str:
    """`text` with the table between its marks made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--write"] and len(arguments) == 2:
        path = Path(arguments[1])
        path.write_text(replaced(path.read_text("utf-8")), "utf-8")
    else:
        sys.stdout.write(table() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
