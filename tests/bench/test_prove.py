"""`bench/prove` with a stand-in engine: table, picture, verdict, a model on demand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.bench.serving import PYTHON, ROOT, environment

PROVE = [PYTHON, ROOT / "bench" / "prove"]


def prove(folder: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*PROVE, *arguments, "--out", folder, "--loads", "1x100", "--repeats", 2]
    return subprocess.run(
        [str(part) for part in command],
        env=environment(**more),
        cwd=folder.parent,
        text=True,
        capture_output=True,
    )


def test_tells_tokens_speed_pool_and_files(model: Path, tmp_path: Path) -> None:
    done = prove(tmp_path / "proof", model)
    assert done.returncode == 0, done.stderr
    assert "tokens of FP8 compact and FP8 as shipped: equal" in done.stdout
    assert "times as fast as FP8 as shipped" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines()[1:4]] == SETUPS
    content = json.loads((tmp_path / "proof" / "proof.json").read_text())
    assert [record["setup"] for record in content["records"]] == SETUPS


SETUPS = ["stock", "compact", "bf16"]


def test_different_tokens_are_told_and_exit_1(model: Path, tmp_path: Path) -> None:
    prove(tmp_path / "proof", model)
    path = tmp_path / "proof" / "proof.json"
    content = json.loads(path.read_text())
    content["records"][1]["output"][0][3] += 1
    path.write_text(json.dumps(content))
    done = prove(tmp_path / "proof", model)
    assert done.returncode == 1
    assert "differ at request 0, token 3" in done.stdout
    assert "DIFFERENT" in done.stdout


def test_picture_is_drawn_where_matplotlib_is(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    prove(tmp_path / "proof", model)
    assert (tmp_path / "proof" / "proof.png").read_bytes().startswith(b"\x89PNG")


def test_an_interpreter_without_sglang_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = prove(tmp_path / "proof", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert "sglang: run this with the Python that has sglang and this backend" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "proof").exists()


def test_a_host_without_a_gpu_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = prove(tmp_path / "proof", FAKE_NO_GPU="1")
    assert done.returncode == 2
    assert "torch sees no GPU" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "proof").exists()


def test_a_folder_that_cannot_be_made_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = prove(tmp_path / "file", model)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_a_model_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    done = prove(tmp_path / "proof", tmp_path / "nowhere")
    assert done.returncode == 2
    assert "nowhere has no config.json" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_another_pool_may_be_tried_after_a_run_without_records(model: Path, tmp_path: Path) -> None:
    unfit = '{"about": {"pool": 1}, "records": []}'
    (tmp_path / "proof").mkdir()
    (tmp_path / "proof" / "proof.json").write_text(unfit)
    assert prove(tmp_path / "proof", model, "--pool", "2000").returncode == 0


def test_a_model_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    done = prove(tmp_path / "proof")  # the stand-in torch can't draw weights
    assert done.returncode == 2
    assert "The small model can't be made" in done.stderr.splitlines()[-1]
