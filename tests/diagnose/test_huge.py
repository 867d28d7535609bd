"""A trace of more than a gigabyte is read through a pipe in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.diagnose.conftest import SCRIPT
from tests.diagnose.synthetic import Server, events, header

GIGABYTE = 1 << 30
PYTHON_FRAME = {
    "ph": "X",
    "cat": "python_function",
    "name": "sglang/srt/layers/linear.py(410): forward",
    "pid": 8798,
    "tid": 8798,
    "ts": 5124676869388.622,
    "dur": 102.2,
    "args": {"Python id": 12345, "Python parent id": 12344, "Ev Idx": 99},
}


def test_a_gigabyte_is_read_in_a_fraction_of_it(tmp_path: Path) -> None:
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    command = [sys.executable, str(SCRIPT), str(pipe), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    peak = write_gigabyte(pipe, child.pid)
    answer = json.loads(child.communicate()[0])
    assert child.returncode == 1
    assert answer["steps"] == 2
    assert peak < 0.25 * GIGABYTE


def write_gigabyte(pipe: Path, reader: int) -> int:
    """The steps of a small server, then a gigabyte of one recorded Python frame, repeated.

    Returns the most memory, in bytes, that the reading process held meanwhile.
    """
    steps = ",".join(json.dumps(event) for event in events(Server(layers=6, steps=3)))
    block = ("," + json.dumps(PYTHON_FRAME, indent=2)).encode() * 20_000
    with pipe.open("wb") as out:
        out.write((header() + steps).encode())
        for _ in range(GIGABYTE // len(block) + 1):
            out.write(block)
        out.flush()
        peak = peak_memory(reader)
        out.write(b"]}")
    return peak


def peak_memory(process: int) -> int:
    """Peak of a process since its last exec: a child's rusage would count its parent's, too."""
    status = Path(f"/proc/{process}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
