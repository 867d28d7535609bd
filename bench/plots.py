"""Pictures of results, with matplotlib; every caller can do without."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bench.results import Results

NAMES = {
    "stock": "flashinfer, FP8",
    "compact": "flashinfer_mla_compact, FP8",
    "bf16": "flashinfer, BF16",
    "flashmla": "flashmla, FP8",
    "triton": "triton, FP8",
}
COLOURS = {
    "stock": "#b2182b",
    "compact": "#2166ac",
    "bf16": "#878787",
    "flashmla": "#e08214",
    "triton": "#5aae61",
}


def _pyplot() -> Any:
    """ImportError if matplotlib is not installed."""
    importlib.import_module("matplotlib").use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def _figure(width: float, height: float) -> tuple[Any, Any]:
    figure, axes = _pyplot().subplots(figsize=(width, height), layout="constrained")
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without matplotlib's version in it, the same figures give the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    _pyplot().close(figure)


def bars(results: Results, path: Path, title: str) -> None:
    """Time a token by load, one bar a setup; the scale is logarithmic."""
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
    axes.set_yscale("log")
    axes.margins(y=0.1)
    axes.set_ylim(bottom=1)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(loads)), [str(load) for load in loads])
    axes.set_xlabel("requests x prompt tokens")
    axes.set_ylabel("time a token (ms)")
    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    _save(figure, path)


def lines(
    series: dict[str, list[tuple[float, float]]], path: Path, labels: tuple[str, str]
) -> None:
    """One line a setup through (x, milliseconds); x is logarithmic."""
    figure, axes = _figure(6, 4)
    for name, points in series.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", label=NAMES[name], color=COLOURS[name])
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.legend(fontsize=8)
    _save(figure, path)
