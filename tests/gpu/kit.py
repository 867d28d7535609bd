"""Runs upstream's kit in processes of its own, as some of its cases break the CUDA context."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.gpu.kit_cases import CASES
from tests.gpu.machine import release

# Variant -> backend, KV dtype, strategy.
VARIANTS = {
    "stock, BF16": ("flashinfer", "bfloat16", "gather"),
    "stock, FP8": ("flashinfer", "fp8_e4m3", "gather"),
    "gather, FP8": ("flashinfer_mla_compact", "fp8_e4m3", "gather"),
    "direct, FP8": ("flashinfer_mla_compact", "fp8_e4m3", "direct"),
}
CONTROLS = ("stock, BF16", "stock, FP8")
OURS = ("gather, FP8", "direct, FP8")
SCRIPT = Path(__file__).with_name("kit_cases.py")
SECONDS = 240

RESULTS = Path(__file__).parent / "results"

# Case -> variant -> {"outcome": passed, failed or skipped, "error": one line}.
Outcomes = dict[str, dict[str, dict[str, str]]]
Running = dict[str, Future[dict[str, dict[str, str]]]]


def start() -> Running:
    """Start all variants at once; they share the GPU with whatever runs meanwhile."""
    pool = ThreadPoolExecutor(len(VARIANTS))
    return {name: pool.submit(run_variant, name) for name in VARIANTS}


def result() -> Path:
    """The file of this release's outcomes."""
    return RESULTS / f"upstream-kit-{release()}.json"


def collect(running: Running) -> Outcomes:
    finished = {name: future.result() for name, future in running.items()}
    return {case: {name: finished[name][case] for name in VARIANTS} for case in CASES}


def run_variant(name: str) -> dict[str, dict[str, str]]:
    """The outcome of every case; after one that breaks the context, the rest in a new process."""
    outcomes: dict[str, dict[str, str]] = {}
    while len(outcomes) < len(CASES):
        outcomes |= run_from(name, len(outcomes))
    return outcomes


def run_from(name: str, first: int) -> dict[str, dict[str, str]]:
    """The outcomes of at least one case; the case in which a process dies has failed.

    Raises:
        RuntimeError: the process ended before its first case.
    """
    backend, kv, strategy = VARIANTS[name]
    environment = {**os.environ, "SGLANG_MLA_COMPACT_STRATEGY": strategy}
    command = [sys.executable, str(SCRIPT), backend, kv, str(first)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        printed, ended = done.stdout, f"exit code {done.returncode}: {last_line(done.stderr)}"
    except subprocess.TimeoutExpired as expired:
        printed, ended = (expired.stdout or b"").decode(), f"timeout after {SECONDS} s"
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    started = [line["case"] for line in lines if "case" in line]
    finished = [line for line in lines if "outcome" in line]
    if not started:
        raise RuntimeError(f"{' '.join(command)}: no case ran, {ended}")
    outcomes = dict(zip(started, finished, strict=False))
    outcomes.setdefault(started[-1], {"outcome": "failed", "error": ended})
    return outcomes


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
