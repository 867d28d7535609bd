"""Every kernel at its edges under compute-sanitizer, which both of its tools find clean."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import edges

# Of calls that return an error, PyTorch makes some on purpose.
TOOLS = {"memcheck": ["--report-api-errors=no"], "racecheck": []}
LEFT_OUT = {"memcheck": [], "racecheck": ["--without-mbarriers"]}
TOOLKIT = Path("/usr/local/cuda/bin/compute-sanitizer")  # where PATH may not lead
ERROR = 77
SECONDS = 240

Runs = dict[str, "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """Both tools, started at the same time: each takes its time on the CPU."""
    program = shutil.which("compute-sanitizer") or (TOOLKIT if TOOLKIT.exists() else None)
    if program is None:
        pytest.skip("needs compute-sanitizer")
    # Every tensor is an allocation of its own then, and what lies behind it belongs to nobody.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    common = [f"--error-exitcode={ERROR}", "--target-processes=application-only"]
    command = [sys.executable, "-m", edges.__name__]
    started = {
        tool: subprocess.Popen(
            [program, f"--tool={tool}", *own, *common, *command, *LEFT_OUT[tool]],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for tool, own in TOOLS.items()
    }
    yield started
    for run in started.values():
        run.kill()
        run.wait()


@pytest.mark.parametrize("tool", TOOLS)
def test_kernels_at_their_edges_are_clean(runs: Runs, tool: str) -> None:
    printed, _ = runs[tool].communicate(timeout=SECONDS)
    if "Device not supported" in printed:
        pytest.skip("compute-sanitizer does not know this device, or its driver")
    assert runs[tool].returncode == 0, printed[-4000:]
    assert [line for line in printed.splitlines() if line.endswith(": done")] == [
        f"{check.__name__}: done" for check in edges.CHECKS
    ]
