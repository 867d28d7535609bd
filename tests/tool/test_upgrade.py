"""`git pull && make apply`: trees that earlier commits of this repository made are upgraded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from carrytool import cli as carry
from carrytool import make_lock
from overlaytool import cli
from overlaytool.lock import SHORT
from overlaytool.pin import REPOSITORY, Pin

from tests.tool.test_real_pins import PINS, unpack
from tests.tool.toy import snapshot

# The first commit that could apply, one of the middle, and the last before modules were moved.
FIRST, MIDDLE, LAST = "560c3f9", "42d5b64", "4d1957d"
DROPPED = "flashinfer-version.patch"


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, check=False)


@pytest.fixture
def history() -> None:
    if git("cat-file", "-e", f"{FIRST}^{{commit}}").returncode:
        pytest.skip("the history of this checkout is not here: git fetch --unshallow")


def apply_as_of(commit: str, release: str, tree: Path, folder: Path) -> None:
    """Apply with the tool, the patches and the overlay of that commit."""
    folder.mkdir()
    archive = git("archive", commit, "scripts", "patches", "overlay").stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    command = [sys.executable, str(folder / "scripts/overlay"), "apply", "--pin", release]
    subprocess.run([*command, "--tree", str(tree)], check=True, capture_output=True)


def newer(folder: Path, release: str) -> Path:
    """This repository one revision on: a module is renamed, one is changed, a patch is dropped."""
    subprocess.run(["git", "clone", "-q", "--shared", str(REPOSITORY), str(folder)], check=True)
    for name in ("overlay", "patches"):
        shutil.rmtree(folder / name)
        shutil.copytree(REPOSITORY / name, folder / name)
    (folder / "build").mkdir()
    (folder / "build/wheels").symlink_to((REPOSITORY / "build/wheels").resolve())
    modules = sorted(Pin(folder, release).overlay().values())
    (modules[0].parent / "renamed").mkdir()
    modules[0].rename(modules[0].parent / "renamed/module.py")
    with modules[1].open("a") as changed:
        changed.write("# newer\n")
    series = Pin(folder, release).folder / "series"
    series.write_text(series.read_text().replace(f"{DROPPED}\n", ""))
    for pin in PINS:
        assert carry.main(["lock", "--pin", pin], folder) == 0
    return folder


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(
    ("commit", "release"),
    [(FIRST, "0.5.17"), (MIDDLE, "0.5.9"), (LAST, "0.5.9"), (LAST, "0.5.23")],
)
def test_a_tree_of_an_earlier_commit_is_upgraded_and_comes_back_pristine(
    commit: str, release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, again = tmp_path / "tree", tmp_path / "again"
    unpack(release, tree)
    pristine = snapshot(tree)
    apply_as_of(commit, release, tree, tmp_path / "before")
    shutil.copytree(tree, again)
    repository = newer(tmp_path / "repository", release)

    def run(verb: str, where: Path) -> int:
        return cli.main([verb, "--pin", release, "--tree", str(where)], repository)

    assert run("status", tree) == 3
    assert "apply upgrades it" in capsys.readouterr().out
    assert run("apply", tree) == 0
    made = {path for path in snapshot(tree) if (tree / path).is_file()}
    locked = {entry.path for entry in Pin(repository, release).lock().entries}
    assert made - {path for path in pristine if (tree / path).is_file()} == locked - set(pristine)
    assert run("status", tree) == 0
    assert run("unapply", tree) == 0
    assert snapshot(tree) == pristine
    assert run("unapply", again) == 0
    assert snapshot(again) == pristine


@pytest.mark.usefixtures("history")
def test_every_file_that_any_earlier_commit_wrote_is_known() -> None:
    locks = [Pin(REPOSITORY, pin).lock() for pin in PINS]
    now = {(entry.path, entry.applied[:SHORT]) for lock in locks for entry in lock.entries}
    written = make_lock.committed(REPOSITORY)
    known = {(path, row) for path, rows in locks[0].earlier.items() for row in rows}
    assert written.keys() - now - known == set()
    assert len(written) > 100
