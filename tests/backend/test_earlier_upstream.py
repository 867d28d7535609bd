"""Over the backend of 0.5.9, whose pool travels on the batch, a step equals stock's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.trees import applied_tree, run_in_tree

STEPS = (
    "decode",
    "decode that writes",
    "extend",
    "padded replay",
    "next replay",
    "padded verify",
)


@pytest.fixture(scope="module")
def found() -> Any:
    run = run_in_tree(
        applied_tree("0.5.9"),
        Path(__file__).with_name("earlier_upstream.py"),
        environment={"TRITON_INTERPRET": "1"},
        stdin=json.dumps({"gathers": [8, 6], "reads directly": [9, 0]}),
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("step", STEPS)
def test_gathered_rows_give_what_the_whole_pool_gives(found: Any, step: str) -> None:
    assert found["gathers"][step] == 0


@pytest.mark.parametrize("step", STEPS)
def test_direct_reading_gives_it_within_rounding(found: Any, step: str) -> None:
    assert found["reads directly"][step] <= 0.02


def test_steps_of_few_tokens_are_read_directly_although_the_buffer_holds_the_pool(
    found: Any,
) -> None:
    assert [step for step in STEPS if not found["reads directly"][step]] == []


def test_what_decides_is_read_from_the_server_arguments(found: Any) -> None:
    assert "a DSA model under a tc_piecewise prefill graph" in found["refusal"]


@pytest.mark.parametrize("what", ["gathers", "reads directly", "drafts"])
def test_the_start_line_states_the_bytes_that_are_held(found: Any, what: str) -> None:
    start = found["start"][what]
    (line,) = start["lines"]
    told = [int(count) for count in re.findall(r"(\d+) bytes", line)]
    assert told[0] == start["buffer"] > 0
    assert sum(told) == start["allocated"]
    assert (told[3] > 0) == (what != "gathers"), "splits are of direct reading"
