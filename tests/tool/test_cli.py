"""The command line: usage errors, exit codes in the help, and verify's interpreter."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from carrytool import cli as carry
from overlaytool import verify
from overlaytool.cli import VERBS, main
from overlaytool.errors import EXIT_HELP, Exit
from overlaytool.pin import REPOSITORY

from tests.tool.conftest import Overlay
from tests.tool.toy import BACKEND, CHOICES, RELEASE, Toy

TOOLS = dict.fromkeys(VERBS, "overlay") | dict.fromkeys(carry.VERBS, "carry")


@pytest.mark.parametrize(
    "arguments",
    [[], ["fly"], ["apply", "--tree", "a", "--python", "b"], ["status", "--from-wheel", "x"]],
)
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


@pytest.mark.parametrize(("redirected", "code"), [("| true", 141), (">&-", 0), (">/dev/full", 1)])
def test_output_that_no_one_reads_is_told_in_one_line_at_most(redirected: str, code: int) -> None:
    command = f"set -o pipefail; {sys.executable} {REPOSITORY}/scripts/carry lint {redirected}"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == (code == 1)


@pytest.mark.parametrize(("verb", "code"), [("lint", 1), ("drift", 40)])
def test_a_file_of_the_repository_that_is_not_readable_is_named(
    toy: Toy, overlay: Overlay, verb: str, code: int
) -> None:
    (toy.repository / "patches" / "default").unlink()
    refused = overlay(verb)
    assert refused.code == code
    assert "patches/default: No such file or directory; fix that" in refused.err


def test_pins_are_listed_by_release() -> None:
    command = [sys.executable, str(REPOSITORY / "scripts/carry"), "lint", "--pin", "0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = done.stderr.strip().rpartition(" are ")[2].split(", ")
    assert listed == sorted(listed, key=lambda pin: [int(part) for part in pin.split(".")])


def test_an_unknown_pin_names_the_known_ones(overlay: Overlay) -> None:
    refused = overlay("apply", "--pin", "0.0.1")
    assert refused.code == 2
    assert refused.err == "overlay apply: there is no pin '0.0.1': the pins are 1.2.3\n"


def test_without_a_tree_the_remedy_is_told(overlay: Overlay) -> None:
    refused = overlay("apply")
    assert refused.code == 2
    assert "make fetch" in refused.err
    off = overlay("unapply")
    assert (off.code, off.out.partition(":")[0]) == (0, "nothing to unapply")


def test_what_make_asked_is_answered_in_its_words(
    toy: Toy, overlay: Overlay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.file(CHOICES).write_text("edited\n")
    assert "name one with --tree or --python" in overlay("apply").err
    assert "use `scripts/overlay unapply --from-wheel" in overlay("apply", "--tree", toy.tree).err
    monkeypatch.setenv("ASKED_BY", "make")
    assert "name one with TREE= or PYTHON=" in overlay("apply").err
    for answer in (
        overlay("apply", "--tree", toy.tree).err,
        overlay("status", "--tree", toy.tree).out,
    ):
        assert "use `make unapply WHEEL=FILE`" in answer
    with pytest.raises(SystemExit):
        carry.main(["rebase"])
    assert "required: TO=" in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["overlay", "carry", "doctor"])
def test_each_tool_states_its_version(tool: str) -> None:
    command = [sys.executable, str(REPOSITORY / "scripts" / tool), "--version"]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert subprocess.check_output(command, text=True) == f"{tool} {project['version']}\n"


def test_every_verb_takes_json(toy: Toy, overlay: Overlay) -> None:
    assert json.loads(overlay("fetch", "--json").out)["fetched"] is True
    assert json.loads(overlay("fetch", "--json").out)["fetched"] is False
    assert json.loads(overlay("apply", "--json").out)["state"] == "pristine"
    verified = overlay("verify", "--json", "--tree", toy.pin.tree, "--python", sys.executable)
    assert json.loads(verified.out)["points"] == [], verified.err


@pytest.mark.parametrize("verb", TOOLS)
def test_the_help_of_each_verb_lists_its_exit_codes(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        (main if verb in VERBS else carry.main)([verb, "--help"])
    help_text = capsys.readouterr().out
    assert "exit codes:\n  0    " in help_text
    assert "\n  2    usage error" in help_text
    assert "\n  130  interrupted" in help_text


def test_the_page_has_the_exit_codes_of_the_help() -> None:
    page = (REPOSITORY / "docs/install.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE))
    codes = {code for verb in VERBS.values() for code in verb.codes} | {Exit.INTERRUPTED}
    assert rows == {str(code.value): EXIT_HELP[code] for code in codes}


def test_json_tells_the_state_that_was_found_and_what_changed(toy: Toy, overlay: Overlay) -> None:
    where = ("--tree", toy.tree, "--json")
    applied = json.loads(overlay("apply", *where).out)
    assert (applied["release"], applied["state"]) == (RELEASE, "pristine")
    assert (applied["changes"][BACKEND], applied["changes"][CHOICES]) == ("add", "change")
    told = json.loads(overlay("status", *where).out)
    assert (told["state"], told["package"]) == ("applied", str(toy.tree / "sglang"))
    assert set(told["files"]) == set(applied["changes"])
    assert json.loads(overlay("plan", *where).out)["changes"] == {}
    assert json.loads(overlay("unapply", *where).out)["changes"][BACKEND] == "remove"


def test_json_of_a_foreign_tree_has_the_exit_code_of_the_text(toy: Toy, overlay: Overlay) -> None:
    toy.file(CHOICES).write_text("")
    told = overlay("status", "--tree", toy.tree, "--json")
    assert told.code == 4
    assert json.loads(told.out)["files"][CHOICES] == "foreign"


@pytest.mark.parametrize(("code", "wanted"), [(0, 0), (1, 1), (6, 6), (139, 6), (3, 6)])
def test_verify_passes_the_hook_points_code_on_and_never_says_ok_by_default(
    toy: Toy,
    overlay: Overlay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    wanted: int,
) -> None:
    program = tmp_path / "points.py"
    program.write_text(f"import sglang.srt.compact.backend\nprint('a point')\nexit({code})\n")
    monkeypatch.setattr(verify, "HOOK_POINTS", program)
    overlay("apply", "--tree", toy.tree)
    where = ("--tree", toy.tree, "--python", sys.executable)
    verified = overlay("verify", *where)
    assert verified.code == wanted
    assert verified.out.startswith("verify: ")
    assert verified.out.endswith("\na point\n")
    assert ("every hook point" in verified.out) == (wanted == 0)
    assert ("name with --python" in verified.out) == (wanted == 6)
    assert not list(toy.tree.rglob("*.pyc"))


def test_verify_stops_at_a_state_that_is_not_whole(toy: Toy, overlay: Overlay) -> None:
    overlay("apply", "--tree", toy.tree)
    toy.file("sglang/srt/choices.py").write_text("")
    where = ("--tree", toy.tree, "--python", sys.executable)
    assert overlay("verify", *where).code == 4


def test_verify_without_an_interpreter_could_not_import(toy: Toy, overlay: Overlay) -> None:
    refused = overlay("verify", "--tree", toy.tree)
    assert refused.code == 3
    assert "is not applied: run `make apply`" in refused.err
    overlay("apply", "--tree", toy.tree)
    refused = overlay("verify", "--tree", toy.tree)
    assert refused.code == 6
    assert "ci/venv.sh" in refused.err


@pytest.mark.parametrize("verb", TOOLS)
def test_the_makefile_has_a_target_for_each_verb(verb: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    assert f"\n{verb}:" in makefile
    assert f"scripts/{TOOLS[verb]} {verb} $(pin)" in makefile


def test_make_passes_pin_and_tree_on(toy: Toy) -> None:
    command = ["make", "-C", str(REPOSITORY), "-n", "apply", "PIN=1.2.3", f"TREE={toy.tree} two"]
    said = subprocess.check_output(command, text=True)
    assert f'scripts/overlay apply --pin 1.2.3 --tree "{toy.tree} two"' in said
    assert "fetch" not in said
    assert "overlay fetch" in subprocess.check_output([*command[:4], "apply"], text=True)
