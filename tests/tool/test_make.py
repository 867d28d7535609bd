"""The Makefile: what it passes on, and how it ends."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from overlaytool.pin import REPOSITORY


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The Makefile with a `scripts/carry` that ends with the code in `code`."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    carry = tmp_path / "scripts/carry"
    carry.parent.mkdir()
    carry.write_text("#!/bin/sh\nexit $(cat code)\n")
    carry.chmod(0o755)
    return tmp_path


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(clone), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("code", "drift", "rebase"), [(0, 0, 0), (10, 0, 2), (20, 2, 2)])
def test_what_moved_is_no_failure_and_a_rebase_that_did_not_land_is_one(
    clone: Path, code: int, drift: int, rebase: int
) -> None:
    (clone / "code").write_text(str(code))
    assert make(clone, "drift", "TO=9.9").returncode == drift
    refused = make(clone, "rebase", "TO=9.9")
    assert refused.returncode == rebase
    assert (f"Error {code}" in refused.stderr) == (rebase != 0)


def test_a_rebase_that_landed_ends_well(clone: Path) -> None:
    (clone / "code").write_text("10")
    (clone / "patches/9.9").mkdir(parents=True)
    (clone / "patches/9.9/lock.toml").touch()
    assert make(clone, "rebase", "TO=9.9").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "RESULTS=out"), "RESULTS=out holds no figures: name a folder"),
        (("bench-gpu", "STEP=pool nonsense"), "STEP=nonsense is no step: use some of model tokens"),
        (("doctor", "TREE=out"), "TREE=out is not for doctor: name an interpreter with PYTHON="),
    ],
)
def test_a_variable_that_does_not_fit_is_named_before_anything_runs(
    clone: Path, arguments: tuple[str, ...], said: str
) -> None:
    refused = make(clone, *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr


def test_the_help_lists_every_target_that_a_person_asks_for() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    phony = makefile.partition(".PHONY: ")[2].partition("\n\n")[0].replace("\\\n", " ").split()
    said = subprocess.check_output(["make", "-C", str(REPOSITORY), "help"], text=True)
    assert {line.split()[0] for line in said.splitlines() if line.startswith("  ")} >= set(phony)
    assert all(f"{name}=" in said for name in ("PIN", "TREE", "PYTHON", "WHEEL", "TO"))
