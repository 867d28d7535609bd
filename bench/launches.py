"""What the host and the device do for a first token, by kernel, from traces of `bench.serve`.

  python -m bench.serve run ... --trace FOLDER
  python -m bench.launches FOLDER --out FILE           write FILE, of all traces in FOLDER

The prefill is the longest stretch of launches without a replayed graph. Under a profiler the host
takes longer than without one.

exit status: 0 done; 1 a trace has no launch; 2 usage, or a folder without traces.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.markdown import MISSING, markdown

NAME = "launches.json"
TRACE = re.compile(r"(?P<setup>[\w-]+?)-\d+(\.\d+)?-TP-0\.trace\.json\.gz")
Event = dict[str, Any]


def prefill(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    """Launches of the host and what each ran on the device, in the host's order."""
    calls = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and "correlation" in event.get("args", {})
    }
    ran = [
        (calls[number], event)
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        and (number := event["args"].get("correlation")) in calls
    ]
    replays = sorted(call["ts"] for call in calls.values() if "GraphLaunch" in call["name"])
    plain = sorted(
        (pair for pair in ran if "GraphLaunch" not in pair[0]["name"]),
        key=lambda pair: float(pair[0]["ts"]),
    )
    stretches = pairwise([float("-inf"), *replays, float("inf")])
    return max(
        ([pair for pair in plain if low <= pair[0]["ts"] < high] for low, high in stretches),
        key=len,
    )


def summary(pairs: Sequence[tuple[Event, Event]]) -> dict[str, Any]:
    """Launches, milliseconds of host and device, and for each kernel its count and mean times.

    `host_us` of a kernel is the time from the end of the launch before to the end of its own: what
    the host took to come to it, waiting for the device included.
    """
    kernels: dict[str, list[tuple[float, float]]] = defaultdict(list)
    begin = before = pairs[0][0]["ts"]
    for call, event in pairs:
        end = call["ts"] + call["dur"]
        kernels[short(event["name"])].append((end - before, event["dur"]))
        before = end
    return {
        "launches": len(pairs),
        "host_ms": round((before - begin) / 1e3, 3),
        "device_ms": round(sum(event["dur"] for _, event in pairs) / 1e3, 3),
        "kernels": {name: _means(times) for name, times in sorted(kernels.items())},
    }


def _means(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    host, device = (sum(column) / len(times) for column in zip(*times, strict=True))
    return {"count": len(times), "host_us": round(host, 1), "device_us": round(device, 2)}


def short(kernel: str) -> str:
    """A kernel's name without its template arguments."""
    plain = kernel.replace("(anonymous namespace)::", "")
    return re.sub(r"^void |<.*|\s*\(.*", "", plain)


def table(folder: Path) -> str:
    """Each setup's totals, and the kernels that not every setup launches in each layer."""
    path = folder / NAME
    if not path.exists():
        return MISSING
    setups: dict[str, dict[str, Any]] = json.loads(path.read_text())["setups"]
    header = ["", *(f"`{name}`" for name in setups)]
    rows = [
        ["launches", *(str(one["launches"]) for one in setups.values())],
        ["host, ms", *(f"{one['host_ms']:.1f}" for one in setups.values())],
        ["device, ms", *(f"{one['device_ms']:.1f}" for one in setups.values())],
    ]
    for kernel in _of_one_alone(setups.values()):
        cells = (one["kernels"].get(kernel) for one in setups.values())
        rows.append([f"`{kernel}`", *(_cell(cell) for cell in cells)])
    return markdown(header, rows)


def _of_one_alone(setups: Iterable[dict[str, Any]]) -> list[str]:
    """Kernels that are launched as often as attention's layers, but not by all."""
    names = [{k for k, v in one["kernels"].items() if v["count"] >= 10} for one in setups]
    return sorted(set.union(*names) - set.intersection(*names))


def _cell(kernel: dict[str, float] | None) -> str:
    if kernel is None:
        return "-"
    return f"{kernel['count']} x {kernel['host_us']:.1f} µs, {kernel['device_us']:.1f} on device"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.launches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="of `bench.serve run --trace`")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    chosen = parser.parse_args(arguments)
    traces = {match["setup"]: path for path, match in _traces(chosen.folder)}
    if not traces:
        parser.error(f"{chosen.folder} holds no trace: record one with bench.serve run --trace.")
    setups = {}
    for name, path in sorted(traces.items()):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        pairs = prefill(trace["traceEvents"])
        if not pairs:
            print(f"{path} has no launch: record it with CPU and GPU activities.", file=sys.stderr)
            return 1
        setups[name] = {"device": trace["deviceProperties"][0]["name"], **summary(pairs)}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"setups": setups}, indent=1) + "\n")
    return 0


def _traces(folder: Path) -> Iterable[tuple[Path, re.Match[str]]]:
    """The newest trace of a setup comes last."""
    found = ((path, TRACE.fullmatch(path.name)) for path in sorted(folder.glob("*.gz")))
    return [(path, match) for path, match in found if match]


if __name__ == "__main__":
    sys.exit(main())
