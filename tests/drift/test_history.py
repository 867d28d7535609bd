"""Each release next to the one before it, 0.5.9 to 0.5.23: what the report names, and no more.

`history.toml` holds what was reviewed. To write it again after a change of the overlay, of
contract.toml or of a series: `REVIEWED=1 pytest tests/drift/test_history.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
from carrytool import drift
from carrytool.carry import Verdict
from carrytool.compare import Judged
from overlaytool.pin import REPOSITORY, find

RELEASES = [f"0.5.{number}" for number in range(9, 24)]
# The series that is carried and the names that are looked up: those of the last pin before.
PINS = {"0.5.9": 9, "0.5.17": 17, "0.5.20": 20, "0.5.22": 22}
STEPS = [f"{old}..{new}" for old, new in itertools.pairwise(RELEASES)]
REVIEWED = Path(__file__).with_name("history.toml")
APPLIES = (Verdict.CLEAN, Verdict.MOVED)


@cache
def measured(step: str) -> drift.Drift:
    old, _, new = step.partition("..")
    pin = [pin for pin, first in PINS.items() if first <= int(old.split(".")[2])][-1]
    return drift.measure(find(REPOSITORY, pin), new, drift.Decisions(), old)


def named(step: str, verdict: Judged) -> list[str]:
    return [change.name for change in measured(step).changes if change.verdict is verdict]


def lines(step: str) -> list[str]:
    return [line for change in measured(step).changes for line in change.diff]


def reviewed() -> dict[str, dict[str, object]]:
    return tomllib.loads(REVIEWED.read_text()) if REVIEWED.exists() else {}


@pytest.fixture(scope="module", autouse=True)
def review() -> None:
    if os.environ.get("REVIEWED"):
        rows = (
            f"[{json.dumps(step)}]\nlines = {len(lines(step))}\n"
            + "".join(
                f"{word} = {json.dumps(named(step, verdict), indent=2)}\n"
                for word, verdict in (("broken", Judged.BROKEN), ("read", Judged.READ))
            )
            for step in STEPS
        )
        REVIEWED.write_text("\n".join(rows))


@pytest.mark.parametrize("step", STEPS)
def test_the_report_names_what_was_reviewed_and_no_more(step: str) -> None:
    assert reviewed()[step] == {
        "broken": named(step, Judged.BROKEN),
        "read": named(step, Judged.READ),
        "lines": len(lines(step)),
    }


@pytest.mark.parametrize("step", STEPS)
def test_the_report_names_every_patch_that_git_refuses_and_no_other(
    step: str, tmp_path: Path
) -> None:
    ours = {patch.name for patch in measured(step).carried if patch.verdict not in APPLIES}
    assert ours == breaks_of_git(measured(step), tmp_path)


def breaks_of_git(found: drift.Drift, folder: Path) -> set[str]:
    """Names of the patches of the series that `git apply` refuses, each after those before it."""
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


@pytest.mark.parametrize("step", ["0.5.20..0.5.21", "0.5.22..0.5.23"])
def test_a_quiet_release_gives_at_most_100_lines_to_read(step: str) -> None:
    assert named(step, Judged.BROKEN) == []
    assert len(lines(step)) <= 100


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("0.5.17..0.5.18", "+    stamp, backend = backend_map[backend_type]()"),
        ("0.5.18..0.5.19", "DRAFT_ATTENTION_BACKEND_CHOICES = list with 'flashinfer'"),
    ],
)
def test_a_break_of_the_past_is_shown(step: str, line: str) -> None:
    assert any(line in shown for shown in lines(step))
