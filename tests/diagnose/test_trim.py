"""Trimming: what is kept says the same, and nothing private is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from diagnosetool.cli import main

from tests.diagnose.conftest import Make, Run

FIELDS: list[dict[str, bool]] = [
    {"graphs": True},
    {"graphs": False, "shapes": True},
    {"graphs": True, "spans": True},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_a_trimmed_trace_gives_the_same_answer(
    trace: Make, diagnose: Run, tmp_path: Path, fields: dict[str, bool]
) -> None:
    whole, cut = trace(steps=6, **fields), tmp_path / "cut.json.gz"
    done = diagnose(whole, "--trim", cut, "--quiet")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(diagnose(path, "--json").stdout) for path in (whole, cut)]
    for key in ("verdict", "layers", "steps_from", "device"):
        assert answers[0][key] == answers[1][key]
    for key in ("evidence", "pool_rows", "dtypes", "reader"):
        assert answers[0]["cast"][key] == answers[1]["cast"][key]
    assert answers[0]["step_ms"] == pytest.approx(answers[1]["step_ms"], rel=0.01)
    assert 1 <= answers[1]["steps"] <= 2


def test_a_trimmed_trace_keeps_no_names_of_hosts_or_files(
    trace: Make, diagnose: Run, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.json.gz"
    diagnose(trace(steps=6), "--trim", cut)
    text = gzip.decompress(cut.read_bytes()).decode()
    assert "secret-host" not in text
    assert "private.json" not in text
    assert cut.stat().st_size < 200_000


def test_trimming_twice_gives_the_same_bytes(trace: Make, diagnose: Run, tmp_path: Path) -> None:
    whole = trace(steps=6)
    cuts = [tmp_path / name for name in ("a.json.gz", "b.json.gz")]
    for cut in cuts:
        diagnose(whole, "--trim", cut)
    assert cuts[0].read_bytes() == cuts[1].read_bytes()


def test_too_few_steps_are_refused_and_nothing_is_written(
    trace: Make, diagnose: Run, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.json.gz"
    done = diagnose(trace(steps=3), "--trim", cut, "--steps", "5")
    assert done.returncode == 3
    assert "no 5 decode steps in a row" in done.stderr
    assert not cut.exists()


def test_a_target_that_cannot_be_written_is_refused(trace: Make, diagnose: Run) -> None:
    done = diagnose(trace(steps=6), "--trim", "/no/such/folder/cut.json.gz", "--quiet")
    assert done.returncode == 4
    assert done.stderr.startswith("diagnose: /no/such/folder/cut.json.gz can't be written")


def test_the_trace_itself_and_what_is_no_file_are_no_targets(
    trace: Make, diagnose: Run, tmp_path: Path
) -> None:
    whole = trace(steps=6)
    before = whole.read_bytes()
    link = tmp_path / "link.json"
    link.symlink_to(whole)
    for target in (whole, link, tmp_path, "/dev/null"):
        assert diagnose(whole, "--trim", target).returncode == 2
    assert whole.read_bytes() == before
    assert Path("/dev/null").exists()


def test_a_target_that_was_there_is_whole_or_as_it_was(
    trace: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = trace(steps=6), tmp_path / "cut.json"
    cut.write_text("mine")

    def no_room(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", no_room)
        assert main([str(whole), "--trim", str(cut)]) == 4
    assert cut.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.json", "trace.json"]
    assert main([str(whole), "--trim", str(cut)]) == 0
    assert json.loads(cut.read_text())["traceEvents"]
