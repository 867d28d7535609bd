"""The answer as one screen of plain text, or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from diagnosetool.cast import PoolCast, most_bytes
from diagnosetool.diagnosis import Diagnosis
from diagnosetool.verdict import Verdict

NEXT_COSTS = 3
BAR_WIDTH = 40
LABEL_WIDTH = 14
FIGURES_WIDTH = 38  # of the columns of a comparison
HEADLINES = {
    Verdict.CAST: "POOL CAST FOUND",
    Verdict.OTHER_CAST: "POOL CAST FOUND, ANOTHER BACKEND'S",
    Verdict.ABSENT: "NO POOL CAST",
    Verdict.UNKNOWN: "CAN'T TELL",
}
_COLOURS = {Verdict.CAST: 31, Verdict.OTHER_CAST: 33, Verdict.ABSENT: 32, Verdict.UNKNOWN: 33}


def as_text(diagnosis: Diagnosis, width: int, colour: bool = False) -> str:
    """One screen, `width` columns wide; with `colour`, the headline in ANSI colours."""
    headline = HEADLINES[diagnosis.verdict]
    if colour:
        headline = f"\033[1;{_COLOURS[diagnosis.verdict]}m{headline}\033[0m"
    lines = [
        _line("trace", f"{diagnosis.path} ({diagnosis.device})"),
        _line("verdict", f"{headline}: {diagnosis.reason}"),
    ]
    if diagnosis.steps:
        bar_width = min(BAR_WIDTH, max(width - LABEL_WIDTH - 1, 0))
        lines += ["", *_step_lines(diagnosis, bar_width), "", *_cost_lines(diagnosis)]
    if diagnosis.remedy or diagnosis.notes:
        lines.append("")
    if diagnosis.remedy:
        lines.append(_line("remedy", diagnosis.remedy))
    return wrapped([*lines, *(_line("note", note) for note in diagnosis.notes)], width)


def wrapped(lines: Iterable[str], width: int, indent: int = LABEL_WIDTH + 1) -> str:
    """The lines with those longer than `width` broken between words, `indent` deep."""
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The same for programs; times in milliseconds, sizes in bytes."""
    return {
        "trace": diagnosis.path,
        "device": diagnosis.device,
        "verdict": diagnosis.verdict.value,
        "reason": diagnosis.reason,
        "remedy": diagnosis.remedy,
        "notes": list(diagnosis.notes),
        "steps": diagnosis.steps,
        "steps_from": diagnosis.steps_from,
        "layers": diagnosis.layers,
        "attention": diagnosis.attention,
        "step_ms": _ms(diagnosis.step_time),
        "without_cast_ms": _ms(diagnosis.without_cast),
        "cast": _cast_json(diagnosis.cast, diagnosis) if diagnosis.cast else None,
        "costs": [{"family": cost.family, "ms": _ms(cost.time)} for cost in diagnosis.costs],
    }


def compared(before: Diagnosis, after: Diagnosis, width: int) -> str:
    """Two diagnoses next to each other, `width` columns wide, with the ratio of each time."""
    rows = [("decode step", before.step_time, after.step_time)]
    rows.append(("pool cast", _cast_time(before), _cast_time(after)))
    families = [c.family for c in before.costs] + [c.family for c in after.costs]
    times = [{c.family: c.time for c in one.costs} for one in (before, after)]
    ranked = sorted(set(families), key=lambda f: (-max(t.get(f, 0.0) for t in times), f))
    rows += [(f, times[0].get(f, 0.0), times[1].get(f, 0.0)) for f in ranked[: 2 * NEXT_COSTS]]
    label_width = max(len(label) for label, _, _ in rows)
    fits = label_width + FIGURES_WIDTH <= width
    table = [("ms a step", f"{'before':>9}  {'after':>9}  after / before")]
    for label, old, new in rows:
        ratio = f"{new / old:.2f}" if old else "-"
        table.append((label, f"{old / 1e3:9.2f}  {new / 1e3:9.2f}  {ratio:>14}"))
    heads = []
    for name, diagnosis in (("before", before), ("after", after)):
        heads.append(_line(name, diagnosis.path))
        heads.append(_line("", f"{HEADLINES[diagnosis.verdict]}: {diagnosis.reason}"))
    lines = [
        f"{label:{label_width}}  {row}" if fits else f"{label}\n  {row}" for label, row in table
    ]
    return "\n".join([wrapped(heads, width), "", *lines])


