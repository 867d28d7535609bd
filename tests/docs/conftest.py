from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from overlaytool import fetch
from overlaytool.pin import REPOSITORY, find


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The default pin's wheel."""
    pin = find(REPOSITORY, None)
    return fetch.wheel(pin, pin.release, pin.lock().wheels)


@pytest.fixture
def workspace(tmp_path: Path, wheel: Path) -> Path:
    """A copy of the repository, with what the documents take for granted next to its files.

    `venv/` and `checkout/` hold of sglang what the overlay touches; `wheels/` holds its wheel.
    """
    root = tmp_path / "repository"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        copied = root / name
        if (REPOSITORY / name).is_file():
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, copied)
    venv.create(root / "venv", symlinks=True)
    (site,) = (root / "venv/lib").glob("python*/site-packages")
    unpack(wheel, site)
    unpack(wheel, root / "checkout/python")
    (root / "wheels").mkdir()
    (root / "wheels" / wheel.name).symlink_to(wheel)
    return root


def is_module(name: str) -> bool:
    folders = ("sglang/srt/", "sglang/kernels/")
    return ".dist-info/" in name or (name.startswith(folders) and name.endswith(".py"))


def unpack(wheel: Path, target: Path) -> None:
    """What states the release, and the modules that the overlay changes or depends on."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(target, [n for n in names if n == "sglang/__init__.py" or is_module(n)])


@pytest.fixture
def environment(workspace: Path) -> Iterator[dict[str, str]]:
    """The environment of the commands: pip finds the pinned wheel without a network."""
    yield {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(workspace),
        "LANG": "C.UTF-8",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(workspace / "wheels"),
    }
