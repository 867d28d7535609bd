"""Runs of git that depend on nothing but their arguments: no user's settings, no repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from overlaytool.errors import Exit, Refusal

_ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}


def git(folder: Path, *arguments: str, alone: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder; where it is not `alone`, in the repository that the folder belongs to.

    Raises `Refusal` (6) where there is no git.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ceiling = {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)} if alone else {}
    try:
        return subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=folder,
            env=kept | _ALONE | ceiling,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise Refusal("git is not on PATH: install git", Exit.UNAVAILABLE) from None
