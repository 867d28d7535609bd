"""The JSON file of a run: one record a setup and load, written at once, so that runs resume."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import json_file
from bench.loads import Load

DRAFTED = "speculation"  # the file of the runs that verify drafts
KEPT_TOKENS = 32  # of each request, for comparisons; the rest would only fill the file


@dataclass
class Results:
    """Records of one run and what they were measured on.

    Attributes:
        path: the JSON file.
        about: model, pool and task; a resumed run must agree with it.
        records: figures as `record` makes them.
    """

    path: Path
    about: dict[str, Any]
    records: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file; ValueError with one sentence if it is not one of ours."""
        return cls(path, *json_file.read(path, "about", "records"))

    def save(self) -> None:
        """Write the file; ValueError with one sentence if it can't be, best before a run."""
        json_file.write(self.path, {"about": self.about, "records": self.records})

    def add(self, fresh: dict[str, Any], *, replace: bool) -> None:
        """Add a record; where one of its setup and load is there, that one stays or is replaced."""
        found = self.find(fresh["setup"], Load.parse(fresh["load"]))
        if not found:
            self.records.append(fresh)
        elif replace:
            self.records[self.records.index(found)] = fresh

    def find(self, setup: str, load: Load) -> dict[str, Any] | None:
        wanted = (setup, str(load))
        return next((r for r in self.records if (r["setup"], r["load"]) == wanted), None)

    def loads(self) -> list[Load]:
        return sorted({Load.parse(record["load"]) for record in self.records})

    def setups(self) -> list[str]:
        return list(dict.fromkeys(record["setup"] for record in self.records))


def record(
    setup: str,
    load: Load,
    description: dict[str, Any],
    measured: list[dict[str, Any]],
    answers: list[list[int]] | None,
) -> dict[str, Any]:
    """The record of one setup at one load.

    Args:
        setup, load: what was measured.
        description: of the engine, from the worker.
        measured: one entry a repeat, from the worker; all must have given the same tokens.
        answers: the right tokens of each request, where they are known.
    """
    outputs = [run["output"] for run in measured]
    tpot, step = ([run[figure] for run in measured] for figure in ("tpot_ms", "step_ms"))
    ttft = [max(run["ttft_ms"]) for run in measured]
    return {
        "setup": setup,
        "load": str(load),
        **description,
        "tokens": len(outputs[0][0]),
        "tpot_ms": statistics.median(tpot),
        "tpot_ms_all": [round(value, 4) for value in tpot],
        "step_ms": statistics.median(step),
        "step_ms_all": [round(value, 4) for value in step],
        "ttft_ms": statistics.median(ttft),
        "ttft_ms_all": [round(value, 3) for value in ttft],
        "repeatable": all(output == outputs[0] for output in outputs),
        "right_requests": _count_right(outputs[0], answers),
        "output": [tokens[:KEPT_TOKENS] for tokens in outputs[0]],
    }


def _count_right(output: list[list[int]], answers: list[list[int]] | None) -> int | None:
    if answers is None:
        return None
    return sum(got == right for got, right in zip(output, answers, strict=True))


def paired_ratio(one: dict[str, Any], other: dict[str, Any], figure: str = "tpot_ms") -> float:
    """Median of the ratios of repeats, first by first, second by second."""
    pairs = zip(one[f"{figure}_all"], other[f"{figure}_all"], strict=False)
    return float(statistics.median(a / b for a, b in pairs))


def first_difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[int, int] | None:
    """(request, place) of the first token, by place, in which two records differ."""
    places = min(len(tokens) for record in (one, other) for tokens in record["output"])
    for place in range(places):
        for request, (a, b) in enumerate(zip(one["output"], other["output"], strict=True)):
            if a[place] != b[place]:
                return request, place
    return None
