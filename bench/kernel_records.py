"""The JSON file of `bench.kernels`: one record a point, written at once, so that runs resume."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import json_file
from bench.loads import Load

KERNELS, VERIFY = "kernels.json", "verify.json"


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file, none where it is not there; ValueError if it is not one of ours."""
    if not path.exists():
        return []
    (points,) = json_file.read(path, "points")
    return list(points)


def write(path: Path, records: list[dict[str, Any]]) -> None:
    """All records; ValueError with one sentence if they can't be written."""
    json_file.write(path, {"points": records})


def save(path: Path, record: dict[str, Any]) -> None:
    """Add a point's record, or its strategies to those that were measured there."""
    records = read(path)
    same = [old for old in records if old["point"] == record["point"]]
    kept = [old for old in records if old["point"] != record["point"]]
    if same:
        record = {**record, "strategies": {**same[0]["strategies"], **record["strategies"]}}
    write(path, [*kept, record])


def measured(path: Path, strategies: Iterable[str]) -> set[str]:
    """The points of which a file has all these strategies."""
    wanted = set(strategies)
    return {record["point"] for record in read(path) if wanted <= record["strategies"].keys()}


def require_writable(path: Path, host: dict[str, str]) -> None:
    """ValueError with one sentence if this host can't add results, before they cost a run."""
    records = read(path)
    json_file.require_host(path, records, host)
    write(path, records)


def place(record: dict[str, Any]) -> tuple[int, Load]:
    """Query rows a request (heads times query tokens) and load of a record's point."""
    rows, _, load = record["point"].partition(":")
    return math.prod(map(int, rows.split("x"))), Load.parse(load)


def middles(record: dict[str, Any]) -> dict[str, float]:
    """Median microseconds of each strategy that ran."""
    entries = record["strategies"].items()
    return {name: statistics.median(entry["us"]) for name, entry in entries if "us" in entry}


def share_of_copy(record: dict[str, Any]) -> float:
    """Of a copy's bandwidth, the gather's; KeyError if it did not run.

    It reads one byte a value and writes two, and the floor is the time of the one.
    """
    return float(3 * record["floor_us"] / middles(record)["gather-alone"])
