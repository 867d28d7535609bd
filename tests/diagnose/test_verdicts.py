"""What the tool says of traces that hold the cast, another one, none, or too little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagnosetool import timeline
from diagnosetool.cli import EXIT_CODES, UNREADABLE
from diagnosetool.diagnosis import diagnose, judge
from diagnosetool.report import as_json
from diagnosetool.stream import EventStream
from diagnosetool.verdict import Verdict

from tests.diagnose.conftest import Make
from tests.diagnose.synthetic import (
    GLM5_ROWS,
    SAMPLER,
    VECTORIZED,
    Clock,
    Event,
    Server,
    events,
    header,
    write,
)

REPORTED_CAST_MS = 64.6
REPORTED_STEP_MS = 93.0


def answer(path: Path) -> dict[str, Any]:
    return as_json(diagnose(EventStream(str(path))))


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"graphs": True}, "CUDA graph replays"),
        ({"graphs": False}, "the repetition of kernels"),
        ({"graphs": True, "spans": True}, "sglang's step spans"),
        ({"graphs": False, "spans": True}, "sglang's step spans"),
    ],
)
def test_the_cast_of_the_first_report_is_measured(
    tmp_path: Path, fields: dict[str, bool], source: str
) -> None:
    server = Server(layers=78, gemm_us=327.0, **fields)  # type: ignore[arg-type]
    found = answer(write(tmp_path / "trace.json", server))
    assert found["verdict"] == "cast"
    assert found["steps_from"] == source
    assert found["layers"] == 78
    assert found["steps"] == 3
    assert found["step_ms"] == pytest.approx(REPORTED_STEP_MS, rel=0.01)
    assert found["cast"]["ms"] == pytest.approx(REPORTED_CAST_MS, rel=0.01)
    assert found["without_cast_ms"] == pytest.approx(28.4, rel=0.02)
    assert found["cast"]["layer_bytes_read"] == pytest.approx(GLM5_ROWS * 576, abs=512)
    assert found["cast"]["layer_bytes_written"] == 2 * found["cast"]["layer_bytes_read"]
    assert found["cast"]["pool_rows"] == GLM5_ROWS


def test_recorded_shapes_tell_size_and_dtypes(trace: Make) -> None:
    cast = answer(trace(graphs=False, shapes=True, grids=False))["cast"]
    assert cast["evidence"] == "recorded shapes"
    assert cast["dtypes"] == "Float8_e4m3fn to BFloat16"
    assert cast["operator"] == "aten::copy_"
    assert cast["pool_rows"] == GLM5_ROWS


def test_equal_time_tells_where_no_size_is_recorded(trace: Make) -> None:
    cast = answer(trace(grids=False))["cast"]
    assert cast["evidence"] == "duration"
    assert cast["layer_bytes_read"] is None
    assert cast["layer_bytes_at_most"] > GLM5_ROWS * 576 * 3


@pytest.mark.parametrize("name", [VECTORIZED, "triton_poi_fused__to_copy_3"])
def test_a_copy_is_found_though_its_grid_shows_no_size(trace: Make, name: str) -> None:
    found = answer(trace(cast_kernel=name))
    assert found["verdict"] == "cast"
    assert found["cast"]["evidence"] == "duration"


def test_a_cast_that_pytorch_splits_counts_once_a_layer(trace: Make) -> None:
    found = answer(trace(rows=2_000_000, pieces=2, cast_us=3300.0))
    assert found["layers"] == 6
    assert found["cast"]["pool_rows"] == 2_000_000
    assert found["cast"]["layer_ms"] == pytest.approx(3.3, rel=0.02)


def test_a_bf16_pool_has_no_cast(trace: Make) -> None:
    found = answer(trace(fp8=False))
    assert found["verdict"] == "absent"
    assert found["cast"] is None
    assert "FlashInfer MLA" in found["reason"]
    assert found["without_cast_ms"] == found["step_ms"]


def test_small_casts_in_every_layer_are_not_the_pools(trace: Make) -> None:
    assert answer(trace(rows=64, cast_us=3.0))["verdict"] == "absent"


def test_copies_of_unequal_time_and_unknown_size_are_not_the_pools(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", Server(layers=6, grids=False))
    document = json.loads(path.read_text())
    copies = [e for e in document["traceEvents"] if "direct_copy_kernel" in e["name"]]
    for layer, copy in enumerate(copies):
        copy["dur"] = 100.0 + 100.0 * (layer % 6)
    path.write_text(json.dumps(document))
    assert answer(path)["verdict"] == "absent"


def test_flash_attentions_cast_is_named_as_its_own(trace: Make) -> None:
    found = answer(trace(attention="fa3"))
    assert found["verdict"] == "other-cast"
    assert found["cast"]["reader"] == "attention, FlashAttention"


def test_a_cast_read_by_an_unknown_kernel_is_not_blamed(trace: Make) -> None:
    found = answer(trace(attention="novel"))
    assert found["verdict"] == "unknown"
    assert found["cast"]["ms"] > 0
    assert "what reads it is not known: my_very_own_attention_kernel" in found["reason"]


def test_a_trace_without_gpu_work_cannot_tell(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(header() + "]}")
    found = answer(path)
    assert found["verdict"] == "unknown"
    assert "no GPU kernels" in found["reason"]


def test_a_trace_of_one_sampler_cannot_tell(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = Clock(Server()).kernel(SAMPLER, 12.0, 4096)
    path.write_text(header() + json.dumps(event) + "]}")
    assert "no decode step" in answer(path)["reason"]


def test_a_trace_of_prefill_alone_cannot_tell(trace: Make) -> None:
    found = answer(trace(graphs=False, spans=True, mode="EXTEND"))
    assert found["verdict"] == "unknown"
    assert "no decode step" in found["reason"]


@pytest.mark.parametrize("mode", ["TARGET_VERIFY", "VERIFY"])
def test_verification_of_drafts_counts_as_decode(trace: Make, mode: str) -> None:
    assert answer(trace(spans=True, mode=mode))["steps_from"] == "sglang's step spans"


def test_the_next_costs_are_ranked_without_the_cast(trace: Make) -> None:
    costs = answer(trace())["costs"]
    assert [cost["family"] for cost in costs[:2]] == [
        "matrix products",
        "attention, FlashInfer MLA",
    ]
    assert "copies" not in {cost["family"] for cost in costs}
    times = [cost["ms"] for cost in costs]
    assert times == sorted(times, reverse=True)


def test_time_between_kernels_is_idle(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", Server(layers=6, fp8=False))
    document = json.loads(path.read_text())
    work = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    for index, event in enumerate(work):
        event["ts"] += 1000.0 * index
    path.write_text(json.dumps(document))
    costs = {cost["family"]: cost["ms"] for cost in answer(path)["costs"]}
    kernels_a_step = len(work) / 4
    assert costs["GPU idle"] == pytest.approx(kernels_a_step, rel=0.1)


@pytest.mark.parametrize(
    ("name", "duration"), [("_fwd_kernel", 10.0), ("another_models_kernel", 2000.0)]
)
def test_what_runs_between_steps_does_not_lengthen_them(
    tmp_path: Path, name: str, duration: float
) -> None:
    server = Server(layers=6, steps=8, graphs=False)
    mixed = list(events(server))
    ends = [index for index, event in enumerate(mixed) if event["name"] == SAMPLER]
    middle = ends[len(ends) // 2] + 1
    clock = Clock(server)
    clock.now = mixed[middle]["ts"]
    between = [clock.kernel(name, duration, 4096) for _ in range(6)]
    for event in mixed[middle:]:
        event["ts"] += clock.now - between[0]["ts"]
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps([*mixed[:middle], *between, *mixed[middle:]]))
    found = answer(path)
    assert found["steps"] == 6
    assert name not in {cost["family"] for cost in found["costs"]}


def test_ranks_merged_into_one_file_are_told_apart(tmp_path: Path) -> None:
    ranks = [Server(layers=6, rank=f"[TP{rank:02}]") for rank in range(2)]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps({"traceEvents": [e for rank in ranks for e in events(rank)]}))
    found = answer(path)
    assert found["layers"] == 6
    assert "2 devices" in found["notes"][0]


def test_a_device_without_kernels_is_not_the_one_that_is_judged(tmp_path: Path) -> None:
    memset = {"ph": "X", "cat": "gpu_memset", "name": "Memset", "pid": 9, "ts": 0.0, "dur": 1.0}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([memset, *events(Server())]))
    found = answer(path)
    assert (found["verdict"], found["notes"]) == ("cast", [])


def test_only_so_many_kernels_are_kept(trace: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "KERNEL_LIMIT", 60)
    source = EventStream(str(trace(steps=50)))
    found = timeline.read_timeline(source)
    assert len(found.kernels) == 60
    assert found.kernels_left_out == 50 * (6 * 4 + 3) - 60
    assert any("the first ones" in note for note in judge(source, found).notes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pid", {}),
        ("ts", None),
        ("ts", float("nan")),
        ("dur", float("inf")),
        ("grid", {"x": 1}),
        ("block", [[1]]),
        ("correlation", float("inf")),
        ("External id", []),
        ("Input Dims", [7]),
        ("Input type", ["Float"]),
    ],
)
def test_events_with_odd_fields_are_left_out_and_counted(
    tmp_path: Path, field: str, value: object
) -> None:
    server = Server(layers=6, steps=6, graphs=False, shapes=True, spans=True)
    recorded = list(events(server))
    odd = [spoilt(event, field, value) for event in recorded]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([*recorded, *filter(None, odd)]))
    found, plain = answer(path), answer(write(tmp_path / "plain.json", server))
    assert any("unlike a profiler's" in note for note in found["notes"])
    assert (found["verdict"], found["step_ms"]) == (plain["verdict"], plain["step_ms"])


def spoilt(event: Event, field: str, value: object) -> Event | None:
    """The event with another value in that field of it or of its arguments; None without one."""
    arguments = event.get("args", {})
    if field in arguments:
        return {**event, "args": {**arguments, field: value}}
    return {**event, field: value} if field in event else None


def test_every_verdict_has_its_own_exit_code() -> None:
    codes = [EXIT_CODES[verdict] for verdict in Verdict]
    assert len({*codes, UNREADABLE, 2}) == len(Verdict) + 2
