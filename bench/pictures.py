"""The pictures of docs/, each from the JSON files of one folder, and their place in a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench import plots
from bench.kernel_records import KERNELS, middles, place, read
from bench.loads import Load
from bench.plots import Panel, Series
from bench.results import Results
from bench.tables import pool_series

HEADS = 16  # of the points that are drawn against context and batch
FLOPS_A_HEAD = 2 * (576 + 512)  # of each row: one product with its key, one with its latent
ROW_BYTES = 576
# Dense BF16, from the card's data sheet: the flat part of the roof. Other cards are drawn without.
PEAK_FLOPS = {"NVIDIA H200": 989e12}

Timing = tuple[str, Load, float]


def served(folder: Path) -> list[Timing]:
    """(setup, load, ms a token); of a setup that several files hold, from the first of them."""
    files = [folder / f"{name}.json" for name in ("bf16", "fp8", "tokens")]
    timings: dict[str, list[Timing]] = {}
    for path in files:
        found: dict[str, list[Timing]] = {}
        for record in Results.load(path).records if path.exists() else []:
            timing = (record["setup"], Load.parse(record["load"]), record["tpot_ms"])
            found.setdefault(record["setup"], []).append(timing)
        timings = found | timings
    return [timing for found in timings.values() for timing in found if not timing[1].prefix]


def alone(folder: Path) -> list[Timing]:
    """(strategy, load, microseconds a layer) of attention alone with `HEADS` heads."""
    timings = []
    for point in read(folder / KERNELS):
        heads, load = place(point)
        if heads == HEADS:
            timings += [(name, load, us) for name, us in middles(point).items()]
    return timings


def _series(timings: list[Timing], place: Callable[[Load], float | None]) -> Series:
    """What has a name and at least two places on the axis."""
    series: Series = {}
    for name, load, time in timings:
        if name in plots.NAMES and (x := place(load)):
            series.setdefault(name, []).append((x, time))
    return {name: points for name, points in series.items() if len(points) > 1}


def by_context(timings: list[Timing]) -> Series:
    """One request, against its tokens."""
    return _series(timings, lambda load: load.context if load.batch == 1 else None)


def by_batch(timings: list[Timing]) -> Series:
    """Requests of one length, the one that was measured with the most batches, against those."""
    batches = Counter(context for _, context in {(t[1].batch, t[1].context) for t in timings})
    length = max(batches, key=lambda context: (batches[context], context), default=0)
    return _series(timings, lambda load: load.batch if load.context == length else None)


def roofline(folder: Path) -> Series:
    """(FLOP a byte of the FP8 rows, TFLOP/s), where reading them takes more than a launch."""
    series: Series = {}
    for point in read(folder / KERNELS):
        heads, _ = place(point)
        flops = heads * FLOPS_A_HEAD * point["active_tokens"]
        for name, us in middles(point).items() if point["floor_us"] >= 1 else ():
            if name in plots.NAMES:
                spot = (heads * FLOPS_A_HEAD / ROW_BYTES, flops / us / 1e6)
                series.setdefault(name, []).append(spot)
    return series


def _draw_bars(folder: Path, path: Path) -> None:
    if (source := folder / f"{path.stem}.json").exists():
        results = Results.load(source)
        device = results.records[0]["host"]["device"]
        plots.bars(results, path, f"{results.about['layers']} layers on one {device}")


def _draw_against(
    folder: Path, path: Path, axis: str, cut: Callable[[list[Timing]], Series]
) -> None:
    panels = [
        Panel(cut(alone(folder)), axis, "attention alone, a layer (us)"),
        Panel(cut(served(folder)), axis, "served, time a token (ms)"),
    ]
    if panels := [panel for panel in panels if panel.series]:
        plots.lines(panels, path, logarithmic=True)


def _draw_context(folder: Path, path: Path) -> None:
    _draw_against(folder, path, "tokens of one request", by_context)


def _draw_batch(folder: Path, path: Path) -> None:
    _draw_against(folder, path, "requests", by_batch)


def _draw_pool(folder: Path, path: Path) -> None:
    if series := pool_series(folder):
        plots.lines([Panel(series, "pool (tokens)", "time a token (ms), 1x100")], path)


def _draw_roofline(folder: Path, path: Path) -> None:
    if series := roofline(folder):
        point = read(folder / KERNELS)[0]
        peak = PEAK_FLOPS.get(point["host"]["device"])
        plots.roofline(series, path, point["copy_bytes_per_second"], peak)


Draw = Callable[[Path, Path], None]
# For each picture what draws it where the JSON files allow, and what it says to who can't see it.
PICTURES: dict[str, tuple[Draw, str]] = {
    "tokens": (_draw_bars, "time a token of FP8 as shipped and compact, by load"),
    "bf16": (_draw_bars, "time a token against a BF16 cache, by load"),
    "fp8": (_draw_bars, "time a token against other FP8 backends, by load"),
    "context": (_draw_context, "time against the tokens of one request"),
    "batch": (_draw_batch, "time against the number of requests"),
    "pool": (_draw_pool, "time a token against the size of the pool"),
    "roofline": (_draw_roofline, "attention alone under the roof of bandwidth and of arithmetic"),
}


def draw(results: Path, pictures: Path) -> None:
    """Every picture that the JSON files allow; ImportError if matplotlib is not installed."""
    for name, (draw_one, _) in PICTURES.items():
        draw_one(results, pictures / f"{name}.png")


def link(name: str, pictures: Path) -> str:
    """The picture in a page of docs/; nothing while there is none."""
    path = pictures / f"{name}.png"
    return f"![{PICTURES[name][1]}]({pictures.name}/{path.name})" if path.exists() else ""
