"""Pictures of results, with matplotlib; every caller can do without."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.results import Results

NAMES = {
    "stock": "flashinfer, FP8",
    "compact": "flashinfer_mla_compact, FP8",
    "bf16": "flashinfer, BF16",
    "flashmla": "flashmla, FP8",
    "triton": "triton, FP8",
    "bf16-fa3": "fa3, BF16",
    "bf16-fa2": "fa2, BF16",
    "gather-fa3": "gather, FP8",
    "direct": "direct, FP8",
}
COLOURS = {
    "stock": "#b2182b",
    "compact": "#2166ac",
    "bf16": "#878787",
    "flashmla": "#e08214",
    "triton": "#5aae61",
    "bf16-fa3": "#878787",
    "bf16-fa2": "#bababa",
    "gather-fa3": "#92c5de",
    "direct": "#2166ac",
}
Series = dict[str, list[tuple[float, float]]]  # of each name of NAMES its (x, y)


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    series: Series
    x_label: str
    y_label: str


def _pyplot() -> Any:
    """ImportError if matplotlib is not installed."""
    importlib.import_module("matplotlib").use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes; a list of them where there are several columns."""
    figure, axes = _pyplot().subplots(1, columns, figsize=(width, height), layout="constrained")
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without matplotlib's version in it, the same figures give the same file.
    figure.savefig(path, dpi=90, metadata={"Software": None})
    _pyplot().close(figure)


def bars(results: Results, path: Path, title: str) -> None:
    """Time a token by load, one bar a setup."""
    loads = results.loads()
    setups = [name for name in results.setups() if name in NAMES]
    figure, axes = _figure(1.6 + 1.5 * len(loads), 4)
    width = 0.8 / len(setups)
    for number, name in enumerate(setups):
        records = [results.find(name, load) for load in loads]
        heights = [record["tpot_ms"] if record else 0 for record in records]
        places = [place + (number - (len(setups) - 1) / 2) * width for place in range(len(loads))]
        drawn = axes.bar(places, heights, width, label=NAMES[name], color=COLOURS[name])
        axes.bar_label(drawn, [f"{height:.1f}" if height else "" for height in heights], fontsize=7)
    axes.margins(y=0.1)
    axes.set_xticks(range(len(loads)), [str(load) for load in loads])
    axes.set_xlabel("requests x prompt tokens")
    axes.set_ylabel("time a token (ms)")
    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    _save(figure, path)


def lines(panels: list[Panel], path: Path, logarithmic: bool = False) -> None:
    """Panels side by side, one line a name; x is logarithmic, y where asked for."""
    figure, row = _figure(5.5 * len(panels), 4, len(panels))
    for axes, panel in zip(row if len(panels) > 1 else [row], panels, strict=True):
        _plot(axes, panel.series, "o-")
        axes.set_xscale("log", base=2)
        if logarithmic:
            axes.set_yscale("log", subs=[2, 5])
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        else:
            axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        axes.legend(fontsize=8)
    _save(figure, path)


def _plot(axes: Any, series: Series, style: str) -> None:
    for name, points in series.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, style, label=NAMES[name], color=COLOURS[name])


def _roof(ends: tuple[float, float], rise: float, peak: float) -> list[tuple[float, float]]:
    """Corners of y = min(rise * x, peak) between two ends."""
    low, high = ends
    return [(x, min(rise * x, peak)) for x in (low, max(low, min(peak / rise, high)), high)]


def roofline(series: Series, path: Path, bytes_per_second: float, peak: float | None) -> None:
    """(FLOP a byte of FP8 rows, TFLOP/s) under what the bandwidth and the card's peak allow."""
    figure, axes = _figure(6, 4)
    _plot(axes, series, "o")
    places = [x for points in series.values() for x, _ in points]
    ends = min(places) / 2, 2 * max(places)
    for rows, style, bytes_a_value in (("FP8", "-", 1), ("BF16", "--", 2)):
        roof = _roof(ends, bytes_per_second / bytes_a_value / 1e12, (peak or math.inf) / 1e12)
        label = f"{bytes_per_second / 1e12:.2f} TB/s of {rows} rows"
        axes.plot(*zip(*roof, strict=True), style, color="black", linewidth=1, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("FLOP a byte of the FP8 rows (3.8 a head)")
    axes.set_ylabel("TFLOP/s")
    axes.legend(fontsize=8)
    _save(figure, path)
