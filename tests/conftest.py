"""What holds for all tests: CI draws the same examples every time, so that a landing never fails by chance; and figures
that a test tells stand at the end of the run, whatever process it ran in."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

Tell = Callable[[str], None]
_FIGURE = "figure"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Tell a figure, one line, to whoever runs the tests."""
    return lambda line: record_property(_FIGURE, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == _FIGURE
    ]
    if lines:
        terminalreporter.section("figures")
        for line in sorted(lines):
            terminalreporter.line(line)
