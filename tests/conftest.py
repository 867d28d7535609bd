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
