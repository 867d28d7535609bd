"""GPU tests: marked as such, each starting from the default settings of the backend."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
VARIABLES = ("SGLANG_MLA_COMPACT_STRATEGY", "SGLANG_MLA_COMPACT_BUFFER_MIB")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gather wherever a test does not ask for something else: what is bit-identical to stock."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "gather")