def _step_lines(diagnosis: Diagnosis, bar_width: int) -> list[str]:
    median = "one step" if diagnosis.steps == 1 else f"median of {diagnosis.steps} steps"
    counted = f"{median}, found by {diagnosis.steps_from}"
    lines = [_line("decode step", f"{_ms(diagnosis.step_time):9.2f} ms  {counted}")]
    cast = diagnosis.cast
    if cast is None:
        return [*lines, _line("layers", f"{diagnosis.layers} attention calls a step")]
    share = cast.time / diagnosis.step_time
    bar = ("#" * round(bar_width * share)).ljust(bar_width, ".")
    faster = diagnosis.step_time / diagnosis.without_cast
    return [
        *lines,
        _line("pool cast", f"{_ms(cast.time):9.2f} ms  {share:.1%}  {bar}"),
        _line("without it", f"{_ms(diagnosis.without_cast):9.2f} ms  {faster:.1f} times faster, ")
        + "before the cost of reading the rows in use",
        _line("layers", f"{diagnosis.layers}, each {_layer_ms(cast, diagnosis):.3f} ms of copies")
        + f", spread {cast.spread:.1%} over layers and steps",
        _line("bytes a layer", _bytes(cast, diagnosis)),
        _line("copied by", ", ".join([*filter(None, [cast.operator]), *cast.kernels]))
        + (f" ({cast.dtypes})" if cast.dtypes else ""),
    ]


def _cost_lines(diagnosis: Diagnosis) -> list[str]:
    heads = ["next costs"] + [""] * (NEXT_COSTS - 1)
    return [
        _line(
            head, f"{_ms(cost.time):9.2f} ms  {cost.time / diagnosis.step_time:.1%}  {cost.family}"
        )
        for head, cost in zip(heads, diagnosis.costs, strict=False)
    ]


def _bytes(cast: PoolCast, diagnosis: Diagnosis) -> str:
    if cast.bytes_read is None or cast.bytes_written is None:
        most = most_bytes(diagnosis.device, cast.time / diagnosis.layers)
        bound = f"at most {most / 1e6:.0f} MB at the memory's peak" if most else "unknown"
        return f"{bound}; the trace records no size, but equal time in every layer"
    total = cast.bytes_read + cast.bytes_written
    speed = total / (_layer_ms(cast, diagnosis) * 1e9)
    rows = f"{cast.rows:,} rows" if cast.rows else f"{cast.elements:,} elements"
    return (
        f"{total / 1e6:.0f} MB ({cast.bytes_read / 1e6:.0f} read + {cast.bytes_written / 1e6:.0f} "
        f"written) at {speed:.2f} TB/s: {rows}, by {cast.evidence}"
    )


def _cast_json(cast: PoolCast, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "ms": _ms(cast.time),
        "share": round(cast.time / diagnosis.step_time, 4),
        "layer_ms": round(_layer_ms(cast, diagnosis), 4),
        "spread": round(cast.spread, 4),
        "layer_bytes_read": cast.bytes_read,
        "layer_bytes_written": cast.bytes_written,
        "layer_bytes_at_most": most_bytes(diagnosis.device, cast.time / diagnosis.layers),
        "pool_rows": cast.rows,
        "evidence": cast.evidence,
        "dtypes": cast.dtypes,
        "operator": cast.operator,
        "kernels": list(cast.kernels),
        "reader": cast.reader,
    }


def _cast_time(diagnosis: Diagnosis) -> float:
    return diagnosis.cast.time if diagnosis.cast else 0.0


def _layer_ms(cast: PoolCast, diagnosis: Diagnosis) -> float:
    return cast.time / diagnosis.layers / 1e3


def _ms(microseconds: float) -> float:
    return round(microseconds / 1e3, 4)


def _line(label: str, text: str) -> str:
    return f"{label:{LABEL_WIDTH}} {text}"
