"""The command as a user meets it: exit codes, one screen, JSON, colours, progress."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.diagnose.conftest import SCRIPT, Make, Run

SCREEN_LINES = 24


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


def test_the_exit_codes_stand_in_the_help(diagnose: Run) -> None:
    text = diagnose("--help").stdout
    for code in range(6):
        assert f"\n  {code}  " in text


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
