"""`bench/gpu.sh`: each step leaves its files, and says when it ran out of time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.bench.serving import PYTHON, ROOT, environment

FILES = {
    "tokens": {"tokens.json": ["stock", "compact", "wrong-row"]},
    "bf16": {"bf16.json": ["bf16", "compact", "flashmla"]},
    "fp8": {"fp8.json": ["compact", "triton"]},
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


def test_every_engine_of_the_step_with_drafts_accepts_as_many_tokens_a_step(drafted: Path) -> None:
    done = steps(drafted, "speculation")
    assert done.returncode == 0, done.stderr
    content = json.loads((drafted / "results" / "speculation.json").read_text())
    assert (content["about"]["accepted"], content["about"]["pool"]) == (3, 300_032)
    assert len(content["records"]) == 16
    for one in content["records"]:
        assert one["step_ms"] == pytest.approx(3 * one["tpot_ms"])
        assert one["right_requests"] is None, "sglang makes up the tokens"


def test_a_smaller_pool_may_be_asked_for(model: Path) -> None:
    done = steps(model, "prefix", POOL="140000")
    assert done.returncode == 0, done.stderr
    assert json.loads((model / "results" / "prefix.json").read_text())["about"]["pool"] == 140_000


def test_the_step_of_the_first_token_counts_launches_too(model: Path) -> None:
    assert steps(model, "prefix").returncode == 0
    setups = json.loads((model / "results" / "launches.json").read_text())["setups"]
    assert {name: setup["launches"] for name, setup in setups.items()} == {"bf16": 1, "compact": 1}


def test_a_second_run_of_that_step_measures_nothing_and_keeps_the_launches(model: Path) -> None:
    steps(model, "prefix")
    before = (model / "results" / "launches.json").read_bytes()
    again = steps(model, "prefix")
    assert (again.returncode, "nothing is run" in again.stderr) == (0, True)
    shutil.rmtree(model / "results" / "traces")
    without = steps(model, "prefix")
    assert without.returncode == 0
    assert "no trace in" in without.stderr.splitlines()[-1]
    assert (model / "results" / "launches.json").read_bytes() == before


def test_a_damaged_trace_does_not_stop_later_steps(model: Path) -> None:
    steps(model, "prefix")
    before = (model / "results" / "launches.json").read_bytes()
    for trace in (model / "results" / "traces").iterdir():
        trace.write_bytes(trace.read_bytes()[:-9])
    done = steps(model, "prefix", "prefill-graph")
    assert done.returncode == 1
    assert done.stderr.count("record it again") == 1
    assert (model / "results" / "prefill-graph.json").exists()
    assert (model / "results" / "launches.json").read_bytes() == before


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
    assert done.stdout.splitlines()[-1] == "-m bench.kernels --missing --out results/kernels.json"


def test_an_unknown_step_is_exit_2_before_another_is_run(model: Path) -> None:
    done = steps(model, "bf16", "everything")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no step 'everything'" in done.stderr
    assert not (model / "results").exists()


def test_a_host_without_a_gpu_is_one_sentence_and_exit_2(model: Path) -> None:
    done = steps(model, "bf16", FAKE_NO_GPU="1")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "torch sees no GPU" in done.stderr


def test_a_folder_that_cannot_be_written_is_refused_before_an_engine_starts(model: Path) -> None:
    (model / "results").touch()
    done = steps(model, "bf16")
    assert done.returncode == 2
    assert "name another file" in done.stderr.splitlines()[-1]
    assert "starting" not in done.stderr


def test_a_stopped_step_continues_and_a_finished_one_is_not_run_again(model: Path) -> None:
    steps(model, "bf16")
    last = forget_last_load(model / "results" / "bf16.json")
    continued = steps(model, "bf16")
    assert loads_run(continued) == {last}
    assert "measured on stand-in: nothing is run" in steps(model, "bf16").stderr


def test_a_card_without_one_of_the_backends_continues_as_well(model: Path) -> None:
    steps(model, "bf16", FAKE_FAILS="flashmla")
    last = forget_last_load(model / "results" / "bf16.json")
    continued = steps(model, "bf16", FAKE_FAILS="flashmla")
    assert continued.returncode == 1
    assert loads_run(continued) == {last}


def forget_last_load(path: Path) -> str:
    content = json.loads(path.read_text())
    last: str = content["records"][-1]["load"]
    content["records"] = [one for one in content["records"] if one["load"] != last]
    path.write_text(json.dumps(content))
    return last


def loads_run(done: subprocess.CompletedProcess[str]) -> set[str]:
    lines = [line.split() for line in done.stderr.splitlines() if " of " in line]
    return {words[1].rstrip(":") for words in lines if words[0] in ("bf16", "compact", "flashmla")}


def test_figures_of_another_card_are_not_added_to(model: Path) -> None:
    steps(model, "bf16")
    path = model / "results" / "bf16.json"
    content = json.loads(path.read_text())
    del content["records"][-1]
    for one in content["records"]:
        one["host"]["device"] = "another card"
    path.write_text(json.dumps(content))
    before = path.read_text()
    done = steps(model, "bf16")
    assert done.returncode == 2
    assert "holds figures of device another card, this is device stand-in" in done.stderr
    assert json.loads(path.read_text()) == json.loads(before)
