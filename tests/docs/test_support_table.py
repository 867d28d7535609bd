"""Each row of docs/support.md names tests that are there, and that passed where they need a GPU."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import pytest

from tests.backend.test_support import REFUSED
from tests.gpu import machine, report
from tests.gpu.kit_cases import CASES

TESTS = machine.ROOT / "tests"
TEXT = report.DOCUMENT.read_text()
ROWS = report.rows(TEXT)
STATUSES = {"served", "in part", "refused", "inherited", "not tested"}
PASSED = '<testcase classname="tests.gpu.test_a" name="{}" />'
OTHER = '<testcase classname="tests.gpu.test_a" name="{}"><{} message="" /></testcase>'
ROW = report.Row("a mode", "served", "`gpu/test_a.py::test_one`")


@cache
def functions(file: str) -> set[str]:
    """Names of the tests in a file under tests/; none of them is imported."""
    path = TESTS / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def written(folder: Path, *cases: str, name: str = "card") -> report.Results:
    """Results read back from a JUnit file of these cases."""
    text = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    (folder / f"{name}.xml").write_text(text)
    return report.Results(folder)


def ended(outcome: str, error: str = "") -> dict[str, str]:
    return {"outcome": outcome, "error": error}


def with_kit(folder: Path, release: str, outcomes: report.Kit) -> report.Results:
    """Results read back with a release's outcomes of upstream's cases."""
    (folder / f"upstream-kit-{release}.json").write_text(json.dumps(outcomes))
    return report.Results(folder)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_row_names_what_is_there(row: report.Row) -> None:
    named = [test.partition("[")[0].split("::") for test in row.tests]
    assert [test for file, test in named if test not in functions(file)] == []
    assert [case for case in row.named("refusal") if case not in REFUSED] == []
    assert [case for case in row.named("kit") if case not in CASES] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_row_has_a_known_status_and_something_to_show_for_it(row: report.Row) -> None:
    status = row.status.removesuffix(report.PENDING)
    assert status in STATUSES
    named = row.tests or row.named("refusal") or row.named("kit")
    assert bool(named) == (status != "not tested")


def test_no_row_names_a_test_that_did_not_pass() -> None:
    assert report.unproven(TEXT, report.Results()) == []


def test_tables_and_marks_are_those_of_the_results() -> None:
    assert report.render(TEXT, report.Results()) == TEXT, "run python -m tests.gpu.report"


def test_every_refusal_has_a_row() -> None:
    assert set(REFUSED) - {case for row in ROWS for case in row.named("refusal")} == set()


def test_a_test_without_a_result_is_marked_until_it_has_one(tmp_path: Path) -> None:
    pending = report.render(str(ROW), report.Results(tmp_path))
    assert pending == "| a mode | served (not run yet) | `gpu/test_a.py::test_one` |"
    results = written(tmp_path, PASSED.format("test_one"))
    assert report.render(pending, results) == str(ROW)


@pytest.mark.parametrize("outcome", ["failure", "error", "skipped"])
def test_what_failed_or_was_skipped_did_not_pass(tmp_path: Path, outcome: str) -> None:
    results = written(tmp_path, PASSED.format("test_one[x]"), OTHER.format("test_one[y]", outcome))
    assert report.unproven(str(ROW), results) == ["a mode"]
    one = report.Row("a mode", "served", "`gpu/test_a.py::test_one[x]`")
    assert report.unproven(str(one), results) == []


def test_a_test_that_one_machine_skips_counts_where_it_ran(tmp_path: Path) -> None:
    written(tmp_path, OTHER.format("test_one", "skipped"), name="small")
    results = written(tmp_path, PASSED.format("test_one"), name="large")
    assert report.unproven(str(ROW), results) == []
    assert "| small | an earlier one | 0 | 0 | 1 |" in report.machines(results)


def test_a_kit_case_must_pass_with_both_ways_of_reading(tmp_path: Path) -> None:
    row = str(report.Row("a mode", "served", "`kit: decode graph`"))
    passed, failed = ended("passed"), ended("failed")
    for other, unproven in ((passed, []), (failed, ["a mode"])):
        outcomes = {"decode graph": {"gather, FP8": passed, "direct, FP8": other}}
        assert report.unproven(row, with_kit(tmp_path, "1.0", outcomes)) == unproven


def test_results_of_two_releases_are_told_apart_and_no_failure_is_hidden(tmp_path: Path) -> None:
    row = str(report.Row("a mode", "served", "`kit: decode graph` `gpu/test_a.py::test_one`"))
    written(tmp_path, PASSED.format("test_one"), name="card-1.0")
    written(tmp_path, OTHER.format("test_one", "skipped"), name="card-2.0")
    outcomes = {"decode graph": dict.fromkeys(("gather, FP8", "direct, FP8"), ended("passed"))}
    with_kit(tmp_path, "1.0", outcomes)
    results = with_kit(tmp_path, "2.0", outcomes)
    assert report.unproven(row, results) == []
    assert "| decode graph | passed | passed |" in report.kit(results.kits)
    outcomes["decode graph"]["direct, FP8"] = ended("failed", "ValueError: 7")
    results = with_kit(tmp_path, "2.0", outcomes)
    assert report.unproven(row, results) == ["a mode"]
    told = "| decode graph | passed | 1.0: passed; 2.0: failed: ValueError |"
    assert told in report.kit(results.kits)
    with_kit(tmp_path, "2.0", {})
    results = written(tmp_path, OTHER.format("test_one", "failure"), name="card-2.0")
    assert report.unproven(row, results) == ["a mode"]
