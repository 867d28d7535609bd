"""The table of what a first token launches, from the JSON file of `bench.launches`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import json_file
from bench.markdown import MISSING, markdown

NAME = "launches.json"


def table(folder: Path) -> str:
    """Each setup's totals, and the kernels that not every setup launches in each layer."""
    path = folder / NAME
    (setups,) = json_file.read(path, "setups") if path.exists() else [{}]
    if not setups:
        return MISSING
    header = ["", *(f"`{name}`" for name in setups)]
    rows = [
        ["launches", *(str(one["launches"]) for one in setups.values())],
        ["host, ms", *(f"{one['host_ms']:.1f}" for one in setups.values())],
        ["device, ms", *(f"{one['device_ms']:.1f}" for one in setups.values())],
    ]
    for kernel in _of_one_alone(setups.values()):
        rows.append([f"`{kernel}`", *(_cell(one, kernel) for one in setups.values())])
    return markdown(header, rows)


def _of_one_alone(setups: Iterable[dict[str, Any]]) -> list[str]:
    """Kernels that are launched as often as attention's layers, but not by all."""
    names = [{k for k, v in one["kernels"].items() if v["count"] >= 10} for one in setups]
    return sorted(set.union(*names) - set.intersection(*names))


def _cell(setup: dict[str, Any], name: str) -> str:
    kernel = setup["kernels"].get(name)
    if kernel is None:
        return "-"
    share = kernel["count"] * kernel["host_us"] / (setup["host_ms"] * 1000)
    return (
        f"{kernel['count']} x {kernel['host_us']:.1f} µs, {share:.1%} of the host's time, "
        f"{kernel['device_us']:.1f} µs on device"
    )
