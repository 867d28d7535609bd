"""The tables of README.md and docs/, each from the JSON files of one folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import goals, kernel_tables, launch_tables
from bench.compare import judge
from bench.loads import Load
from bench.markdown import MISSING, markdown, paired, versions_of
from bench.proof import summary
from bench.results import DRAFTED, Results, paired_ratio

# Files of `bench.serve`.
SERVED = (
    *("tokens", "tokens-0.5.23", "proof", "bf16", "fp8", DRAFTED),
    *("prefix", "prefill-graph", "pool"),
)


def _load(folder: Path, name: str) -> Results | None:
    path = folder / f"{name}.json"
    return Results.load(path) if path.exists() else None


def tokens(folder: Path, name: str = "tokens") -> str:
    """FP8 as shipped against compact: times, equality of tokens, and the wrong row."""
    results = _load(folder, name)
    if results is None:
        return MISSING
    header = ["requests x tokens", "`flashinfer`, ms", "`flashinfer_mla_compact`, ms"]
    header += ["times as fast", "greedy tokens", "with one wrong row"]
    return markdown(header, [_tokens_row(results, load) for load in results.loads()])


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
    """Compact against BF16 KV, FlashMLA and Triton: medians of interleaved pairs."""
    files = [results for name in ("bf16", "fp8") if (results := _load(folder, name))]
    if not files:
        return MISSING
    loads = sorted({load for results in files for load in results.loads() if not load.prefix})
    others = [
        (name, results)
        for results in files
        for name in sorted(results.setups())
        if name != "compact"
    ]
    header = ["requests x tokens", "compact, ms", *(f"÷ {name}" for name, _ in others)]
    return markdown(header, [_ratio_row(load, others) for load in loads])


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
    return paired(one[f"{figure}_all"], other[f"{figure}_all"])


def speculation(folder: Path) -> str:
    """Steps that verify drafts, compact against the others, all of which accept as many tokens."""
    results = _load(folder, DRAFTED)
    if results is None:
        return MISSING
    others = [name for name in results.setups() if name != "compact"]
    header = ["requests x tokens", "compact, ms a step", "tokens a step", "ms a token"]
    header += [f"step ÷ {name}" for name in others]
    return markdown(header, [_speculation_row(results, load, others) for load in results.loads()])


def _speculation_row(results: Results, load: Load, others: list[str]) -> list[str]:
    compact = results.find("compact", load)
    if compact is None:
        return [str(load), *["not measured"] * (3 + len(others))]
    step, token = compact["step_ms"], compact["tpot_ms"]
    ratios = [_ratio_cell(compact, results.find(name, load), "step_ms") for name in others]
    return [str(load), f"{step:.2f}", f"{step / token:.2f}", f"{token:.2f}", *ratios]


def first_token(folder: Path) -> str:
    """Time to the first token after a cached prefix, and under a graph, against BF16 KV."""
    rows = []
    for name, graph in (("prefix", "off"), ("prefill-graph", "breakable")):
        if results := _load(folder, name):
            rows += [_first_token_row(results, load, graph) for load in results.loads()]
    header = ["requests x tokens + cached", "prefill graph", "compact, ms", "BF16, ms", "ratio"]
    return markdown(header, rows) if rows else MISSING


def _first_token_row(results: Results, load: Load, graph: str) -> list[str]:
    compact, bf16 = results.find("compact", load), results.find("bf16", load)
    times = [f"{r['ttft_ms']:.1f}" if r else "not measured" for r in (compact, bf16)]
    return [str(load), graph, *times, _ratio_cell(compact, bf16, "ttft_ms")]


def pool_series(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """(pool in tokens, ms a token) of compact at one short request."""
    results, load = _load(folder, "pool"), Load(1, 100)
    found = [results.find(name, load) for name in results.setups()] if results else []
    points = [(r["resolved"]["max_total_num_tokens"], r["tpot_ms"]) for r in found if r]
    return {"compact": points} if points else {}


def pool(folder: Path) -> str:
    """Time a token at a small pool and a large one, and the ratio of the two."""
    results = _load(folder, "pool")
    if results is None:
        return MISSING
    small, large = results.setups()
    header = ["requests x tokens", *(f"`{name}`, ms" for name in (small, large)), "ratio"]
    rows = []
    for load in results.loads():
        one, other = results.find(small, load), results.find(large, load)
        times = [f"{r['tpot_ms']:.2f}" if r else "not measured" for r in (one, other)]
        rows.append([str(load), *times, _ratio_cell(one, other, "tpot_ms")])
    return markdown(header, rows)


def hosts(folder: Path) -> str:
    """What the figures were measured on, a line a file."""
    lines = []
    for name in SERVED:
        results = _load(folder, name)
        if results and results.records:
            about, versions = results.about, versions_of(results.records[0]["host"])
            model = f"{about['model']}, {about['layers'] or 'unknown'} layers"
            lines.append(
                f"- `{name}.json`: {versions}; {model}; pool {_pools(results)}; "
                f"{about['repeats']} repeats of {about['tokens']} tokens"
            )
    return "\n".join([*lines, *kernel_tables.host(folder)]) or MISSING


def _pools(results: Results) -> str:
    sizes = {record["resolved"]["max_total_num_tokens"] for record in results.records}
    return " and ".join(map(str, sorted(sizes)))


def proof(folder: Path) -> str:
    """What `bench/prove` printed."""
    results = _load(folder, "proof")
    return "\n".join(["```text", *summary(results)[0], "```"]) if results else MISSING


TABLES: dict[str, Callable[[Path], str]] = {
    "tokens": tokens,
    "tokens-0.5.23": partial(tokens, name="tokens-0.5.23"),
    "ratios": ratios,
    "first-token": first_token,
    "launches": launch_tables.table,
    "pool": pool,
    "speculation": speculation,
    "proof": proof,
    "goals": goals.table,
    "kernels": kernel_tables.microseconds,
    "kernel-ratios": kernel_tables.ratios,
    "verify": kernel_tables.verify,
    "hosts": hosts,
}
