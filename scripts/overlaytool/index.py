"""What the configured index has beside the pin: the newest release, and wheels by version."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from overlaytool.errors import Exit, Refusal
from overlaytool.fetch import last_line, pip


def newest(project: str) -> str:
    """The newest release that pip finds for this interpreter; pre-releases do not count."""
    with tempfile.TemporaryDirectory() as folder:
        dry = ["install", "--dry-run", "--report", "-", "--ignore-installed", "--target", folder]
        run = pip([*dry, project])
    if run.returncode:
        message = f"pip finds no release of {project}: {last_line(run.stderr)}"
        raise Refusal(message, Exit.UNTRIED)
    return str(json.loads(run.stdout)["install"][0]["metadata"]["version"])


def wheel(project: str, version: str, folder: Path) -> Path:
    """A release's wheel from `folder`, or else fetched into it for this interpreter.

    Wheels of one release differ in their compiled files alone, so any of them will do.
    """
    stem = f"{project.replace('-', '_')}-{version}-"
    for found in sorted(folder.glob(f"{stem}*.whl")):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as staging:
        run = pip(["download", "--dest", staging, f"{project}=={version}"])
        fetched = next(Path(staging).glob("*.whl"), None)
        if run.returncode or fetched is None:
            reason = f"pip could not fetch {project} {version} ({last_line(run.stderr)})"
            message = f"{reason}: give it a network, or PIP_FIND_LINKS, and a release that exists"
            raise Refusal(message, Exit.UNTRIED)
        return fetched.replace(folder / fetched.name)
