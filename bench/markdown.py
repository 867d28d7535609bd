"""Tables in Markdown, and the cells that they share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MISSING = "*Not measured yet.*"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table; all columns but the first are set to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def versions_of(host: dict[str, str]) -> str:
    """What a figure was measured on, in one line."""
    return ", ".join(f"{name} {value}" for name, value in host.items())


def paired(one: Sequence[float], other: Sequence[float]) -> str:
    """The median of the ratios of interleaved repeats, with its range."""
    ratios = [a / b for a, b in zip(one, other, strict=False)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
