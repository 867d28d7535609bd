"""The real series of 0.5.17 carried over six real releases, next to what git says of each patch.

The golden reports lie in `golden/`. They leave out what moves without a change of meaning: the
count of rows held, and the overlay's lines, of which the file remains.
To write them again after a change of the series or the contract: `REVIEWED=1
pytest tests/drift/test_history.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from carrytool import drift, drift_report
from carrytool.carry import Verdict
from overlaytool.pin import REPOSITORY, find

PIN = "0.5.17"
RELEASES = tuple(f"0.5.{number}" for number in range(18, 24))
GOLDEN = Path(__file__).parent / "golden"
APPLIES = (Verdict.CLEAN, Verdict.MOVED)


@cache
def measured(release: str) -> drift.Drift:
    return drift.measure(find(REPOSITORY, PIN), release, drift.Decisions())


@cache
def golden_text(release: str) -> str:
    text = drift_report.markdown(measured(release))
    text = re.sub(r"^\d+ rows held", "Some rows held", text, flags=re.MULTILINE)
    return re.sub(r"`([\w-]+\.(?:py|patch)):[^\n]*?`( \|)?$", r"`\1`\2", text, flags=re.MULTILINE)


def breaks_of_git(release: str, folder: Path) -> set[str]:
    """Names of the patches of the series that `git apply` refuses, each after those before it."""
    found = measured(release)
    for path in {path for patch in found.patches for path in patch.files}:
        content = found.target.read(path)
        if content is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    return {
        patch.name
        for patch in found.patches
        if _git_apply(folder, found.pin.folder / patch.name, "--check")
        or _git_apply(folder, found.pin.folder / patch.name)
    }


def _git_apply(folder: Path, patch: Path, *options: str) -> int:
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    alone["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    command = ["git", "apply", *options, str(patch)]
    return subprocess.run(
        command, cwd=folder, env=os.environ | alone, capture_output=True, check=False
    ).returncode


@pytest.mark.parametrize("release", RELEASES)
def test_the_report_names_every_break_that_git_finds_and_no_other(
    release: str, tmp_path: Path
) -> None:
    ours = {patch.name for patch in measured(release).carried if patch.verdict not in APPLIES}
    assert ours == breaks_of_git(release, tmp_path)


@pytest.mark.parametrize("release", RELEASES)
def test_the_report_is_the_one_that_was_reviewed(release: str) -> None:
    golden = GOLDEN / f"{PIN}..{release}.md"
    if os.environ.get("REVIEWED"):
        golden.write_text(golden_text(release), "utf-8")
    assert golden_text(release) == golden.read_text("utf-8")


def test_the_draft_maps_break_with_0_5_18_in_text_and_in_meaning() -> None:
    text = golden_text("0.5.18")
    assert "| `draft-backends.patch` | conflict |" in text
    assert "**DraftBackendFactory._create_backend**" in text
