"""Runs the bench commands with stand-ins for sglang and torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.lookup import Task

PYTHON = sys.executable
ROOT = Path(__file__).parents[2]
FAKES = f"{Path(__file__).parent / 'fake'}:{Path(__file__).parent / 'fake_torch'}"
TASK = Task(layers=5, vocabulary=97 * 80, probe_layer=2)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{FAKES}:{ROOT}", **more}
