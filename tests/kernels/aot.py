"""Compile Triton kernels ahead of time, without a GPU, and read what ptxas says.

As a module: `compile_all(jobs)`. It starts this file as a script, because the interpreter that
the numerical tests switch on can't be switched off again within a process.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OVERLAY = Path(__file__).parents[2] / "overlay"

# Bytes of shared memory that one block may have: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability".
SHARED_LIMIT = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
# What the blocks of an SM share, each with 1 KiB that the system takes of it: one block may have
# all but that.
SHARED_RESERVED = 1024

# What is counted in the PTX of a kernel.
PATTERNS = {
    "mma": "mma.sync",
    "wgmma": "wgmma.mma_async.sync",
    "async": "cp.async.c",
    "decode": "cvt.rn.f16x2.e4m3x2",
    "wide": "ld.global.v4.b32",
}


@dataclass(frozen=True)
class Job:
    """One specialisation of one kernel.

    kernel: "package.module:function". types: Triton types of the run-time arguments ("*u8",
    "i32", "fp32"); pointers and names in `aligned` are known to be multiples of 16.
    """

    kernel: str
    arch: int
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int
    stages: int
    registers: int | None = None
    aligned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What the compiler made of a job; shared memory and spills in bytes a block or thread."""

    shared: int
    registers: int
    spilled: int
    counts: dict[str, int] = field(default_factory=dict)


def compile_all(jobs: list[Job], triton: Path | None = None) -> list[Report]:
    """Reports in the order of `jobs`; RuntimeError with the compiler's words if one fails.

    triton: a folder with another Triton than the installed one.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        if triton is not None:
            environment["PYTHONPATH"] = str(triton)
        done = subprocess.run(
            [sys.executable, __file__],
            input=json.dumps([asdict(job) for job in jobs]),
            env={**environment, "TRITON_CACHE_DIR": cache},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [Report(**report) for report in json.loads(done.stdout)]


def _compile(job: Job) -> Report:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    module, name = job.kernel.split(":")
    kernel = getattr(importlib.import_module(module), name)
    names = kernel.arg_names
    types = {n: "constexpr" if n in job.constants else job.types[n] for n in names}
    aligned = [n for n, t in types.items() if t.startswith("*") or n in job.aligned]
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(
        fn=kernel,
        signature=types,
        constexprs={(names.index(n),): value for n, value in job.constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    options = {"num_warps": job.warps, "num_stages": job.stages}
    if job.registers is not None:
        options["maxnreg"] = job.registers
    built = triton.compile(source, target=GPUTarget("cuda", job.arch, 32), options=options)
    registers, spilled = _assemble(built.asm["ptx"], job.arch)
    counts = {key: built.asm["ptx"].count(text) for key, text in PATTERNS.items()}
    return Report(built.metadata.shared, registers, spilled, counts)


def _assemble(ptx: str, arch: int) -> tuple[int, int]:
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"\.target\s+(\w+)", ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        output = subprocess.run(
            [get_ptxas(arch).path, "-v", f"--gpu-name={target[1]}", path, "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    used = re.search(r"Used (\d+) registers", output)
    assert used is not None, output
    return int(used[1]), sum(int(n) for n in re.findall(r"(\d+) bytes spill", output))


if __name__ == "__main__":
    sys.path.insert(0, str(OVERLAY))
    print(json.dumps([asdict(_compile(Job(**job))) for job in json.load(sys.stdin)]))
