"""Kernel tests run under Triton's interpreter, on modules of the overlay that need no sglang."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernels.aot import Report

OVERLAY = Path(__file__).resolve().parents[2] / "overlay"

# Triton decides for each kernel, its own library included, when it is imported.
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(OVERLAY))

Compiled = Callable[[int, str, "Report"], None]


@pytest.fixture
def compiled(record_property: Callable[[str, object], None]) -> Compiled:
    """Notes what a kernel compiles to on a card, for the summary of the run."""

    def note(card: int, kernel: str, report: Report) -> None:
        figures = f"{report.registers:4} registers {report.spilled:3} B spilled"
        figures += f" {report.shared:7} B shared"
        record_property("compiled", f"sm_{card:<4} {kernel:32}{figures}")

    return note
