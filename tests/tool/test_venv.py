"""ci/venv.sh makes the test environment from the Python that runs make, if the tests run on it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from overlaytool.pin import REPOSITORY

# Stands for a Python of one release, which notes each environment that it makes.
FAKE = """#!/bin/sh
case "$1 $2" in
    "-c "*) case {release} in 3.11|3.12|3.13) echo {release};; *) exit 1;; esac;;
    "-m venv") mkdir -p "$4/bin" "$4/lib/python{release}/site-packages"
        cp "$0" "$4/bin/python"; echo {release} >>"$4/../made";;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("ci/venv.sh", "ci/requirements-test.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "cat", "sha256sum", "cut", "dirname", "flock", "mkdir", "cp", "sh", "env"):
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    return tmp_path


def put(clone: Path, **pythons: str) -> None:
    for name, release in pythons.items():
        file = clone / "bin" / name.replace("_", ".")
        file.write_text(FAKE.format(release=release))
        file.chmod(0o755)


def run(clone: Path, python: str = "") -> int:
    environment = {"PATH": str(clone / "bin"), "PYTHON": python}
    command = [clone / "ci/venv.sh"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 2) == ("name one with PYTHON=" in done.stderr)
    return done.returncode


@pytest.mark.parametrize(
    ("pythons", "made"),
    [
        ({"python3": "3.13"}, "3.13"),
        ({"python3": "3.12", "python3_11": "3.11"}, "3.12"),
        ({"python3": "3.10", "python3_12": "3.12"}, "3.12"),
    ],
)
def test_the_python_that_runs_make_is_taken_where_the_tests_run_on_it(
    clone: Path, pythons: dict[str, str], made: str
) -> None:
    put(clone, **pythons)
    assert run(clone) == 0
    assert run(clone) == 0
    assert (clone / "made").read_text().split() == [made]
    assert (clone / f".venv/lib/python{made}/site-packages/zz-stubs.pth").exists()


def test_a_python_that_is_named_is_taken_or_refused(clone: Path) -> None:
    put(clone, python3="3.11", python3_13="3.13", python3_14="3.14")
    names = ("python3", "python3.13", "python3.14", "")
    assert [run(clone, name) for name in names] == [0, 0, 2, 0]
    assert (clone / "made").read_text().split() == ["3.11", "3.13"]


def test_without_a_python_that_the_tests_run_on_it_says_so(clone: Path) -> None:
    put(clone, python3="3.10")
    assert run(clone) == 2
    assert not (clone / ".venv").exists()
