"""What was to be reached, and whether the JSON files say so."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import overlay
from bench.kernel_records import KERNELS, VERIFY, middles, place, read, share_of_copy
from bench.markdown import MISSING, markdown
from bench.results import DRAFTED, Results, paired_ratio

HEADS = 16
MANY, ALONE = ("16x8192", "64x2048"), ("1x65536",)
SM90 = (9, 0)
LARGEST = 262_144  # active tokens of the largest points
Figures = dict[str, float]  # of each point or load a ratio
Range = tuple[float, float]
Point = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """One row.

    Attributes:
        what: the ratio, in words.
        allowed: from and to which value it is met.
        figures: the median of the ratio at every place where it is to be met.
        stretch: the same for what was hoped for; None if nothing beyond the goal.
    """

    what: str
    allowed: Range
    figures: Figures
    stretch: Range | None = None

    def row(self) -> list[str]:
        return [
            self.what,
            _words(self.allowed),
            self._found(),
            self._verdict(self.allowed),
            f"{_words(self.stretch)}: {self._verdict(self.stretch)}" if self.stretch else "-",
        ]

    def _found(self) -> str:
        ends = sorted({min(self.figures.values()), max(self.figures.values())})
        return " to ".join(f"{value:.4f}" for value in ends)

    def _verdict(self, allowed: Range) -> str:
        low, high = allowed
        missed = [place for place, value in self.figures.items() if not low <= value <= high]
        return f"missed at {', '.join(missed)}" if missed else "met"


def most(value: float) -> Range:
    return -math.inf, value


def _words(allowed: Range) -> str:
    low, high = allowed
    if math.isinf(low):
        return f"≤ {high:.2f}"
    return f"≥ {low:.2f}" if math.isinf(high) else f"{low:.2f} to {high:.2f}"


def table(folder: Path) -> str:
    """Every goal of which the folder has figures."""
    goals = [*_served(folder), *_drafted(folder), *_alone(folder), *_verify(folder)]
    rows = [goal.row() for goal in goals if goal.figures]
    header = ["ratio", "goal", "lowest to highest", "verdict", "hoped for"]
    return markdown(header, rows) if rows else MISSING


def _served(folder: Path) -> list[Goal]:
    bf16, flashmla = (_pairs(folder, "bf16", "compact", name) for name in ("bf16", "flashmla"))
    triton = _pairs(folder, "fp8", "compact", "triton")
    many = {load: value for load, value in triton.items() if load == "64x2048"}
    pool = _pairs(folder, "pool", "pool-131072", "pool-2000000")
    first, graphed = (
        _pairs(folder, name, "compact", "bf16", "ttft_ms") for name in ("prefix", "prefill-graph")
    )
    return [
        Goal("time a token ÷ BF16 cache", most(1.0), bf16, most(0.85)),
        Goal("time a token ÷ FlashMLA", most(1.0), flashmla, most(0.95)),
        Goal("time a token ÷ Triton", most(0.95), triton),
        Goal("time a token ÷ Triton, many requests", most(0.45), many),
        Goal("time a token, small pool ÷ large pool", (0.98, 1.02), pool),
        Goal(
            "first token after a cached prefix ÷ BF16 cache, no graph", most(1.05), first, most(1.0)
        ),
        Goal(
            "first token of a fresh prompt ÷ BF16 cache, breakable graph",
            most(1.05),
            graphed,
            most(1.0),
        ),
    ]


def _drafted(folder: Path) -> list[Goal]:
    goals = []
    for what, figure in (("a step", "step_ms"), ("a token", "tpot_ms")):
        bf16, flashmla = (
            _pairs(folder, DRAFTED, "compact", name, figure) for name in ("bf16", "flashmla")
        )
        long = {load: bf16.pop(load) for load in ALONE if load in bf16}
        ratio = f"with drafts, time {what} ÷"
        goals += [
            Goal(f"{ratio} BF16 cache", most(1.0), bf16, most(0.95)),
            Goal(f"{ratio} BF16 cache, one long request", most(0.9), long),
            Goal(f"{ratio} FlashMLA", most(1.0), flashmla, most(0.95)),
        ]
    return goals


def _pairs(folder: Path, file: str, one: str, other: str, figure: str = "tpot_ms") -> Figures:
    path = folder / f"{file}.json"
    results = Results.load(path) if path.exists() else Results(path, {})
    found: Figures = {}
    for load in results.loads():
        first, second = results.find(one, load), results.find(other, load)
        if first and second:
            found[str(load)] = paired_ratio(first, second, figure)
    return found


def _alone(folder: Path) -> list[Goal]:
    points = sorted(read(folder / KERNELS), key=place)
    busy = [p for p in points if p["active_tokens"] >= 65_000 and _heads(p) <= 64]
    one_card = [p for p in points if _heads(p) == HEADS]
    largest = [p for p in one_card if p["active_tokens"] == LARGEST]
    rows = [p for p in one_card if p["active_tokens"] >= 32_000]
    portable = "attention, direct for SM80 to 120 ÷ BF16 with fa2, 65,000 tokens and more"
    return [
        Goal(
            "attention, direct ÷ BF16 with fa3, 65,000 tokens and more",
            most(1.0),
            _figures(busy, _divided("direct", "bf16-fa3")),
            most(0.6),
        ),
        Goal(
            portable,
            most(0.8),
            _figures(busy, _divided("direct-portable", "bf16-fa2")),
            most(0.55),
        ),
        Goal(
            f"attention, direct ÷ byte floor, {HEADS} heads, {LARGEST:,} tokens",
            most(2.5),
            _figures(largest, lambda p: middles(p)["direct"] / p["floor_us"]),
            most(1.5),
        ),
        Goal(
            "gather ÷ a copy's bandwidth, 32,000 rows and more",
            (0.85, math.inf),
            _figures(rows, share_of_copy),
        ),
        Goal("attention's error ÷ stock's", most(1.05), _figures(points, _error)),
    ]


def _verify(folder: Path) -> list[Goal]:
    points = sorted(read(folder / VERIFY), key=place)
    few = [p for p in points if place(p)[0] <= 32]
    many, alone = ([p for p in few if _load(p) in loads] for loads in (MANY, ALONE))
    tile = [p for p in points if place(p)[0] == 64]
    more = [p for p in points if place(p)[0] > 64]
    against = _divided("direct", "bf16-fa3")
    what = "verify, direct ÷ BF16 with fa3, {} query rows a request"
    return [
        Goal(what.format("up to 32") + ", many requests", most(0.8), _figures(many, against)),
        Goal(what.format("up to 32") + ", 1x65536", most(0.5), _figures(alone, against)),
        Goal(what.format("64"), most(1.0), _figures(tile, against)),
        Goal(
            "verify, what auto picks ÷ the better of direct and gather, more than 64 rows",
            most(1.02),
            _figures(more, _picked),
        ),
        Goal(
            "verify, direct in one block an SM ÷ BF16 with fa2, up to 64 rows",
            most(0.8),
            _figures([*few, *tile], _divided("direct-small", "bf16-fa2")),
        ),
        Goal(
            "verify, what auto picks: error ÷ stock's",
            most(1.05),
            _figures(points, lambda p: p["strategies"][_auto(p)]["error"] / _stock_error(p)),
        ),
    ]


def _load(point: Point) -> str:
    return str(place(point)[1])


def _auto(point: Point) -> str:
    policy = overlay.load("policy")
    chosen, _ = policy.strategy_of(policy.Means(1, SM90), policy.Settings(), place(point)[0])
    return {"direct": "direct", "gather": "gather-fa3"}[chosen]


def _picked(point: Point) -> float:
    found = middles(point)
    return found[_auto(point)] / min(found["direct"], found["direct-ragged"], found["gather-fa3"])


def _stock_error(point: Point) -> float:
    """Gathering gives stock's bits."""
    return float(point["strategies"]["gather-fa3"]["error"])


def _heads(point: Point) -> int:
    return place(point)[0]


def _figures(points: Sequence[Point], ratio: Callable[[Point], float]) -> Figures:
    """Of the points where the strategies that `ratio` asks for ran."""
    found: Figures = {}
    for point in points:
        try:
            found[point["point"]] = ratio(point)
        except KeyError:
            continue
    return found


def _divided(one: str, other: str) -> Callable[[Point], float]:
    def ratio(point: Point) -> float:
        times = (point["strategies"][name]["us"] for name in (one, other))
        return float(statistics.median(a / b for a, b in zip(*times, strict=True)))

    return ratio


def _error(point: Point) -> float:
    """The largest of the ways that this backend reads."""
    entries = point["strategies"]
    ours = (entries[name]["error"] for name in ("direct", "direct-portable", "gather-fa3"))
    return float(max(ours) / entries["stock"]["error"])
