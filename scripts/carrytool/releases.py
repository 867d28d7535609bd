"""What pip finds of a package: its newest release, its wheels, and their hashes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from overlaytool import fetch
from overlaytool.errors import Exit, Refusal
from overlaytool.fetch import last_line, pip
from overlaytool.pin import numbers
from overlaytool.tree import PACKAGE

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_34_aarch64")


def newest(project: str) -> str:
    """The newest release that pip finds; pre-releases do not count.

    Raises `Refusal` (40) where there is none, or where only other Pythons than this one can install
    the newest: what it holds is not known then.
    """
    run = _resolve(project)
    seen = [_version(run)] if run.returncode == 0 else []
    with ThreadPoolExecutor(4) as pool:
        others = pool.map(lambda tags: _resolve(project, *tags), _tags())
        seen_elsewhere = [_version(other) for other in others if other.returncode == 0]
    best = max([*seen, *seen_elsewhere], key=numbers, default=None)
    if best is None:
        message = f"pip finds no release of {project}: {last_line(run.stderr)}"
        raise Refusal(message, Exit.UNTRIED)
    if best not in seen:
        message = f"{project} {best} has no wheel for this Python: run this with one that it has"
        raise Refusal(message, Exit.UNTRIED)
    return best


def _tags() -> Iterator[tuple[str, ...]]:
    for python, platform in ((p, q) for p in PYTHONS for q in PLATFORMS):
        yield "--python-version", python, "--platform", platform, "--implementation", "cp"


def _version(run: subprocess.CompletedProcess[str]) -> str:
    return str(_report(run)["metadata"]["version"])


def wheel_hashes(release: str) -> dict[str, str]:
    """sha256 of every wheel of a release that pip finds for `PYTHONS` and `PLATFORMS`, by name."""
    found: dict[str, str] = {}
    trouble, unreachable = "", False
    for tags in _tags():
        run = _resolve(f"{PACKAGE}=={release}", *tags)
        if run.returncode == 0:
            info = _report(run)["download_info"]
            name = Path(unquote(urlsplit(info["url"]).path)).name
            found[name] = info["archive_info"]["hashes"]["sha256"]
        else:
            trouble = last_line(run.stderr)
            unreachable = unreachable or "Retrying" in run.stderr
    if not found or unreachable:
        message = f"pip finds no wheel of {PACKAGE} {release}: {trouble}"
        raise Refusal(message, Exit.UNAVAILABLE)
    return found


def _resolve(requirement: str, *options: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as target:
        dry = ["install", "--dry-run", "--report", "-", "--ignore-installed", "--target", target]
        return pip([*dry, *options, requirement])


def _report(run: subprocess.CompletedProcess[str]) -> Mapping[str, Any]:
    (row,) = json.loads(run.stdout)["install"]
    assert isinstance(row, dict)
    return row


def wheel(project: str, version: str, folder: Path) -> Path:
    """A release's wheel from `folder`, or else fetched into it for this interpreter.

    Wheels of one release differ in their compiled files alone, so any of them will do.
    """
    stem = f"{project.replace('-', '_')}-{version}-"
    found = sorted(folder.glob(f"{stem}*.whl"))
    return found[0] if found else fetch.download(f"{project}=={version}", "", folder)
