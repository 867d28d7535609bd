"""Launches of a prefill are counted and timed from a trace, those of its neighbours are not."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench import launches
from bench.launch_tables import table
from bench.launches import main, prefill, short, summary
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


def test_a_prefix_that_launches_more_and_takes_less_is_not_the_prefill() -> None:
    prefix = [event for n in range(20, 25) for event in launch(n, n - 40, "of a prefix", busy=1)]
    names = {kernel["name"] for _, kernel in prefill([*prefix, *STEP])}
    assert names == {"void write<4>(int)", "attend"}


def test_without_a_replayed_graph_decode_is_not_counted_as_prefill() -> None:
    assert prefill(LAYER) == []


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


CARD = [{"name": "card"}]


def record(folder: Path, setup: str, events: list[Event], stamp: str = "12.5") -> None:
    trace = {"deviceProperties": CARD, "traceEvents": [*events, *replay(1000, 1000)]}
    (folder / f"{setup}-{stamp}-TP-0.trace.json.gz").write_bytes(packed(trace))


def packed(trace: object) -> bytes:
    return gzip.compress(json.dumps(trace).encode())


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
        "| `fill` | - | 10 x 11.0 µs, 22.0% of the host's time, 3.0 µs on device |",
    ]


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_table_says_which_file_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "launches.json").write_text(content)
    with pytest.raises(ValueError, match=r"launches\.json can't be read as results .*: remove it"):
        table(tmp_path)


def found(folder: Path) -> dict[str, tuple[str, int]]:
    """Device and launches of each setup."""
    assert main([str(folder), "--out", str(folder / "made" / "found.json")]) == 0
    setups = json.loads((folder / "made" / "found.json").read_text())["setups"]
    return {name: (one["device"], one["launches"]) for name, one in setups.items()}


def test_the_newest_trace_of_a_setup_counts(tmp_path: Path) -> None:
    record(tmp_path, "compact-direct", STEP, stamp="9.25")
    record(tmp_path, "compact-direct", launch(1, 1, "attend"), stamp="12.5")
    assert found(tmp_path) == {"compact-direct": ("card", 1)}


def test_setups_whose_names_begin_alike_are_told_apart(tmp_path: Path) -> None:
    record(tmp_path, "compact-gather", STEP)
    record(tmp_path, "compact", launch(1, 1, "attend"), stamp="13")
    record(tmp_path, "pool-131072", STEP)
    assert found(tmp_path) == {
        "compact": ("card", 1),
        "compact-gather": ("card", 3),
        "pool-131072": ("card", 3),
    }


def test_of_several_ranks_the_first_is_read(tmp_path: Path) -> None:
    record(tmp_path, "bf16", STEP)
    (trace,) = tmp_path.glob("*.gz")
    trace.rename(tmp_path / "bf16-12.5-TP-0-DP-0-EP-0.trace.json.gz")
    (tmp_path / "bf16-13.5-TP-1-DP-1-EP-1.trace.json.gz").touch()
    assert found(tmp_path) == {"bf16": ("card", 3)}


def refused(folder: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int | None, str]:
    """Exit status and the last line told, which must be the only one but for the usage."""
    before = set(folder.rglob("*"))
    try:
        status: Any = main([str(folder), "--out", str(out)])
    except SystemExit as ended:
        status = ended.code
    told = capsys.readouterr().err.splitlines()
    assert len([line for line in told if not line.startswith(("usage:", " "))]) == 1
    assert set(folder.rglob("*")) == before
    return status, told[-1]


@pytest.mark.parametrize("folder", ["", "not there"])
def test_a_folder_without_traces_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    status, told = refused(tmp_path / folder, tmp_path / "found.json", capsys)
    assert status == 2
    assert "record one with bench.serve run --trace" in told


@pytest.mark.parametrize("out", [".", "traces", "a pipe", "traces/bf16-12.5-TP-0.trace.json.gz/a"])
def test_a_file_that_cannot_be_written_is_a_usage_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    out: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("traces").mkdir()
    os.mkfifo("a pipe")
    record(Path("traces"), "bf16", STEP)
    status, told = refused(Path("traces"), Path(out), capsys)
    assert status == 2
    assert f"--out {out}" in told
    assert told.endswith((": name another.", ": name another file."))
    assert Path("a pipe").is_fifo()


def test_a_trace_without_launches_is_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, "bf16", [])
    status, told = refused(tmp_path, tmp_path / "found.json", capsys)
    assert status == 1
    assert "has no launch" in told


NO_TIMES = [{k: v for k, v in event.items() if k != "dur"} for event in STEP]


DAMAGED = {
    "not packed": b"{}",
    "cut short": packed({})[:-9],
    "bits turned": packed({})[:10] + b"\xff" * 20,
    "not JSON": gzip.compress(b"{"),
    "no members": packed(STEP),
    "no events": packed({"deviceProperties": CARD}),
    "no event": packed({"deviceProperties": CARD, "traceEvents": ["an event"]}),
    "no times": packed({"deviceProperties": CARD, "traceEvents": NO_TIMES}),
    "no device": packed({"traceEvents": STEP}),
    "devices without one": packed({"deviceProperties": [], "traceEvents": STEP}),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_trace_that_cannot_be_read_is_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    record(tmp_path, "bf16", STEP)
    (tmp_path / "compact-12.5-TP-0.trace.json.gz").write_bytes(content)
    status, told = refused(tmp_path, tmp_path / "found.json", capsys)
    assert status == 1
    assert "compact-12.5-TP-0.trace.json.gz can't be read as a trace" in told
    assert told.endswith(": record it again.")


def test_an_interrupted_run_leaves_the_file_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path) -> dict[str, Any]:
        raise KeyboardInterrupt

    record(tmp_path, "bf16", STEP)
    (tmp_path / "found.json").write_text("as it was")
    monkeypatch.setattr(launches, "read", interrupt)
    assert refused(tmp_path, tmp_path / "found.json", capsys)[0] == 130
    assert (tmp_path / "found.json").read_text() == "as it was"
