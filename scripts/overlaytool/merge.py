"""Three-way merges of one file, through `git merge-file` alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from overlaytool.errors import Exit, Refusal

ISOLATED = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
MOST_CONFLICTS = 127


class MergeError(Refusal):
    """git is missing, or refused the files."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.UNAVAILABLE)


@dataclass(frozen=True)
class Merge:
    """`text` carries diff3 conflict markers where `conflicts` is above 0."""

    text: bytes
    conflicts: int


def three_way(ours: bytes, base: bytes, theirs: bytes, labels: tuple[str, str, str]) -> Merge:
    """Merges base -> theirs into ours; labels name (ours, base, theirs) in the markers."""
    git = shutil.which("git")
    if git is None:
        raise MergeError("git is not on PATH; a rebase needs its merge-file: install git")
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder, name) for name in ("ours", "base", "theirs")]
        for path, content in zip(names, (ours, base, theirs), strict=True):
            path.write_bytes(content)
        done = _run(git, folder, [*(part for label in labels for part in ("-L", label))])
    if not 0 <= done.returncode <= MOST_CONFLICTS:
        raise MergeError(f"git merge-file failed: {done.stderr.decode(errors='replace').strip()}")
    return Merge(done.stdout, done.returncode)


def _run(git: str, folder: str, labels: list[str]) -> subprocess.CompletedProcess[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = kept | ISOLATED | {"GIT_CEILING_DIRECTORIES": str(Path(folder).parent)}
    command = [git, "merge-file", "--stdout", "--diff3", *labels, "ours", "base", "theirs"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
