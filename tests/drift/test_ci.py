"""The nightly scripts, run on a small pin with a stand-in for the forge."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from overlaytool.pin import REPOSITORY

from tests.drift import small
from tests.tool import toy as toys

SHIFTED = "# a line of upstream's\n" + small.REGISTRY
FORGE = '#!/bin/sh\necho "$@" >>"$(dirname "$0")/calls"\n'


@pytest.fixture
def toy(tmp_path: Path) -> toys.Toy:
    """The small pin in a repository that has the scripts as well."""
    made = small.make(tmp_path)
    for name in ("scripts/carry", "ci/nightly.sh", "ci/publish.sh"):
        (made.repository / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, made.repository / name)
    for tool in ("scripts/overlaytool", "scripts/carrytool"):
        shutil.copytree(REPOSITORY / tool, made.repository / tool)
    return made


def run(toy: toys.Toy, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    forge = toy.repository.parent / "bin"
    path = f"{forge}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(toy.pin.wheels)}
    person = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@n"}
    person |= {"GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@n"}
    environment = os.environ | index | person | {"PATH": path, "TESTS": "true"} | variables
    return subprocess.run(
        command, cwd=toy.repository, env=environment, capture_output=True, text=True, check=False
    )


def summary(toy: toys.Toy) -> str:
    return (toy.repository / "out" / "nightly" / "summary.md").read_text()


def landed(toy: toys.Toy) -> bool:
    return (toy.repository / "out" / "nightly" / "landed").exists()


def test_nothing_newer_is_a_green_night(toy: toys.Toy) -> None:
    assert run(toy, "ci/nightly.sh").returncode == 0
    assert "up to date" in summary(toy)
    assert not landed(toy)


def test_a_release_that_only_moves_lines_becomes_a_tested_pin(toy: toys.Toy) -> None:
    small.publish(toy, registry=SHIFTED)
    assert run(toy, "ci/nightly.sh", TESTS="echo 7 passed").returncode == 10
    assert "7 passed" in summary(toy)
    assert landed(toy)
    assert (toy.repository / "patches" / small.NEXT / "lock.toml").is_file()


def test_a_pin_whose_tests_fail_is_not_offered(toy: toys.Toy) -> None:
    small.publish(toy, registry=SHIFTED)
    assert run(toy, "ci/nightly.sh", TESTS="false").returncode == 1
    assert not landed(toy)


def test_a_conflict_is_reported_and_nothing_is_carried(toy: toys.Toy) -> None:
    small.publish(toy, choices=small.CHOICES.replace("'c'", "'d'"))
    assert run(toy, "ci/nightly.sh").returncode == 20
    assert "has to be settled first" in summary(toy)
    assert not (toy.repository / "patches" / small.NEXT).exists()


def test_a_night_without_an_index_is_red_and_says_so(toy: toys.Toy) -> None:
    assert run(toy, "ci/nightly.sh", PIP_FIND_LINKS=str(toy.tree)).returncode == 40
    assert "could not be looked at" in summary(toy)


def test_publishing_opens_an_issue_and_a_pull_request_with_the_pin(toy: toys.Toy) -> None:
    forge = toy.repository.parent / "bin"
    forge.mkdir()
    (forge / "gh").write_text(FORGE)
    (forge / "gh").chmod(0o755)
    origin = toy.repository.parent / "origin.git"
    for command in (
        ("git", "init", "--quiet", "--bare", str(origin)),
        ("git", "init", "--quiet"),
        ("git", "remote", "add", "origin", str(origin)),
        ("git", "add", "ci"),
        ("git", "commit", "--quiet", "-m", "start"),
    ):
        assert run(toy, *command).returncode == 0
    small.publish(toy, registry=SHIFTED)
    run(toy, "ci/nightly.sh")
    done = run(toy, "ci/publish.sh")
    assert done.returncode == 0, done.stderr
    calls = (forge / "calls").read_text()
    assert "issue create --label drift --title sglang 1.2.3 -> sglang 1.2.4" in calls
    assert "pr create --head pin/1.2.4" in calls
    files = run(toy, "git", "ls-tree", "-r", "--name-only", "pin/1.2.4").stdout
    assert "patches/1.2.4/lock.toml" in files
    assert "out/" not in files


@pytest.mark.parametrize("script", ["ci/nightly.sh", "ci/publish.sh"])
def test_a_wrong_argument_prints_the_usage(toy: toys.Toy, script: str) -> None:
    done = run(toy, script, "--wrong", "more")
    assert done.returncode == 2
    assert f"usage: {script}" in done.stderr


@pytest.mark.parametrize("name", ["check", "nightly"])
def test_workflows_call_the_scripts_and_official_actions_alone(name: str) -> None:
    text = (REPOSITORY / ".github" / "workflows" / f"{name}.yml").read_text()
    runs = re.findall(r"\brun: (.+)", text)
    assert runs
    for command in runs:
        assert (REPOSITORY / command.split()[0]).is_file(), command
    for action in re.findall(r"\buses: (.+)", text):
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", action), action
