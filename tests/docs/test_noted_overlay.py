"""Results of a GPU run note the overlay that ran, and the table says whether it is this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import machine, report

RELEASE = "0.5.23"
NAME = f"card-sglang-{RELEASE}"
MODULE = "sglang/srt/layers/attention/flashinfer_mla_compact/gather/rows.py"
NOTED = '<properties><property name="overlay" value="{}" /></properties>'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The overlay in a tree that has nothing else of sglang."""
    tree = tmp_path / "tree"
    shutil.copytree(machine.OVERLAY, tree, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "sglang/__init__.py").touch()
    (tree / "sglang/_version.py").write_text(f'__version__ = version = "{RELEASE}"\n')
    return tree


def row(folder: Path) -> str:
    return report.machines(report.Results(folder)).splitlines()[2]


def run_without_a_gpu(tree: Path, *options: str) -> str:
    """The row of a run whose tests are all skipped."""
    results = tree.parent / "results"
    command = [sys.executable, "-m", "pytest", "tests/gpu/test_memory.py", *options]
    subprocess.run(
        [*command, f"--junitxml={results / NAME}.xml"],
        cwd=machine.ROOT,
        env=os.environ | {"PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": ""},
        check=False,  # no test ran
    )
    return row(results)


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_run_notes_the_overlay_in_the_tree(tree: Path, options: tuple[str, ...]) -> None:
    assert run_without_a_gpu(tree, *options).startswith(f"| {NAME} | this one |")


def test_a_comment_in_the_tree_makes_it_another_overlay(tree: Path) -> None:
    with (tree / MODULE).open("a") as file:
        file.write("# another\n")
    assert run_without_a_gpu(tree).startswith(f"| {NAME} | an earlier one |")


def test_patches_of_the_release_and_files_that_are_missing_count(tree: Path) -> None:
    here = machine.overlay_digest(machine.OVERLAY, RELEASE)
    assert machine.overlay_digest(tree, RELEASE) == here
    assert machine.overlay_digest(tree, "0.5.9") != here
    (tree / MODULE).unlink()
    assert machine.overlay_digest(tree, RELEASE) != here


@pytest.mark.parametrize("second", ["", NOTED.format("0" * 12)], ids=["nothing", "another"])
def test_all_runs_in_a_file_must_have_noted_this_overlay(tmp_path: Path, second: str) -> None:
    first = NOTED.format(machine.overlay_digest(machine.OVERLAY, RELEASE))
    for other, told in ((first, "this one"), (second, "an earlier one")):
        suites = f"<testsuite>{first}</testsuite><testsuite>{other}</testsuite>"
        (tmp_path / f"{NAME}.xml").write_text(f"<testsuites>{suites}</testsuites>")
        assert row(tmp_path) == f"| {NAME} | {told} | 0 | 0 | 0 |"
