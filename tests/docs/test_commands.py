"""Every command in the documentation runs, prints what the page shows, and every link leads on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from overlaytool.pin import REPOSITORY, find

from tests.docs.blocks import TAGS, blocks, shows

PAGES = sorted([*REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
SECTION_LINK = re.compile(r"\]\(([^):#]*)#([^)]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def run(command: str, workspace: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=workspace,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_of_a_page_run_in_order(
    page: Path, workspace: Path, environment: dict[str, str]
) -> None:
    printed = ""
    for block in blocks(page.read_text()):
        if block.tag == "output":
            found = f"{name(page)} shows another output than\n{printed}"
            assert shows(block.body, printed, str(workspace)), found
        if block.tag != "sh":
            continue
        printed = ""
        for command, expected in block.commands():
            code, out, error = run(command, workspace, environment)
            assert code == expected, f"{command}\nexit {code}\n{out}{error}"
            printed += out


def test_an_output_may_leave_lines_out_and_nothing_else() -> None:
    printed = "fetched: /tmp/w/build\nadd a\nadd b\ndone\n"
    assert shows("fetched: /path/to/clone/build\n...\ndone\n", printed, "/tmp/w")
    assert shows("...\ndone\n", printed, "/tmp/w")
    assert not shows("fetched: /path/to/clone/build\ndone\n", printed, "/tmp/w")
    assert not shows("...\nadd b\n", printed, "/tmp/w")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_that_start_the_tests_are_those_of_the_ci_script(page: Path) -> None:
    script = (REPOSITORY / ".ci/run").read_text().replace("make --no-print-directory", "make")
    started = [block for block in blocks(page.read_text()) if block.tag == "sh ci"]
    commands = [command for block in started for command, _ in block.commands()]
    assert [command for command in commands if command not in script.splitlines()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_has_a_tag_that_the_tests_know(page: Path) -> None:
    assert {block.tag for block in blocks(page.read_text())} <= TAGS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_and_picture_of_the_repository_is_a_file(page: Path) -> None:
    targets = LINK.findall(page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_to_a_section_names_a_heading(page: Path) -> None:
    linked = [
        (page.parent / target if target else page, to)
        for target, to in SECTION_LINK.findall(page.read_text())
    ]
    assert [to for target, to in linked if to not in anchors(target.read_text())] == []


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = [line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_pages_name_the_default_pin(page: Path) -> None:
    """Commands of another release would not fit the tree that `make apply` makes."""
    default = find(REPOSITORY, None).release
    commands = [block.body for block in blocks(page.read_text()) if block.tag == "sh"]
    trees = re.findall(r"build/sglang-([0-9.]+[0-9])", "\n".join(commands))
    assert set(trees) <= {default, *re.findall(r"PIN=([0-9.]+)", "\n".join(commands))}


def test_the_dockerfile_fragment_applies(workspace: Path, environment: dict[str, str]) -> None:
    (fragment,) = [
        block.body
        for block in blocks((REPOSITORY / "docs/install.md").read_text())
        if block.tag == "dockerfile"
    ]
    copied = re.search(r"^COPY (\S+) (\S+)$", fragment, re.MULTILINE)
    assert copied
    for line in re.findall(r"^RUN (.*)$", fragment, re.MULTILINE):
        command = line.replace(copied[2], str(workspace)).replace("python3", "venv/bin/python")
        code, out, error = run(command, workspace, environment)
        assert code == 0, f"{command}\n{out}{error}"
    (site,) = (workspace / "venv/lib").glob("python*/site-packages")
    assert (site / "sglang/srt/layers/attention/flashinfer_mla_compact/backend.py").exists()
