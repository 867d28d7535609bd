"""Time one layer's decode or verify attention, each strategy against BF16 KV and the byte floor.

  python -m bench.kernels --out FILE                   measure the default points
  python -m bench.kernels --out FILE --points 16:64x4096 --strategies bf16-fa3 direct:16/64/8/3/-/1

A point is HEADS:BATCHxTOKENS, or HEADSxQUERIES:BATCHxTOKENS for a verify of QUERIES tokens a
request. Graphs of enough layers to read four times the L2 are replayed interleaved; what the last
replay wrote is compared with float64. FILE gains one record a point, at once; a point measured
again replaces the figures of the strategies that were measured again. A FILE of
another card or of other versions is refused. --missing leaves out what FILE has. A strategy that
fails is listed with its reason, and the others go on. direct:ROWS/TOKENS/WARPS/... is the direct
kernel with these fields of its Config, "-" for None; the kernel's name is the eighth.

exit status: 0 done; 1 no strategy of some point ran, or the device stopped answering; 2 usage;
124 out of time (--seconds), the same command with --missing continues.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench import kernel_records
from bench.cases import WIDTH, Case, Pools, Spot, Timed, capture, layers_for, timed
from bench.strategies import STRATEGIES, Strategy, parse
from bench.worker import host

POINTS = [
    "16:1x100",
    "16:1x8192",
    "16:1x65536",
    "16:4x8192",
    "16:16x8192",
    "16:32x8192",
    "16:64x2048",
    "16:64x4096",
    "8:16x8192",
    "8:64x4096",
    "32:64x4096",
    "64:1x8192",
    "64:64x4096",
    "128:16x8192",
]
COPY_BYTES = 2 << 30


@dataclass(frozen=True)
class Settings:
    """What a run needs in addition to its points."""

    strategies: dict[str, Strategy]
    repeats: int
    pools: Pools
    l2_bytes: int
    copy_rate: float


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        spots = [Spot.parse(text) for text in chosen.points]
    except ValueError as problem:
        parser.error(str(problem))
    largest = max(spot.active for spot in spots)
    if largest > chosen.pool:
        parser.error(f"--pool {chosen.pool} holds fewer rows than the {largest} of a point")
    if chosen.repeats < 1 or chosen.copies < 2:
        parser.error("--repeats must be 1 or more and --copies 2 or more")
    if not torch.cuda.is_available():
        parser.error("no CUDA device: run this on a GPU host")
    try:
        kernel_records.require_writable(chosen.out, host())
    except ValueError as problem:
        parser.error(str(problem))
    if chosen.missing:
        names = [name for name, _ in chosen.strategies]
        done = kernel_records.measured(chosen.out, names)
        spots = [spot for spot in spots if str(spot) not in done]
    return _measure_all(chosen, spots) if spots else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--points", nargs="+", default=POINTS, metavar="HEADS:BATCHxTOKENS")
    parser.add_argument(
        "--strategies",
        nargs="+",
        type=_named,
        default=list(STRATEGIES.items()),
        metavar="NAME",
        help=f"of {', '.join(STRATEGIES)}, direct:ROWS/TOKENS/...; default: all that have a name",
    )
    parser.add_argument("--missing", action="store_true", help="only the points that FILE lacks")
    parser.add_argument("--repeats", type=int, default=5, help="replays of each graph, interleaved")
    parser.add_argument("--pool", type=int, default=495_552, help="rows of a layer's pool")
    parser.add_argument("--copies", type=int, default=56, help="pools in memory, 856 MB each")
    parser.add_argument("--seconds", type=float, default=440.0, help="start no point after that")
    return parser


def _named(text: str) -> tuple[str, Strategy]:
    try:
        return text, parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _measure_all(chosen: argparse.Namespace, spots: list[Spot]) -> int:
    started = time.monotonic()
    device = torch.device("cuda", torch.cuda.current_device())
    copy_rate = copy_bytes_per_second(device)
    settings = Settings(
        strategies=dict(chosen.strategies),
        repeats=chosen.repeats,
        pools=Pools(chosen.pool, chosen.copies, device),
        l2_bytes=torch.cuda.get_device_properties(device).L2_cache_size,
        copy_rate=copy_rate,
    )
    print(f"copy {copy_rate / 1e12:.2f} TB/s, set up in {time.monotonic() - started:.0f} s")
    status = 0
    for place, spot in enumerate(spots):
        if time.monotonic() - started > chosen.seconds:
            print(f"out of time; not measured: {' '.join(map(str, spots[place:]))}")
            return 124
        record = measure(spot, settings)
        _print_point(record, time.monotonic() - started)
        kernel_records.save(chosen.out, record)
        status |= all("us" not in entry for entry in record["strategies"].values())
    return status


def copy_bytes_per_second(device: torch.device) -> float:
    """Bytes read and written by a device-to-device copy of 2 GiB; best of nine."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    fastest = min(timed(lambda: target.copy_(source)) for _ in range(9))
    return 2 * COPY_BYTES / (fastest * 1e-6)


