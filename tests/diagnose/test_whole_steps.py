"""Only whole steps are judged: of traces beyond the cap, with a cut end, or without a decode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diagnosetool import timeline
from diagnosetool.stream import EventStream

from tests.diagnose.conftest import Make
from tests.diagnose.synthetic import (
    ATTENTION,
    EMBEDDING,
    GEMM,
    NORM,
    SAMPLER,
    Clock,
    Event,
    Server,
    events,
    header,
    write,
)
from tests.diagnose.test_verdicts import answer

LAYERS, STEPS = 8, 9
FOUND_BY = [{"graphs": True}, {"graphs": False}, {"graphs": True, "spans": True}]


@pytest.mark.parametrize("fields", FOUND_BY, ids=["replays", "repetition", "spans"])
def test_a_cap_at_any_kernel_leaves_the_verdict_of_the_whole_steps_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, bool]
) -> None:
    server = Server(layers=LAYERS, steps=STEPS, **fields)  # type: ignore[arg-type]
    path = write(tmp_path / "trace.json", server)
    whole = answer(path)
    a_step = 4 * LAYERS + 2
    for limit in range(4 * a_step, STEPS * a_step, 7):
        monkeypatch.setattr(timeline, "KERNEL_LIMIT", limit)
        found = answer(path)
        assert found["verdict"] == "cast", limit
        assert found["step_ms"] == pytest.approx(whole["step_ms"], rel=0.01), limit
        assert found["cast"]["ms"] == pytest.approx(whole["cast"]["ms"], rel=0.01), limit


@pytest.mark.parametrize("fields", FOUND_BY, ids=["replays", "repetition", "spans"])
@pytest.mark.parametrize("first", ["another_models_kernel", ATTENTION["fa3"]])
def test_a_long_trace_is_judged_by_parts_spread_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, bool], first: str
) -> None:
    monkeypatch.setattr(timeline, "KERNEL_LIMIT", 1200)
    monkeypatch.setattr(timeline, "BLOCK", 150)
    server = Server(layers=LAYERS, steps=100, **fields)  # type: ignore[arg-type]
    clock = Clock(server)
    warm_up = [clock.kernel(first, 5.0, 4096) for _ in range(1300)]
    steps = list(events(server))
    for number, event in enumerate(steps):
        event["ts"] = event["ts"] - steps[0]["ts"] + clock.now
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] += 10_000
        steps[number] = event
    path = written(tmp_path / "trace.json", *warm_up, *steps)
    found, short = answer(path), answer(write(tmp_path / "short.json", server))
    assert found["verdict"] == "cast"
    assert found["step_ms"] == pytest.approx(short["step_ms"], rel=0.01)
    assert "parts spread over the trace" in found["notes"][0]
    kept = timeline.read_timeline(EventStream(str(path)))
    assert len(kept.kernels) <= 1200
    assert kept.windows[-1][1] > clock.now + 0.6 * (steps[-1]["ts"] - clock.now)


@pytest.mark.parametrize("fields", FOUND_BY, ids=["replays", "repetition", "spans"])
def test_a_cut_end_loses_the_step_that_it_cuts_and_no_more(
    tmp_path: Path, fields: dict[str, bool]
) -> None:
    server = Server(layers=LAYERS, steps=STEPS, **fields)  # type: ignore[arg-type]
    text = write(tmp_path / "trace.json", server).read_text()
    whole, cut = answer(tmp_path / "trace.json"), tmp_path / "cut.json"
    for lost in (5, 20, 50, 400, 3000, 20_000, len(text) // 2):
        cut.write_text(text[:-lost])
        found = answer(cut)
        assert found["verdict"] == "cast", lost
        assert found["step_ms"] == pytest.approx(whole["step_ms"], rel=0.01), lost


@pytest.mark.parametrize("kept", [2, 3, 4])
def test_marks_that_a_cut_end_lost_do_not_merge_steps(tmp_path: Path, kept: int) -> None:
    server = Server(layers=LAYERS, steps=STEPS, spans=True)
    recorded = list(events(server))
    marks = [event for event in recorded if event["name"].startswith("step[")]
    work = [event for event in recorded if event not in marks]
    path = written(tmp_path / "trace.json", *work, *(marks[::4] + marks[1::4])[:kept])
    path.write_text(path.read_text().removesuffix("]}"))
    whole = answer(write(tmp_path / "whole.json", server))
    assert answer(path)["step_ms"] == pytest.approx(whole["step_ms"], rel=0.01)


def test_a_step_whose_mark_was_lost_is_no_part_of_the_one_before(tmp_path: Path) -> None:
    server = Server(layers=LAYERS, steps=4, spans=True)
    document = json.loads(write(tmp_path / "trace.json", server).read_text())
    whole = answer(tmp_path / "trace.json")
    marks = [event for event in document["traceEvents"] if event["name"].startswith("step[")]
    document["traceEvents"].remove(marks[1])
    (tmp_path / "trace.json").write_text(json.dumps(document))
    found = answer(tmp_path / "trace.json")
    assert found["step_ms"] == pytest.approx(whole["step_ms"], rel=0.01)


def written(path: Path, *events: Event) -> Path:
    path.write_text(header() + ",".join(map(json.dumps, events)) + "]}")
    return path


def one_pass(layers: int, period: int) -> list[Event]:
    """An eager pass whose layers differ in turn, as those of a model with two kinds of them."""
    clock = Clock(Server())
    events = []
    for layer in range(layers):
        if layer % period == 0:
            events.append(clock.kernel("a_kernel_of_every_other_layer", 3.0, 4096))
        events.append(clock.kernel(ATTENTION["fa3"], 30.0, 4096))
        events.append(clock.kernel(GEMM, 200.0, 1 << 19))
    return events


@pytest.mark.parametrize("period", [2, 3, 4])
def test_one_pass_of_a_patterned_model_is_not_many_steps(tmp_path: Path, period: int) -> None:
    assert answer(written(tmp_path / "trace.json", *one_pass(36, period)))["verdict"] == "unknown"


def test_one_eager_pass_alone_is_not_called_a_step(trace: Make) -> None:
    found = answer(trace(steps=1, graphs=False))
    assert (found["verdict"], found["steps"]) == ("unknown", 0)
    assert "one pass alone may be a prefill" in found["reason"]


def test_a_prefill_of_known_kernels_is_called_one(tmp_path: Path) -> None:
    clock = Clock(Server())
    names = (EMBEDDING, "fmhaSm100aKernel_QkvBfloat16PagedKvCausalVarSeqQ128Context", SAMPLER)
    passes = [clock.kernel(name, 50.0, 4096) for _ in range(9) for name in names for _ in "12"]
    found = answer(written(tmp_path / "trace.json", *passes))
    assert "all attention is that of a prefill" in found["reason"]


def on_the_host(mode: str, start: float = 0.0, end: float = 900.0) -> Event:
    fields: dict[str, Any] = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "args": {}}
    name = f"step[{mode} bs=1]" if mode.isupper() else mode
    return {**fields, "name": name, "ts": start, "dur": end - start}


def marked_on_the_host(server: Server, modes: list[str], launched: bool) -> list[Event]:
    """The trace of an AMD card: passes in order of `modes`, each marked where it was launched."""
    marked: list[Event] = []
    count, started = 0, 0.0
    for time, event in enumerate(events(server)):
        marked.append(event)
        if event["name"] == EMBEDDING:
            started = time
        if event["name"] == SAMPLER:
            marked.append(on_the_host(modes[count % len(modes)], started - 0.2, time + 0.2))
            count += 1
        if launched and event.get("cat") == "kernel":
            arguments = {"correlation": event["args"]["correlation"]}
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": time}
            marked.append({**launch, "dur": 0.1, "pid": 1, "tid": 1, "args": arguments})
    return marked


@pytest.mark.parametrize(
    ("modes", "launched", "verdict", "steps"),
    [
        (["EXTEND"], True, "unknown", 0),
        (["EXTEND"], False, "unknown", 0),
        (["DECODE"], True, "cast", 8),
        (["DECODE"], False, "cast", 8),
        (["EXTEND", "DECODE", "DECODE"], True, "cast", 5),
        (["EXTEND", "DECODE", "DECODE"], False, "unknown", 0),
        (["execute_2_context_1_a_generation_1_b"], True, "unknown", 0),
        (["execute_context_0(0)_generation_4(4)"], True, "cast", 8),
    ],
)
def test_passes_that_the_hosts_timeline_alone_marks_are_placed_by_their_launches(
    tmp_path: Path, modes: list[str], launched: bool, verdict: str, steps: int
) -> None:
    server = Server(layers=LAYERS, steps=STEPS, graphs=False)
    marked = marked_on_the_host(server, modes, launched)
    found = answer(written(tmp_path / "trace.json", *marked))
    assert (found["verdict"], found["steps"]) == (verdict, steps), found["reason"]
    if not steps:
        assert " marked " in found["reason"]


def test_one_eager_pass_that_the_host_marked_is_a_step(tmp_path: Path) -> None:
    server = Server(layers=LAYERS, steps=1, graphs=False)
    path = tmp_path / "trace.json"
    assert answer(written(path, *marked_on_the_host(server, ["DECODE"], True)))["steps"] == 1
    found = answer(written(path, *marked_on_the_host(server, ["DECODE"], False)))
    assert "no launches show what ran in them" in found["reason"]


@pytest.mark.parametrize("correlated", [True, False])
def test_what_no_mark_of_the_host_launched_is_in_no_pass(tmp_path: Path, correlated: bool) -> None:
    server = Server(layers=LAYERS, steps=2, graphs=False)
    marked = marked_on_the_host(server, ["DECODE"], True)
    first, second = (event for event in marked if event["name"].startswith("step["))
    alone = answer(written(tmp_path / "one.json", *marked[: marked.index(first) + 2]))
    marked.remove(second)
    if not correlated:
        first["dur"] = 1e9
        for event in marked[marked.index(first) + 2 :]:
            event["args"]["correlation"] = 0
    found = answer(written(tmp_path / "trace.json", *marked))
    assert (found["steps"], found["step_ms"]) == (1, alone["step_ms"])


def test_marks_of_the_host_alone_leave_graph_replays_to_be_judged(
    tmp_path: Path, trace: Make
) -> None:
    document = json.loads(trace(fp8=False).read_text())
    document["traceEvents"] += [on_the_host("EXTEND"), on_the_host("DECODE")]
    (tmp_path / "both.json").write_text(json.dumps(document))
    assert answer(tmp_path / "both.json")["verdict"] == "absent"


@pytest.mark.parametrize("name", ["my_very_own_attention_kernel", "aiter::mla_gemm_decode_qh16"])
@pytest.mark.parametrize("marks", [[], [on_the_host("DECODE")]])
def test_attention_kernels_that_are_not_known_are_named(
    tmp_path: Path, name: str, marks: list[Event]
) -> None:
    clock = Clock(Server())
    names = (name, NORM, GEMM, "someones_kernel", "anothers_kernel", "a_third_kernel")
    kernels = [
        clock.kernel(one, 50.0 if one == name else 90.0, 4096) for _ in range(40) for one in names
    ]
    found = answer(written(tmp_path / "trace.json", *kernels, *marks))
    assert found["verdict"] == "unknown"
    assert f"not known here: {name.split('::')[-1]}, " in found["reason"]


def every_third_has_another_size(copy: Event, number: int) -> None:
    copy["args"]["grid"][0] += number % 3


def copied_by_the_driver(copy: Event, _: int) -> None:
    copy.update(cat="gpu_memcpy", name="Memcpy DtoD (Device -> Device)")


@pytest.mark.parametrize("spoil", [every_third_has_another_size, copied_by_the_driver])
def test_where_copies_dominate_no_cast_is_never_the_answer(
    tmp_path: Path, spoil: Callable[[Event, int], None]
) -> None:
    server = Server(layers=LAYERS, graphs=True)
    document = json.loads(write(tmp_path / "trace.json", server).read_text())
    copies = [e for e in document["traceEvents"] if "direct_copy_kernel" in e["name"]]
    for number, copy in enumerate(copies):
        spoil(copy, number)
    (tmp_path / "trace.json").write_text(json.dumps(document))
    found = answer(tmp_path / "trace.json")
    assert found["verdict"] == "unknown"
    assert "copies take" in found["reason"]


@pytest.mark.parametrize("name", ["", " ", None])
def test_a_device_without_a_name_is_an_unknown_one(tmp_path: Path, name: str | None) -> None:
    text = write(tmp_path / "trace.json", Server(layers=LAYERS)).read_text()
    document = json.loads(text)
    document["deviceProperties"] = [{"name": name}]
    (tmp_path / "trace.json").write_text(json.dumps(document))
    assert answer(tmp_path / "trace.json")["device"] == "unknown GPU"
