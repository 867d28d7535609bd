"""The nightly scripts, run on a small pin with a stand-in for the forge that keeps its state."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from overlaytool.pin import REPOSITORY

from tests.drift import small
from tests.tool import toy as toys

SHIFTED = "# a line of upstream's\n" + small.REGISTRY
READ = {"moved": "if backend == 'a': ...\n"}
BRANCH = f"pin/{small.NEXT}"
WORKFLOWS = sorted(path.name for path in (REPOSITORY / ".github" / "workflows").iterdir())
TREE = "README.md docs/support.md patches/1.2.4/contract.toml patches/1.2.4/lock.toml"


@pytest.fixture
def toy(tmp_path: Path) -> toys.Toy:
    """The small pin in a repository that has the scripts as well, with a remote and the forge."""
    made = small.make(tmp_path)
    for name in ("scripts/carry", "ci/nightly.sh", "ci/publish.sh"):
        (made.repository / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, made.repository / name)
    for tool in ("scripts/overlaytool", "scripts/carrytool"):
        shutil.copytree(REPOSITORY / tool, made.repository / tool)
    toys.write_files(
        made.repository,
        {
            "README.md": "Pins: sglang 1.2.3, the default; ask for another\n",
            "docs/support.md": "served\n",
            "tests/gpu/report.py": "",
            ".gitignore": "build/\nout/\n",
        },
    )
    forge = tmp_path / "bin"
    forge.mkdir()
    shutil.copy(REPOSITORY / "tests" / "drift" / "forge.py", forge / "gh")
    (forge / "gh").chmod(0o755)
    for command in (
        f"git init --quiet --bare {tmp_path / 'origin.git'}",
        "git init --quiet --initial-branch main",
        f"git remote add origin {tmp_path / 'origin.git'}",
        "git add .",
        "git commit --quiet -m start",
        "git push --quiet origin main",
    ):
        assert run(made, *command.split()).returncode == 0
    return made


def environment(toy: toys.Toy, **variables: str) -> dict[str, str]:
    forge = toy.repository.parent / "bin"
    path = f"{forge}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(toy.pin.wheels)}
    person = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@n"}
    person |= {"GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@n"}
    tools = {"PATH": path, "TESTS": "true", "PYTHON": sys.executable}
    return os.environ | index | person | tools | variables


def run(toy: toys.Toy, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=toy.repository,
        env=environment(toy, **variables),
        capture_output=True,
        text=True,
        check=False,
    )


def night(toy: toys.Toy, **variables: str) -> int:
    """A night and what it publishes; the exit code of the former."""
    code = run(toy, "ci/nightly.sh", **variables).returncode
    published = run(toy, "ci/publish.sh")
    assert published.returncode == 0, published.stderr
    return code


def forge(toy: toys.Toy) -> dict[str, list[dict[str, Any]]]:
    file = toy.repository.parent / "bin" / "forge.json"
    return json.loads(file.read_text()) if file.exists() else {"issue": [], "pr": []}


def out(toy: toys.Toy, name: str) -> str:
    file = toy.repository / "out" / "nightly" / name
    return file.read_text().strip() if file.exists() else ""


def pushed(toy: toys.Toy) -> str:
    """The commit of the pin's branch at the remote, empty where there is none."""
    return run(toy, "git", "ls-remote", "origin", f"refs/heads/{BRANCH}").stdout.partition("\t")[0]


def checkout(toy: toys.Toy) -> str:
    return run(toy, "git", "status", "--porcelain").stdout


def test_nothing_newer_is_a_green_night_that_closes_the_issue(toy: toys.Toy) -> None:
    small.publish(toy, **READ)
    assert night(toy) == 15
    (toy.pin.wheels / f"sglang-{small.NEXT}-py3-none-any.whl").unlink()
    assert night(toy) == 0
    assert out(toy, "ended") == "current"
    assert [issue["state"] for issue in forge(toy)["issue"]] == ["closed"]


def test_a_release_that_only_moves_lines_becomes_a_tested_pin(toy: toys.Toy) -> None:
    small.publish(toy, registry=SHIFTED)
    assert night(toy, TESTS="echo 7 passed") == 10
    assert out(toy, "ended") == f"landed {small.NEXT}"
    assert "7 passed" in out(toy, "summary.md")
    (made,) = forge(toy)["pr"]
    assert (made["head"], made["title"]) == (BRANCH, "Pin sglang 1.2.4")
    commit = pushed(toy)
    files = run(toy, "git", "ls-tree", "-r", "--name-only", commit).stdout.split()
    assert set(TREE.split()) <= set(files)
    assert [name for name in files if name.startswith(("out/", "build/"))] == []
    readme = run(toy, "git", "show", f"{commit}:README.md").stdout
    assert readme.startswith("Pins: sglang 1.2.4 and 1.2.3, the default;")
    assert run(toy, "git", "branch", "--show-current").stdout.strip() == "main"


def test_what_is_to_be_read_becomes_an_issue_with_the_diff_and_no_pin(toy: toys.Toy) -> None:
    small.publish(toy, **READ)
    assert night(toy) == 15
    (issue,) = forge(toy)["issue"]
    assert "+sglang/srt/moved.py:: if backend == 'a'" in issue["body"]
    assert night(toy) == 15
    assert len(forge(toy)["issue"]) == 1
    assert (forge(toy)["pr"], pushed(toy), checkout(toy)) == ([], "", "")


def test_a_conflict_is_an_issue_and_nothing_is_carried(toy: toys.Toy) -> None:
    small.publish(toy, choices=small.CHOICES.replace("'c'", "'d'"))
    assert night(toy) == 20
    assert "choices.patch" in forge(toy)["issue"][0]["body"]
    assert checkout(toy) == ""


