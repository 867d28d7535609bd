"""The command as a user meets it: exit codes, one screen, JSON, colours, progress."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from diagnosetool.cli import EXIT_CODES, INTERRUPTED, UNREADABLE

from tests.diagnose.conftest import ROOT, SCRIPT, Make, Run

SCREEN_LINES = 24
USAGE = 2
PAGE = ROOT / "docs" / "diagnose.md"


@pytest.mark.parametrize(
    ("fields", "code", "headline"),
    [
        ({}, 1, "POOL CAST FOUND"),
        ({"fp8": False}, 0, "NO POOL CAST"),
        ({"attention": "novel"}, 3, "CAN'T TELL"),
        ({"attention": "fa3"}, 5, "POOL CAST FOUND, ANOTHER BACKEND'S"),
    ],
)
def test_each_verdict_has_its_headline_and_code(
    trace: Make, diagnose: Run, fields: dict[str, object], code: int, headline: str
) -> None:
    done = diagnose(trace(**fields))
    assert done.returncode == code
    assert f"verdict        {headline}: " in done.stdout
    assert len(done.stdout.splitlines()) <= SCREEN_LINES
    assert done.stderr == ""
    assert json.loads(diagnose(trace(**fields), "--json").stdout)["verdict"]


def test_a_truncated_trace_is_judged_and_the_answer_says_so(
    trace: Make, diagnose: Run, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.json"
    text = trace(steps=6).read_text()
    cut.write_text(text[: int(0.7 * len(text))])
    done = diagnose(cut)
    assert done.returncode == 1
    assert "note           the file ends early" in done.stdout


@pytest.mark.parametrize("content", ["", "hello", '{"model": "glm"}'])
def test_what_is_no_trace_is_refused_in_one_line(
    diagnose: Run, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    done = diagnose(path)
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith(f"diagnose: {path}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--before", "a.json"],
        ["a.json", "--before", "b.json", "--after", "c.json"],
        ["--trim", "out.json"],
        ["-", "--trim", "out.json"],
        ["a.json", "--trim", "out.json", "--steps", "0"],
        ["--unheard-of"],
    ],
)
def test_usage_errors_exit_with_two(diagnose: Run, arguments: list[str]) -> None:
    assert diagnose(*arguments).returncode == 2


def test_the_exit_codes_of_the_page_the_help_and_the_code_agree(diagnose: Run) -> None:
    text = diagnose("--help").stdout
    of_help = re.findall(r"^  (\d+)  (.+)$", text[text.index("exit codes:") :], re.M)
    of_page = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.M)
    used = {*EXIT_CODES.values(), USAGE, UNREADABLE, INTERRUPTED}
    assert of_help == of_page
    assert {int(code) for code, _ in of_help} == used


def test_the_version_is_the_projects(diagnose: Run) -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert diagnose("--version").stdout == f"diagnose {stated}\n"


def test_an_older_python_is_a_usage_error() -> None:
    code = f"import runpy, sys; sys.version_info = (3, 10, 9); runpy.run_path({str(SCRIPT)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == USAGE
    assert "needs Python 3.11 or newer" in done.stderr


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("options", [["{}"], ["--before", "{}", "--after", "{}"], ["--help"]])
def test_lines_fit_the_terminal(
    trace: Make, diagnose: Run, monkeypatch: pytest.MonkeyPatch, columns: int, options: list[str]
) -> None:
    monkeypatch.chdir(trace("t.json").parent)
    monkeypatch.setenv("COLUMNS", str(columns))
    text = diagnose(*(option.format("t.json") for option in options)).stdout
    prose = text.partition("\nTo record a trace")[0]
    assert prose.count("\n") > 10
    wide = [line for line in prose.splitlines() if len(line) > columns]
    assert [line for line in wide if not line.endswith("_kernel")] == []  # a name stays whole


def test_two_traces_are_compared_and_the_code_speaks_of_the_second(
    trace: Make, diagnose: Run
) -> None:
    stock, cured = trace("stock.json"), trace("cured.json", fp8=False)
    done = diagnose("--before", stock, "--after", cured)
    assert done.returncode == 0
    cast = next(line for line in done.stdout.splitlines() if line.startswith("pool cast"))
    assert cast.split()[-2:] == ["0.00", "0.00"]
    assert diagnose("--before", cured, "--after", stock).returncode == 1
    both = json.loads(diagnose("--before", stock, "--after", cured, "--json").stdout)
    assert both["before"]["verdict"] == "cast"
    assert both["after"]["verdict"] == "absent"


def test_a_comparison_with_an_unreadable_trace_is_refused(trace: Make, diagnose: Run) -> None:
    assert diagnose("--before", trace(), "--after", "absent.json").returncode == 4


def test_what_is_trimmed_is_told_as_json_too(trace: Make, diagnose: Run, tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    told = json.loads(diagnose(trace(steps=6), "--trim", cut, "--json").stdout)
    assert told == {"file": str(cut), "steps": 2, "bytes": cut.stat().st_size}


@pytest.mark.parametrize(
    ("redirected", "code"),
    [("| true", 1), (">&-", 1), (">/dev/full", 4), ("- <&-", 4)],
)
def test_streams_that_are_closed_or_full_are_no_fault_of_the_tool(
    trace: Make, redirected: str, code: int
) -> None:
    given = "" if redirected.startswith("-") else str(trace())
    command = f"set -o pipefail; {sys.executable} {SCRIPT} {given} {redirected}"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == (code == 4)


def test_an_interruption_is_told_in_one_line(tmp_path: Path) -> None:
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    # An ignored SIGINT, as a job in the background has, would be inherited.
    command = ["env", "--default-signal=INT", sys.executable, str(SCRIPT), str(pipe)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with pipe.open("w") as out:  # opens once the child reads
        out.write('{"traceEvents": [')
        out.flush()
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=60)
    assert (child.returncode, error) == (130, "diagnose: interrupted\n")


def test_a_name_that_the_terminal_cannot_show_is_escaped(trace: Make, tmp_path: Path) -> None:
    named = os.fsencode(trace("plain.json").rename(tmp_path / "\udcff\u00f6.json"))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    command = [sys.executable.encode(), os.fsencode(SCRIPT), named]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"\\udcff\\xf6.json" in done.stdout


def test_a_pipe_is_read(trace: Make) -> None:
    with trace("t.json.gz").open("rb") as pipe:
        done = subprocess.run([sys.executable, str(SCRIPT), "-"], stdin=pipe, capture_output=True)
    assert done.returncode == 1


@pytest.mark.parametrize(("no_color", "escapes"), [("", True), ("1", False)])
def test_colours_are_for_terminals_that_want_them(
    trace: Make, no_color: str, escapes: bool
) -> None:
    master, slave = os.openpty()
    environment = {**os.environ, "NO_COLOR": no_color}
    command = [sys.executable, str(SCRIPT), str(trace()), "--quiet"]
    subprocess.run(command, stdout=slave, env=environment, check=False)
    os.close(slave)
    shown = os.read(master, 1 << 16)
    os.close(master)
    assert (b"\x1b[" in shown) is escapes
