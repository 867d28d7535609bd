"""What the host and the device do for a first token, by kernel, from traces of `bench.serve`.

  python -m bench.serve run ... --trace FOLDER
  python -m bench.launches FOLDER --out FILE           write FILE, of all traces in FOLDER

Decode replays graphs; the prefill is what keeps the device busy longest between two replays, as
that of a cached prefix launches about as many kernels as that of the prompt. Under a profiler the
host takes longer than without one.

exit status: 0 done; 1 a trace can't be read, or has no prefill; 2 usage, a folder without traces,
or a FILE that can't be written; 130 interrupted. FILE is written in the first case alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import json_file

TRACE = re.compile(r"(?P<setup>[\w-]+)-(?P<stamp>\d+(\.\d+)?)-TP-0(-[DPE]P-0)*\.trace\.json\.gz")
Event = dict[str, Any]


def prefill(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    """Launches of the host and what each ran on the device, in the host's order.

    Empty if no graph is replayed: nothing then separates the prefill from decode.
    """
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
    ends = [float("-inf"), *replays, float("inf")] if replays else []
    stretches = ([p for p in plain if low <= p[0]["ts"] < high] for low, high in pairwise(ends))
    return max(stretches, key=_busy, default=[])


def _busy(pairs: Iterable[tuple[Event, Event]]) -> float:
    return sum(float(event["dur"]) for _, event in pairs)


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
        "device_ms": round(_busy(pairs) / 1e3, 3),
        "kernels": {name: _means(times) for name, times in sorted(kernels.items())},
    }


def _means(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    host, device = (sum(column) / len(times) for column in zip(*times, strict=True))
    return {"count": len(times), "host_us": round(host, 1), "device_us": round(device, 2)}


def short(kernel: str) -> str:
    """A kernel's name without its template arguments."""
    plain = kernel.replace("(anonymous namespace)::", "")
    return re.sub(r"^void |<.*|\s*\(.*", "", plain)


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    traces = _newest(chosen.folder)
    if not traces:
        parser.error(f"{chosen.folder} holds no trace: record one with bench.serve run --trace.")
    try:
        setups = {name: read(path) for name, path in sorted(traces.items())}
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing is written", file=sys.stderr)
        return 130
    try:
        json_file.write(chosen.out, {"setups": setups})
    except ValueError as problem:
        parser.error(f"--out {problem}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.launches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="of `bench.serve run --trace`")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    return parser


def _newest(folder: Path) -> dict[str, Path]:
    """Of each setup the trace that was recorded last."""
    found = [(path, TRACE.fullmatch(path.name)) for path in folder.glob("*.gz")]
    traces = [(float(match["stamp"]), match["setup"], path) for path, match in found if match]
    return {setup: path for _, setup, path in sorted(traces)}


def read(path: Path) -> dict[str, Any]:
    """A trace's device and the summary of its prefill; ValueError with one sentence if none."""
    try:
        trace = json.loads(gzip.decompress(path.read_bytes()))
        pairs = prefill(trace["traceEvents"])
        found = {"device": trace["deviceProperties"][0]["name"], **summary(pairs)} if pairs else {}
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError) as e:
        raise ValueError(f"{path} can't be read as a trace ({e!r}): record it again.") from None
    if not found:
        raise ValueError(
            f"{path} has no launch outside of replayed graphs: record it with CPU and GPU "
            "activities, and let decode run in graphs."
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
