"""Launches of a prefill are counted and timed from a trace, those of its neighbours are not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench.launches import main, prefill, short, summary, table
from bench.markdown import MISSING

Event = dict[str, Any]


def launch(
    number: int, at: float, kernel: str, took: float = 1.0, busy: float = 3.0
) -> list[Event]:
    """A call of the host at `at` for `took`, and its kernel, which runs for `busy`, later."""
    arguments = {"args": {"correlation": number}}
    call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": took}
    return [
        call | arguments,
        {"cat": "kernel", "name": kernel, "ts": at + 50, "dur": busy} | arguments,
    ]


def replay(number: int, at: float) -> list[Event]:
    call, kernel = launch(number, at, "in a graph")
    return [call | {"name": "cudaGraphLaunch"}, kernel]


LAYER = [*launch(2, 20, "void write<4>(int)", busy=2), *launch(3, 30, "attend", took=4, busy=6)]
STEP = [
    *launch(1, 1, "of the step before"),
    *replay(9, 10),
    {"cat": "cpu_op", "name": "aten::view", "ts": 12, "dur": 1},
    *LAYER,
    *launch(4, 40, "attend", took=2, busy=8),
    *replay(10, 60),
]


def test_the_prefill_is_the_longest_stretch_without_a_graph() -> None:
    names = [kernel["name"] for _, kernel in prefill(STEP)]
    assert names == ["void write<4>(int)", "attend", "attend"]


def test_each_kernel_has_its_count_and_its_mean_times() -> None:
    found = summary(prefill(STEP))
    assert (found["launches"], found["host_ms"], found["device_ms"]) == (3, 0.022, 0.016)
    assert found["kernels"] == {
        "attend": {"count": 2, "host_us": 10.5, "device_us": 7.0},
        "write": {"count": 1, "host_us": 1.0, "device_us": 2.0},
    }


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void (anonymous namespace)::set<1l, 8>((anonymous namespace)::Keys)", "set"),
        ("void at::native::fill<float>(int)", "at::native::fill"),
        ("gather_rows_kernel", "gather_rows_kernel"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
    ],
)
def test_a_kernel_goes_without_what_it_was_made_for(kernel: str, name: str) -> None:
    assert short(kernel) == name


def record(folder: Path, setup: str, events: list[Event], stamp: str = "12.5") -> None:
    trace = {"deviceProperties": [{"name": "card"}], "traceEvents": events}
    packed = gzip.compress(json.dumps(trace).encode())
    (folder / f"{setup}-{stamp}-TP-0.trace.json.gz").write_bytes(packed)


def test_a_table_shows_what_only_one_launches_in_each_layer(tmp_path: Path) -> None:
    assert table(tmp_path) == MISSING
    common = [event for n in range(10) for event in launch(n, 20 * n, "attend", busy=10)]
    own = [event for n in range(10) for event in launch(n + 20, 20 * n + 10, "fill", took=2)]
    once = launch(99, 500, "plan")
    record(tmp_path, "bf16", common)
    record(tmp_path, "compact", [*common, *own, *once])
    assert main([str(tmp_path), "--out", str(tmp_path / "launches.json")]) == 0
    assert table(tmp_path).splitlines()[2:] == [
        "| launches | 10 | 21 |",
        "| host, ms | 0.2 | 0.5 |",
        "| device, ms | 0.1 | 0.1 |",
        "| `fill` | - | 10 x 11.0 µs, 3.0 on device |",
    ]


def test_the_newest_trace_of_a_setup_counts(tmp_path: Path) -> None:
    record(tmp_path, "compact-direct", STEP, stamp="11.25")
    record(tmp_path, "compact-direct", launch(1, 1, "attend"), stamp="12.5")
    main([str(tmp_path), "--out", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())["setups"]
    assert {name: (one["device"], one["launches"]) for name, one in found.items()} == {
        "compact-direct": ("card", 1)
    }


def test_a_folder_without_traces_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--out", str(tmp_path / "found.json")])
    assert "record one with bench.serve run --trace" in capsys.readouterr().err


def test_a_trace_without_launches_is_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, "bf16", [])
    assert main([str(tmp_path), "--out", str(tmp_path / "found.json")]) == 1
    assert "has no launch" in capsys.readouterr().err
    assert not (tmp_path / "found.json").exists()
