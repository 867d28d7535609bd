"""The tables of attention alone, from kernels.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.kernel_records import KERNELS, VERIFY, middles, place, read, share_of_copy
from bench.markdown import MISSING, markdown, paired, versions_of

# Strategy -> what a column is called.
COLUMNS = {
    "stock": "stock",
    "bf16-fa3": "BF16, fa3",
    "bf16-fa2": "BF16, fa2",
    "flashinfer-fp8": "FlashInfer FP8",
    "flashmla": "FlashMLA FP8",
    "sglang-triton": "Triton FP8",
    "gather-fa3": "gather",
    "direct": "direct",
    "direct-portable": "direct, SM80 to 120",
    "direct-small": "direct, one block an SM",
}
VERIFY_COLUMNS = {
    "bf16-fa3": "BF16, fa3",
    "bf16-fa2": "BF16, fa2",
    "gather-fa3": "gather",
    "direct": "direct",
    "direct-ragged": "direct, unequal requests",
    "direct-small": "direct, one block an SM",
}
VERIFY_RATIOS = (("direct", "bf16-fa3"), ("direct", "gather-fa3"), ("direct-small", "bf16-fa2"))
# The strategies of a ratio; below 1, the first one is faster.
RATIOS = (
    ("direct", "bf16-fa3"),
    ("direct-portable", "bf16-fa2"),
    ("direct", "flashmla"),
    ("direct", "gather-fa3"),
)


def microseconds(folder: Path) -> str:
    """Microseconds of one layer's decode attention, each the median of its replays."""
    points = _points(folder)
    if not points:
        return MISSING
    tried = {name for point in points for name in point["strategies"]}
    columns = [name for name in COLUMNS if name in tried]
    header = ["heads : requests x tokens", *(COLUMNS[name] for name in columns), "floor"]
    return markdown(header, [_microseconds_row(point, columns) for point in points])


def ratios(folder: Path) -> str:
    """Ratios of interleaved replays, the bytes moved against the card's, and the error."""
    points = _points(folder)
    if not points:
        return MISSING
    header = ["heads : requests x tokens"]
    header += [f"{COLUMNS[one]} ÷ {COLUMNS[other]}" for one, other in RATIOS]
    header += ["direct ÷ floor", "gather, of a copy's bandwidth", "direct's error ÷ stock's"]
    return markdown(header, [_ratios_row(point) for point in points])


def verify(folder: Path) -> str:
    """Microseconds of one layer's verify attention, and ratios of interleaved replays."""
    points = sorted(read(folder / VERIFY), key=place)
    if not points:
        return MISSING
    header = ["heads x query tokens : requests x tokens", *VERIFY_COLUMNS.values()]
    header += [f"{VERIFY_COLUMNS[one]} ÷ {VERIFY_COLUMNS[other]}" for one, other in VERIFY_RATIOS]
    return markdown(header, [_verify_row(point) for point in points])


def _verify_row(point: dict[str, Any]) -> list[str]:
    found, entries = middles(point), point["strategies"]
    cells = [f"{found[name]:.1f}" if name in found else "-" for name in VERIFY_COLUMNS]
    pairs = [(entries.get(one, {}), entries.get(other, {})) for one, other in VERIFY_RATIOS]
    return [point["point"], *cells, *(_paired_cell(*pair) for pair in pairs)]


def host(folder: Path) -> list[str]:
    """The lines of kernels.json and verify.json among the hosts."""
    return [
        f"- `{name}`: {versions_of(point['host'])}; pool {point['pool_rows']}; "
        f"{_turns(point)} interleaved replays of each graph"
        for name in (KERNELS, VERIFY)
        for point in sorted(read(folder / name), key=place)[:1]
    ]


def _turns(point: dict[str, Any]) -> int:
    return max(len(entry.get("us", ())) for entry in point["strategies"].values())


def _points(folder: Path) -> list[dict[str, Any]]:
    """Those of the file, by heads and load."""
    return sorted(read(folder / KERNELS), key=place)


def _microseconds_row(point: dict[str, Any], columns: list[str]) -> list[str]:
    found = middles(point)
    cells = [f"{found[name]:.1f}" if name in found else "-" for name in columns]
    return [point["point"], *cells, f"{point['floor_us']:.1f}"]


def _ratios_row(point: dict[str, Any]) -> list[str]:
    entries = point["strategies"]
    cells = [_paired_cell(entries.get(one, {}), entries.get(other, {})) for one, other in RATIOS]
    return [point["point"], *cells, _of_floor(point), _of_copy(point), _error_cell(entries)]


def _paired_cell(one: dict[str, Any], other: dict[str, Any]) -> str:
    return paired(one["us"], other["us"]) if "us" in one and "us" in other else "-"


def _of_floor(point: dict[str, Any]) -> str:
    """Below a microsecond of bytes, launches are all that is measured."""
    found, floor = middles(point), point["floor_us"]
    return f"{found['direct'] / floor:.2f}" if "direct" in found and floor >= 1 else "-"


def _of_copy(point: dict[str, Any]) -> str:
    moves = "gather-alone" in middles(point) and point["floor_us"] >= 1
    return f"{share_of_copy(point):.0%}" if moves else "-"


def _error_cell(entries: dict[str, Any]) -> str:
    errors = [entries.get(name, {}).get("error") for name in ("direct", "stock")]
    return f"{errors[0] / errors[1]:.2f}" if all(errors) else "-"
