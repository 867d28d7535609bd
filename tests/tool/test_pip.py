"""An installation by pip, with the overlay on it, when pip works on it again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tool import toy as toys
from tests.tool.conftest import Overlay
from tests.tool.toy import BACKEND, REGISTRY, Toy, snapshot

Pip = Callable[..., None]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv/bin/python"


@pytest.fixture
def pip(python: Path) -> Pip:
    def run(*arguments: object) -> None:
        prefix = [sys.executable, "-m", "pip", "--python", str(python)]
        command = [*prefix, *map(str, arguments), "--quiet"]
        subprocess.run(command, check=True)

    return run


@pytest.fixture
def site(toy: Toy, python: Path, pip: Pip) -> Path:
    pip("install", "--no-index", "--no-deps", toy.wheel)
    (folder,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return folder


def test_a_forced_reinstall_over_an_applied_tree_is_partial(
    toy: Toy, overlay: Overlay, python: Path, pip: Pip, site: Path
) -> None:
    before = snapshot(site / "sglang")
    assert overlay("apply", "--python", python).code == 0
    pip("install", "--no-index", "--no-deps", "--force-reinstall", toy.wheel)
    assert (site / BACKEND).exists()
    assert overlay("status", "--python", python).code == 3
    assert overlay("apply", "--python", python).code == 0
    assert "compact" in (site / REGISTRY).read_text()
    assert overlay("unapply", "--python", python).code == 0
    after = snapshot(site / "sglang")
    sources = {path for path in before if "__pycache__" not in path}
    assert {path for path in after if "__pycache__" not in path} == sources
    assert {path: after[path] for path in sources} == {path: before[path] for path in sources}


def test_an_upgrade_over_an_applied_tree_is_judged_by_its_bytes(
    toy: Toy, overlay: Overlay, python: Path, pip: Pip, tmp_path: Path, site: Path
) -> None:
    overlay("apply", "--python", python)
    newer = {
        path.replace("1.2.3", "1.2.4"): t.replace("1.2.3", "1.2.4")
        for path, t in toys.UPSTREAM.items()
    }
    pip("install", "--no-index", "--no-deps", toys.make_wheel(tmp_path, "1.2.4", newer))
    for verb, code in {"status": 3, "apply": 0, "unapply": 0}.items():
        assert overlay(verb, "--python", python).code == code, "its locked bytes are the pin's"
    assert "sglang/srt/compact/backend.py" not in snapshot(site)


def test_what_an_uninstall_leaves_is_removed_by_unapply(
    overlay: Overlay, python: Path, pip: Pip, site: Path
) -> None:
    overlay("apply", "--python", python)
    pip("uninstall", "--yes", "sglang")
    assert (site / BACKEND).exists()
    status = overlay("status", "--python", python)
    assert status.code == 4
    assert "uninstalled" in status.out
    assert overlay("unapply", "--python", python).code == 0
    assert not (site / "sglang").exists()
