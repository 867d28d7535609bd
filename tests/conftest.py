from __future__ import annotations

from pathlib import Path

import pytest

from tests.trees import PINS, applied_tree


@pytest.fixture(params=PINS)
def release(request: pytest.FixtureRequest) -> str:
    """Each pinned release in turn."""
    return str(request.param)


@pytest.fixture
def tree(release: str) -> Path:
    """The applied tree of the release; not to be written to."""
    return applied_tree(release)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what each kernel compiles to, as tests that pass tell nothing."""
    told = {
        str(text)
        for report in terminalreporter.getreports("passed")
        for name, text in report.user_properties
        if name == "compiled"
    }
    if told:
        terminalreporter.section("compiled ahead of time")
    for line in sorted(told):
        terminalreporter.write_line(line)
