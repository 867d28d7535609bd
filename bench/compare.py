"""The table of a run: each setup against one of them, load by load."""

from __future__ import annotations

from typing import Any

from bench.results import Results, first_difference, paired_ratio
from bench.setups import COMPACT, SETUPS

HEADER = ("load", "setup", "TPOT ms", "ratio", "TTFT ms", "pool tokens", "right", "greedy tokens")


def compare(results: Results, against: str) -> int:
    """Print the lines of `comparison`; 1 if tokens are not as they should be, else 0."""
    lines, fine = comparison(results, against)
    print("\n".join(lines))
    return 0 if fine else 1


def comparison(results: Results, against: str) -> tuple[list[str], bool]:
    """The table's lines, and whether all tokens are as they should be.

    Tokens should equal those of `against` for each setup, and differ for one with a wrong row.

    Raises:
        ValueError: there are no records of `against`.
    """
    if against not in results.setups():
        raise ValueError(f"{results.path} has no setup {against!r}: it has {results.setups()}.")
    rows, fine = [], True
    for load in results.loads():
        base = results.find(against, load)
        for name in results.setups():
            record = results.find(name, load)
            if base and record:
                verdict, well = judge(base, record)
                rows.append(_row(base, record, verdict))
                fine &= well
    return _aligned([HEADER, *rows]), fine


def judge(base: dict[str, Any], record: dict[str, Any]) -> tuple[str, bool]:
    """What to say of a record's tokens against those of `base`, and whether it is as it should.

    A compact setup must give the same tokens. A BF16 cache, or another kernel, may differ on a
    model whose answers are not known.
    """
    setup = SETUPS[record["setup"]]
    difference = first_difference(base, record)
    if setup.wrong_row:
        return ("WRONG ROW UNSEEN", False) if difference is None else (_place(difference), True)
    if not record["repeatable"]:
        return "CHANGE FROM RUN TO RUN", False
    wrong = record["right_requests"] not in (None, len(record["output"]))
    if difference is None:
        return ("equal, BUT WRONG", False) if wrong else ("equal", True)
    compact = setup.options["attention_backend"] == COMPACT
    return _place(difference), not (compact or record["right_requests"] is not None)


def _place(difference: tuple[int, int]) -> str:
    request, place = difference
    return f"differ at request {request}, token {place}"


def _row(base: dict[str, Any], record: dict[str, Any], verdict: str) -> tuple[str, ...]:
    requests = len(record["output"])
    right = record["right_requests"]
    return (
        record["load"],
        record["setup"],
        f"{record['tpot_ms']:.2f}",
        f"{paired_ratio(record, base):.3f}",
        f"{record['ttft_ms']:.1f}",
        str(record["resolved"]["max_total_num_tokens"]),
        "unknown" if right is None else f"{right}/{requests}",
        verdict,
    )


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]
