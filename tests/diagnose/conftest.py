from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.diagnose.synthetic import Server, write

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "diagnose"

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Make = Callable[..., Path]


@pytest.fixture
def diagnose() -> Run:
    """Runs scripts/diagnose as a user does."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def trace(tmp_path: Path) -> Make:
    """Writes the trace of a small server; keywords are fields of `Server`."""

    def make(name: str = "trace.json", **fields: object) -> Path:
        small: dict[str, object] = {"layers": 6, **fields}
        return write(tmp_path / name, Server(**small))  # type: ignore[arg-type]

    return make
