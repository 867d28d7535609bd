"""What an interpreter would import and what the NVIDIA driver says, without importing any of it."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

SECONDS = 30
PLUGIN = "flashinfer-mla-compact"
PACKAGES = (
    "sglang",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "torch",
    "triton",
    "sglang-kernel",
    "sgl-kernel",
    PLUGIN,
)
# Runs in the interpreter under examination, which may be older or broken: every answer that fails
# is left out. torch states its CUDA release in version.py, which is read as text.
_PROBE = """
import importlib.metadata, importlib.util, json, pathlib, re, sys
sys.path[:] = [entry for entry in sys.path if entry]
def attempt(function):
    try:
        return function()
    except Exception:
        return None
def torch_cuda():
    origin = importlib.util.find_spec("torch").origin
    text = pathlib.Path(origin).with_name("version.py").read_text(errors="replace")
    return re.search(r"^cuda\\b[^=]*=\\s*['\\"]([0-9.]+)", text, re.M).group(1)
versions = {name: attempt(lambda: importlib.metadata.version(name)) for name in sys.argv[1:]}
print(json.dumps({
    "python": sys.version.split()[0],
    "versions": {name: version for name, version in versions.items() if version},
    "torch_cuda": attempt(torch_cuda),
}))
"""
_DRIVER_CUDA = re.compile(r"CUDA Version: *([0-9.]+)")
_QUERY = "name,compute_cap,driver_version,memory.total"


@dataclass(frozen=True)
class Interpreter:
    """What an interpreter states of itself.

    Attributes:
        python: its release.
        versions: installed PACKAGES and their versions.
        torch_cuda: the CUDA release that torch was built for; None for a CPU build or no torch.
    """

    python: str
    versions: Mapping[str, str]
    torch_cuda: str | None


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi; `capability` such as "9.0", `memory` such as "143771 MiB"."""

    name: str
    capability: str
    driver: str
    memory: str


def interpreter(executable: str) -> Interpreter | None:
    """Ask an interpreter; None where it does not run."""
    output = _output([executable, "-c", _PROBE, *PACKAGES])
    try:
        answer = json.loads((output or "").splitlines()[-1])
        return Interpreter(answer["python"], answer["versions"], answer["torch_cuda"])
    except (ValueError, KeyError, IndexError):
        return None


def gpus() -> list[Gpu]:
    """The GPUs that nvidia-smi lists; none where there is no driver or no card."""
    output = _output(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]) or ""
    rows = csv.reader(output.splitlines(), skipinitialspace=True)
    return [Gpu(*row) for row in rows if len(row) == len(_QUERY.split(","))]


def driver_cuda() -> str | None:
    """The newest CUDA release that the driver runs, as nvidia-smi's heading states it."""
    found = _DRIVER_CUDA.search(_output(["nvidia-smi"]) or "")
    return found[1] if found else None


def _output(command: list[str]) -> str | None:
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return run.stdout
