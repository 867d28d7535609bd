"""What the README says of the backend is what the backend says of itself."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module

import pytest
from overlaytool.pin import REPOSITORY
from torch import device

import tests.kernels.conftest  # noqa: F401  Triton's interpreter, and the overlay on the path
from tests.backend.test_support import REFUSED, policy, support

BACKEND = "overlay/sglang/srt/layers/attention/flashinfer_mla_compact"
README = (REPOSITORY / "README.md").read_text()


def section(title: str) -> str:
    """The text under a heading of the second level."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def flags(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


def refusal(case: str) -> str:
    (reason,) = support.refusals(support.Facts(**REFUSED[case][0]))
    return str(reason)


@pytest.mark.parametrize("case", REFUSED)
def test_the_remedy_of_each_refusal_stands_in_one_row_of_the_table(case: str) -> None:
    rows = [row for row in section("What is refused").splitlines() if row.startswith("| ")]
    assert [row for row in rows if flags(refusal(case)) <= flags(row)]


def test_the_table_names_no_remedy_that_no_refusal_names() -> None:
    named = set().union(*(flags(refusal(case)) for case in REFUSED))
    assert flags(section("What is refused")) - named == set()


def test_the_table_of_variables_has_each_with_its_default_and_values() -> None:
    table = section("Variables")
    defaults = {
        policy.STRATEGY_VARIABLE: f"`{policy.Settings().strategy}`",
        policy.BUFFER_VARIABLE: f"{policy.EXTEND_BUFFER_MIB} or {policy.DEFAULT_BUFFER_MIB}",
    }
    for variable, default in defaults.items():
        assert f"| `{variable}` | {default} |" in table
    assert [value for value in policy.STRATEGIES if f"`{value}`" not in table] == []


def test_the_pins_are_those_that_the_repository_has() -> None:
    (line,) = [text for text in section("Two commands").splitlines() if text.startswith("Pins: ")]
    named = re.findall(r"\d+\.\d+\.\d+", line.split(";")[0])
    assert set(named) == {path.parent.name for path in REPOSITORY.glob("patches/*/series")}
    assert named[-1] == (REPOSITORY / "patches/default").read_text().strip()


def test_the_line_in_the_questions_is_the_one_that_a_server_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, heads, requests, extend = 495553, 16, 2048, 16384
    settings, means = policy.Settings(), policy.Means(495553, (9, 0))
    rows = policy.capacity_rows(pool, settings, gathers=False)
    source = (REPOSITORY / BACKEND / "factory.py").read_text()
    ((start, end),) = re.findall(r'"(%s %s: %s pool of .*)"\n +"(.*)"', source)
    workspace = import_module(
        f"{BACKEND.removeprefix('overlay/').replace('/', '.')}.direct.workspace"
    )
    monkeypatch.setattr(workspace, "_card", lambda _: ((9, 0), 132))  # an H200
    kinds = {1: requests, None: extend}
    shapes = {q: workspace.shape_of(heads, device("cpu"), q_per_request=q) for q in kinds}
    splits = max(shapes[q].scratch_bytes(most) for q, most in kinds.items())
    for q, most in kinds.items():
        space = workspace.Workspace(shapes[q], most, device("cpu"))
        splits += sum(table.nbytes for table in space.tables)
    held = (rows * policy.COMPACT_ROW_BYTES, 4 * rows + 4, 8 * pool, splits)
    strategy = policy.strategy_of(means, settings, heads)
    told = (support.NAME, support.VERSION, "float8_e4m3fn", pool, rows, *held, *strategy)
    line = (start + end) % told
    assert f"\n{line}\n" in (REPOSITORY / "docs/faq.md").read_text(), line


def test_each_folder_at_the_top_stands_in_the_table_of_folders() -> None:
    listed = set(re.findall(r"^\| `([a-z]+)/`", section("The house"), re.MULTILINE))
    there = {name.split("/")[0] for name in committed() if "/" in name}
    assert listed == {folder for folder in there if folder.isalpha()}


def committed() -> list[str]:
    """Paths of the repository's files: what an operator keeps next to them is not in the table."""
    command = ["git", "ls-files"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()
