"""Print every benchmark as one table: what, figure, baseline, ratio. `--quick` runs each once, as a smoke test."""

from __future__ import annotations

import argparse
import sys

from tests.benchmarks import capture, hook, redaction, tasks
from tests.benchmarks.table import Row, show


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run?")
    parser.add_argument("names", nargs="*", choices=[[], "hook", "capture", "redaction", "tasks"], help="only these")
    given = parser.parse_args()
    rows: list[Row] = []
    for name, module in (("hook", hook), ("capture", capture), ("redaction", redaction), ("tasks", tasks)):
        if not given.names or name in given.names:
            rows += module.measure(quick=given.quick)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
