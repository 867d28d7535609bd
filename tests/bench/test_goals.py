"""The table of goals: verdicts at every place, and what the committed figures rest on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bench import kernel_records
from bench.goals import Goal, most, table
from bench.report import RESULTS
from bench.results import Results

FEWEST_PAIRS = 5
# Files of which tables show ratios of pairs to be judged.
JUDGED = ("bf16", "fp8", "pool", "prefix", "prefill-graph")


@pytest.mark.parametrize(
    ("allowed", "verdict"),
    [
        (most(1.0), "met"),
        (most(0.75), "missed at b"),
        (most(0.5), "missed at a, b"),
        ((0.6, math.inf), "met"),
        ((0.75, math.inf), "missed at a"),
        ((0.65, 0.72), "missed at b"),
    ],
)
def test_a_goal_is_met_if_every_place_meets_it(allowed: tuple[float, float], verdict: str) -> None:
    assert Goal("x", allowed, {"a": 0.7, "b": 0.8}).row()[2:4] == ["0.7000 to 0.8000", verdict]


def test_what_was_hoped_for_has_a_verdict_of_its_own() -> None:
    row = Goal("x", most(1.0), {"a": 0.7}, most(0.5)).row()
    assert row == ["x", "≤ 1.00", "0.7000", "met", "≤ 0.50: missed at a"]


def point(heads: int, active: int, direct: float, error: float = 0.002) -> dict[str, Any]:
    times = {"stock": 900.0, "bf16-fa3": 100.0, "direct": direct, "gather-alone": 60.0}
    times |= {"direct-portable": 100.0, "gather-fa3": 200.0}  # no fa2
    return {
        "point": f"{heads}:{active}x1",
        "active_tokens": active,
        "floor_us": 18.0,
        "host": {},
        "strategies": {
            name: {"us": [time, time * 2, time / 2], "error": error if name == "direct" else 0.002}
            for name, time in times.items()
        },
    }


def test_each_goal_looks_at_the_points_that_it_is_about(tmp_path: Path) -> None:
    """Slow ones lie outside: few tokens, 128 heads."""
    points = [point(8, 70_000, 90.0), point(16, 60_000, 200.0), point(128, 70_000, 200.0)]
    points += [point(16, 262_144, 36.0, error=0.003)]
    kernel_records.write(tmp_path / "kernels.json", points)
    rows = [line.strip("| ").split(" | ") for line in table(tmp_path).splitlines()[2:]]
    assert [row[1:4] for row in rows] == [
        ["≤ 1.00", "0.3600 to 0.9000", "met"],
        ["≤ 2.50", "2.0000", "met"],
        ["≥ 0.85", "0.9000", "met"],
        ["≤ 1.05", "1.0000 to 1.5000", "missed at 16:262144x1"],
    ]


@pytest.mark.parametrize("name", JUDGED)
def test_committed_ratios_rest_on_pairs_of_one_run_by_turns(name: str) -> None:
    results = Results.load(RESULTS / f"{name}.json")
    assert results.about["interleaved"]
    counts = {len(record["tpot_ms_all"]) for record in results.records}
    counts |= {len(record["ttft_ms_all"]) for record in results.records}
    assert counts == {results.about["repeats"]}
    assert min(counts) >= FEWEST_PAIRS


def test_committed_kernels_were_timed_over_four_times_the_cache() -> None:
    for one in kernel_records.read(RESULTS / "kernels.json"):
        for entry in one["strategies"].values():
            assert entry["bytes_in_play"] >= 4 * one["l2_bytes"]
            assert len(entry["us"]) >= FEWEST_PAIRS
