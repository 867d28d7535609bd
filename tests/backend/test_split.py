"""A captured step of a split backend is one of the half that decodes: sglang hands each call on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trees import applied_tree, run_in_tree


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_all_that_a_decodes_graph_calls_reaches_the_half_that_decodes(release: str) -> None:
    run = run_in_tree(applied_tree(release), Path(__file__).with_name("split.py"))
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert len(told) == 5
    assert all(halves == ["decode"] for halves in told.values()), told
