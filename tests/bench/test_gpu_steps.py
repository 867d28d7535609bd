"""`bench/gpu.sh`: each step leaves its files, and says when it ran out of time."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.bench.serving import PYTHON, ROOT, environment

FILES = {
    "tokens": {"tokens.json": ["stock", "compact", "wrong-row"]},
    "bf16": {"bf16.json": ["bf16", "compact"]},
    "prefix-graph": {"prefix-graph.json": ["bf16", "compact"]},
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
    done = steps(model, "bf16", "prefix-graph", FAKE_FAILS="flashinfer_mla_compact")
    assert done.returncode == 1
    assert done.stderr.count("no kernel for this device") == 2


def test_attention_alone_needs_a_device(model: Path) -> None:
    done = steps(model, "kernels")
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr


def test_an_unknown_step_is_exit_2() -> None:
    assert steps(Path("nowhere"), "everything").returncode == 2