def test_a_pin_whose_tests_fail_is_an_issue_and_no_pin(toy: toys.Toy) -> None:
    small.publish(toy, registry=SHIFTED)
    assert night(toy, TESTS="false") == 1
    assert out(toy, "ended") == "failed"
    (issue,) = forge(toy)["issue"]
    assert (issue["state"], "fails" in issue["title"]) == ("open", True)
    assert (forge(toy)["pr"], pushed(toy), checkout(toy)) == ([], "", "")


@pytest.mark.parametrize("links", ["nowhere", "other"])
def test_a_night_that_could_not_look_changes_nothing(toy: toys.Toy, links: str) -> None:
    """Without an index, and where the newest wheel is one that this Python can't install."""
    small.publish(toy, **READ)
    night(toy)
    before = forge(toy)
    wheels = toy.repository.parent / links
    wheels.mkdir()
    if links == "other":
        made = toys.make_wheel(wheels, "9.9.9", small.release("9.9.9"))
        made.rename(wheels / "sglang-9.9.9-cp313-cp313-manylinux_2_34_x86_64.whl")
    assert night(toy, PIP_FIND_LINKS=str(wheels)) == 40
    assert (forge(toy), out(toy, "ended"), pushed(toy)) == (before, "", "")


@pytest.mark.parametrize("moment", ["drift", "tests"])
def test_a_night_that_is_killed_publishes_nothing_and_the_next_one_starts_anew(
    toy: toys.Toy, moment: str
) -> None:
    small.publish(toy, registry=SHIFTED)
    slow = "sleep 60"
    tools = toy.repository / "scripts" / "carry"
    text = tools.read_text()
    if moment == "drift":
        tools.write_text(text.replace("import sys\n", "import sys, time\ntime.sleep(60)\n"))
    for _ in killed(toy, "carried" if moment == "tests" else "", TESTS=slow):
        published = run(toy, "ci/publish.sh")
        assert (published.returncode, "did not end" in published.stdout) == (0, True)
        assert forge(toy) == {"issue": [], "pr": []}
        assert pushed(toy) == ""
    tools.write_text(text)
    assert night(toy) == 10
    assert out(toy, "ended") == f"landed {small.NEXT}"


def killed(toy: toys.Toy, file: str, **variables: str) -> Iterator[None]:
    """Once, after a night was killed when it had written this file of its folder."""
    process = subprocess.Popen(
        ["ci/nightly.sh"],
        cwd=toy.repository,
        env=environment(toy, **variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    locked = toy.repository / "patches" / small.NEXT / "lock.toml"
    awaited = [toy.repository / "out" / "nightly" / file, *([locked] if file else [])]
    while not all(path.exists() for path in awaited):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    yield


def test_an_outage_of_the_forge_ends_red_and_the_next_night_makes_up_for_it(toy: toys.Toy) -> None:
    small.publish(toy, registry=SHIFTED)
    run(toy, "ci/nightly.sh")
    down = toy.repository.parent / "bin" / "forge.down"
    down.touch()
    assert run(toy, "ci/publish.sh").returncode != 0
    assert pushed(toy) == ""
    down.unlink()
    assert run(toy, "ci/publish.sh").returncode == 0
    assert len(forge(toy)["pr"]) == 1


def test_a_branch_that_a_person_pushed_to_is_left_as_it_is(toy: toys.Toy) -> None:
    small.publish(toy, registry=SHIFTED)
    night(toy)
    tree = run(toy, "git", "rev-parse", "HEAD^{tree}").stdout.strip()
    fix = run(toy, "git", "commit-tree", "-p", pushed(toy), "-m", "a fix", tree).stdout.strip()
    run(toy, "git", "push", "origin", f"{fix}:refs/heads/{BRANCH}")
    again(toy)
    assert pushed(toy) == fix
    file = toy.repository.parent / "bin" / "forge.json"
    file.write_text(json.dumps(forge(toy) | {"pr": []}))  # no pull request was made of it yet
    again(toy)
    assert (pushed(toy), forge(toy)["pr"]) == (fix, [])


def test_a_pull_request_that_a_person_closed_stays_closed(toy: toys.Toy) -> None:
    small.publish(toy, registry=SHIFTED)
    night(toy)
    state = forge(toy)
    state["pr"][0]["state"] = "closed"
    (toy.repository.parent / "bin" / "forge.json").write_text(json.dumps(state))
    run(toy, "git", "push", "origin", f":refs/heads/{BRANCH}")
    again(toy)
    assert (forge(toy)["pr"], pushed(toy)) == (state["pr"], "")


def again(toy: toys.Toy) -> None:
    """Another night from a fresh checkout."""
    for command in ("git checkout --quiet .", "git clean --quiet -fd"):
        run(toy, *command.split())
    assert night(toy) == 10


@pytest.mark.parametrize("script", ["ci/nightly.sh", "ci/publish.sh"])
def test_a_wrong_argument_prints_the_usage(toy: toys.Toy, script: str) -> None:
    done = run(toy, script, "--wrong", "more")
    assert done.returncode == 2
    assert f"usage: {script}" in done.stderr


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_call_the_scripts_and_official_actions_of_one_version(name: str) -> None:
    text = (REPOSITORY / ".github" / "workflows" / name).read_text()
    runs = re.findall(r"\brun: (.+)", text)
    assert runs
    for command in runs:
        assert (REPOSITORY / command.split()[0]).is_file(), command
    for action in re.findall(r"\buses: (\S+)", text):
        assert re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", action), action