def measure(spot: Spot, settings: Settings) -> dict[str, Any]:
    """The record of one point."""
    case = Case(spot, settings.pools)
    entries: dict[str, dict[str, Any]] = {name: {} for name in settings.strategies}
    graphs: dict[str, Timed] = {}
    for name, strategy in settings.strategies.items():
        with _noting_failure(entries[name], f"{spot} {name}"):
            graphs[name] = _prepare(strategy, case, settings, entries[name])
    for _ in range(settings.repeats):
        for name, one in graphs.items():
            entries[name].setdefault("us", []).append(round(one.microseconds(), 3))
    for name, one in graphs.items():
        entries[name]["error"] = _error(settings.strategies[name], case, one)
    graphs.clear()
    gc.collect()
    torch.cuda.empty_cache()
    return {
        "point": str(spot),
        "active_tokens": spot.active,
        "floor_us": round(spot.active * WIDTH / settings.copy_rate * 1e6, 3),
        "copy_bytes_per_second": settings.copy_rate,
        "l2_bytes": settings.l2_bytes,
        "pool_rows": settings.pools.rows,
        "host": host(),
        "strategies": entries,
    }


@contextlib.contextmanager
def _noting_failure(entry: dict[str, Any], label: str) -> Iterator[None]:
    try:
        yield
    except torch.AcceleratorError:
        raise  # nothing works on this device any more in this process
    except Exception as failure:
        entry["failed"] = f"{type(failure).__name__}: {failure}".splitlines()[0][:300]
        print(f"{label} failed: {entry['failed']}", flush=True)


def _prepare(strategy: Strategy, case: Case, settings: Settings, entry: dict[str, Any]) -> Timed:
    pools = settings.pools
    layers = layers_for(strategy.bytes_a_layer(case), settings.l2_bytes)
    whole = pools.bf16 if strategy.wide else pools.fp8
    attend = strategy.prepare(case)

    def call(number: int) -> torch.Tensor:
        return attend(pools.layer(whole, number, layers))

    call(0)
    torch.cuda.synchronize()
    entry["layers"] = layers
    entry["bytes_in_play"] = layers * strategy.bytes_a_layer(case)
    return capture(call, layers)


def _error(strategy: Strategy, case: Case, one: Timed) -> float | None:
    """Of the last layer of a replay; None for a strategy that does not attend."""
    one.graph.replay()
    if one.out.shape != case.out.shape:
        return None
    rows = case.pools.layer(case.pools.fp8, one.layers - 1, one.layers)
    return case.error(one.out, case.paged_slots() if strategy.paged else case.slots, rows)


def median_ratio(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """Median of the ratios of replays made in the same turn."""
    if "us" not in one or "us" not in other:
        return None
    ratios = [float(a / b) for a, b in zip(one["us"], other["us"], strict=True)]
    return statistics.median(ratios)


def _print_point(record: dict[str, Any], seconds: float) -> None:
    print(f"\n{record['point']}, floor {record['floor_us']} us ({seconds:.0f} s)")
    head = (
        f"{'us':>9} {'lowest':>9} {'/fa3':>6} {'/fa2':>6} {'/floor':>7} {'error':>9} {'/stock':>6}"
    )
    print(f"{'strategy':34} {head} layers")
    for name, entry in record["strategies"].items():
        if "us" in entry:
            print(f"{name:34} {_cells(entry, record)} {entry['layers']}", flush=True)


def _cells(entry: dict[str, Any], record: dict[str, Any]) -> str:
    others = record["strategies"]
    middle = statistics.median(entry["us"])
    error, stock = entry.get("error"), others.get("stock", {}).get("error")
    return " ".join(
        [
            f"{middle:9.2f} {min(entry['us']):9.2f}",
            _number(median_ratio(entry, others.get("bf16-fa3", {})), "6.3f"),
            _number(median_ratio(entry, others.get("bf16-fa2", {})), "6.3f"),
            _number(middle / max(record["floor_us"], 1e-3), "7.2f"),
            _number(error, "9.2e"),
            _number(error / stock if error and stock else None, "6.2f"),
        ]
    )


def _number(value: float | None, form: str) -> str:
    return "-".rjust(int(form[0])) if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
