"""`bench/gpu.sh`: each step leaves its files, and says when it ran out of time."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.bench.serving import PYTHON, ROOT, environment

FILES = {
    "tokens": {"tokens.json": ["stock", "compact", "wrong-row"]},
    "bf16": {"bf16.json": ["bf16", "compact", "flashmla"]},
    "prefix": {"prefix.json": ["bf16", "compact"]},
    "prefill-graph": {"prefill-graph.json": ["bf16", "compact"]},
    "pool": {"pool.json": ["pool-131072", "pool-2000000"]},
}


def steps(model: Path, *names: str, **more: str) -> subprocess.CompletedProcess[str]:
    places = {"MODEL": str(model), "RESULTS": str(model / "results"), "TMPDIR": str(model)}
    return subprocess.run(
        [ROOT / "bench" / "gpu.sh", *names],
        env=environment(PYTHON=PYTHON, **places, **more),
        text=True,
        capture_output=True,
    )


@pytest.mark.parametrize("step", list(FILES))
def test_a_step_measures_its_setups(model: Path, step: str) -> None:
    done = steps(model, step)
    assert done.returncode == 0, done.stderr
    for name, setups in FILES[step].items():
        records = json.loads((model / "results" / name).read_text())["records"]
        assert {record["setup"] for record in records} == set(setups)


def test_out_of_time_is_exit_124(model: Path) -> None:
    done = steps(model, "tokens", STEP_SECONDS="2", FAKE_HANGS="1")
    assert done.returncode == 124


def test_a_failed_check_does_not_stop_later_steps(model: Path) -> None:
    done = steps(model, "bf16", "prefill-graph", FAKE_FAILS="flashinfer_mla_compact")
    assert done.returncode == 1
    assert done.stderr.count("no kernel for this device") == 2


def test_attention_alone_is_measured_to_the_same_folder(tmp_path: Path) -> None:
    told = tmp_path / "python"
    told.write_text('#!/bin/sh\necho "$@"\n')
    told.chmod(0o755)
    places = {**os.environ, "PYTHON": str(told), "RESULTS": "results"}
    done = subprocess.run(
        [ROOT / "bench" / "gpu.sh", "kernels"], env=places, text=True, capture_output=True
    )
    assert done.stdout == "-m bench.kernels --out results/kernels.json\n"


def test_an_unknown_step_is_exit_2() -> None:
    assert steps(Path("nowhere"), "everything").returncode == 2
