"""The wheel, built and installed into an environment of its own; and such that are damaged."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from overlaytool.pin import REPOSITORY

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
QUIET = ["--quiet", "--no-deps"]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, which has nothing else of its own."""

    root: Path

    @property
    def command(self) -> Path:
        return self.root / "bin" / "mla-compact"

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        return next(self.root.glob("lib/python3*/site-packages"))

    def damaged(self, folder: Path, *missing: str) -> Path:
        """A copy of its packages that lacks some files or folders."""
        shutil.copytree(self.site, folder)
        for name in missing:
            lost = folder / "mla_compact" / name
            shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        return folder

    def pip(self, *arguments: str | Path) -> None:
        """Run the pip of the test environment on this one."""
        subprocess.run([*PIP, "--python", str(self.python), *arguments], check=True)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # The build backend is in the test environment, so that this needs no network.
    options = [*QUIET, "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*PIP, "wheel", *options, str(REPOSITORY)], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    root = tmp_path_factory.mktemp("venv")
    venv.create(root)
    made = Installed(root)
    made.pip("install", *QUIET, wheel)
    return made
