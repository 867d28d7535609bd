"""The tables of README.md and docs/, each from the JSON files of one folder."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.compare import judge
from bench.loads import Load
from bench.proof import summary
from bench.results import Results, paired_ratio

SERVED = (
    "tokens",
    "proof",
    "bf16",
    "fp8",
    "prefix",
    "prefix-graph",
    "pool-*",
)  # files of `bench.serve`
MISSING = "*Not measured yet.*"


def _load(folder: Path, name: str) -> Results | None:
    path = folder / f"{name}.json"
    return Results.load(path) if path.exists() else None


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def tokens(folder: Path) -> str:
    """FP8 as shipped against compact: times, equality of tokens, and the wrong row."""
    results = _load(folder, "tokens")
    if results is None:
        return MISSING
    header = ["requests x tokens", "`flashinfer`, ms", "`flashinfer_mla_compact`, ms"]
    header += ["times as fast", "greedy tokens", "with one wrong row"]
    return _markdown(header, [_tokens_row(results, load) for load in results.loads()])


def _tokens_row(results: Results, load: Load) -> list[str]:
    stock, compact = results.find("stock", load), results.find("compact", load)
    if not (stock and compact):
        return [str(load), *["not measured"] * 5]
    wrong = results.find("wrong-row", load)
    return [
        str(load),
        f"{stock['tpot_ms']:.2f}",
        f"{compact['tpot_ms']:.2f}",
        f"{paired_ratio(stock, compact):.2f}",
        judge(stock, compact)[0],
        judge(stock, wrong)[0] if wrong else "not measured",
    ]


def ratios(folder: Path) -> str:
    """Compact against BF16 KV, FlashMLA and Triton: medians of pairs measured by turns."""
    files = [results for name in ("bf16", "fp8") if (results := _load(folder, name))]
    if not files:
        return MISSING
    loads = sorted({load for results in files for load in results.loads()})
    others = [
        (name, results)
        for results in files
        for name in sorted(results.setups())
        if name != "compact"
    ]
    header = ["requests x tokens", "compact, ms", *(f"÷ {name}" for name, _ in others)]
    return _markdown(header, [_ratio_row(load, others) for load in loads])


def _ratio_row(load: Load, others: list[tuple[str, Results]]) -> list[str]:
    own = [record for _, results in others if (record := results.find("compact", load))]
    cells = [str(load), f"{own[0]['tpot_ms']:.2f}" if own else "not measured"]
    for name, results in others:
        compact, other = results.find("compact", load), results.find(name, load)
        cells.append(_ratio_cell(compact, other, "tpot_ms"))
    return cells


def _ratio_cell(one: dict[str, Any] | None, other: dict[str, Any] | None, figure: str) -> str:
    if not (one and other):
        return "not measured"
    pairs = [a / b for a, b in zip(one[f"{figure}_all"], other[f"{figure}_all"], strict=False)]
    return f"{paired_ratio(one, other, figure):.3f} ({min(pairs):.3f} to {max(pairs):.3f})"


def first_token(folder: Path) -> str:
    """Time to the first token after a cached prefix, against BF16 KV."""
    rows = []
    for name, graph in (("prefix", "off"), ("prefix-graph", "breakable")):
        results = _load(folder, name)
        for load in results.loads() if results else []:
            assert results
            compact, bf16 = results.find("compact", load), results.find("bf16", load)
            if compact and bf16:
                times = [f"{record['ttft_ms']:.1f}" for record in (compact, bf16)]
                ratio = _ratio_cell(compact, bf16, "ttft_ms")
                rows.append([str(load), graph, *times, ratio])
    header = ["requests x tokens + cached", "prefill graph", "compact, ms", "BF16, ms", "ratio"]
    return _markdown(header, rows) if rows else MISSING


def pool_series(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """(pool in tokens, ms a token) of compact at one short request."""
    load = Load(1, 100)
    points = []
    for path in sorted(folder.glob("pool-*.json")):
        record = Results.load(path).find("compact", load)
        if record:
            points.append((record["resolved"]["max_total_num_tokens"], record["tpot_ms"]))
    return {"compact": points} if points else {}


def pool(folder: Path) -> str:
    """Time a token at different pool sizes."""
    files = [Results.load(path) for path in folder.glob("pool-*.json")]
    files.sort(key=lambda results: int(results.about["pool"]))
    if not files:
        return MISSING
    loads = sorted({load for results in files for load in results.loads()})
    header = ["requests x tokens", *(f"pool {results.about['pool']:,}, ms" for results in files)]
    rows = []
    for load in loads:
        records = [results.find("compact", load) for results in files]
        rows.append([str(load), *(f"{r['tpot_ms']:.2f}" if r else "not measured" for r in records)])
    return _markdown(header, rows)


def kernels(folder: Path) -> str:
    """One layer's decode attention: microseconds, and times the byte floor."""
    path = folder / "kernels.json"
    if not path.exists():
        return MISSING
    points = json.loads(path.read_text())["points"]
    header = ["heads : requests x tokens", "stock", "BF16, fa3", "BF16, fa2"]
    header += ["gather", "direct", "floor", "direct ÷ floor"]
    return _markdown(header, [_kernels_row(point) for point in points])


def _kernels_row(point: dict[str, Any]) -> list[str]:
    middles = {
        name: statistics.median(entry["us"])
        for name, entry in point["strategies"].items()
        if "us" in entry
    }
    names = ("stock", "bf16-fa3", "bf16-fa2", "gather-fa3", "direct")
    cells = [f"{middles[name]:.1f}" if name in middles else "-" for name in names]
    floor = point["floor_us"]
    tells = "direct" in middles and floor >= 1  # below, launches are all that is measured
    ratio = f"{middles['direct'] / floor:.2f}" if tells else "-"
    return [point["point"], *cells, f"{floor:.1f}", ratio]


def hosts(folder: Path) -> str:
    """What the figures were measured on, a line a file."""
    lines = []
    for path in sorted(path for name in SERVED for path in folder.glob(f"{name}.json")):
        results = Results.load(path)
        if results.records:
            about, host = results.about, results.records[0]["host"]
            versions = ", ".join(f"{name} {value}" for name, value in host.items())
            model = f"{about['model']}, {about['layers'] or 'unknown'} layers"
            lines.append(
                f"- `{path.name}`: {versions}; {model}; pool {about['pool']}; "
                f"{about['repeats']} repeats of {about['tokens']} tokens"
            )
    return "\n".join(lines) or MISSING


def proof(folder: Path) -> str:
    """What `bench/prove` printed."""
    results = _load(folder, "proof")
    return "\n".join(["```text", *summary(results)[0], "```"]) if results else MISSING


TABLES: dict[str, Callable[[Path], str]] = {
    "tokens": tokens,
    "ratios": ratios,
    "first-token": first_token,
    "pool": pool,
    "proof": proof,
    "kernels": kernels,
    "hosts": hosts,
}
