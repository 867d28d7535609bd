"""Only whole steps are judged: of traces beyond the cap, with a cut end, or without a decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagnosetool import timeline

from tests.diagnose.conftest import Make
from tests.diagnose.synthetic import ATTENTION, GEMM, NORM, Clock, Event, Server, header, write
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


def on_the_host(mode: str) -> Event:
    fields: dict[str, Any] = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "args": {}}
    return {**fields, "name": f"step[{mode} bs=1]", "ts": 5_124_676_869_388.0, "dur": 900.0}


def test_marks_on_the_hosts_timeline_alone_tell_a_prefill(tmp_path: Path, trace: Make) -> None:
    document = json.loads(trace(fp8=False).read_text())
    document["traceEvents"].append(on_the_host("EXTEND"))
    (tmp_path / "prefill.json").write_text(json.dumps(document))
    found = answer(tmp_path / "prefill.json")
    assert found["verdict"] == "unknown"
    assert "marked no decode, only EXTEND" in found["reason"]
    document["traceEvents"].append(on_the_host("DECODE"))
    (tmp_path / "both.json").write_text(json.dumps(document))
    assert answer(tmp_path / "both.json")["verdict"] == "absent"


def test_unknown_attention_kernels_of_a_decode_are_named(tmp_path: Path) -> None:
    clock = Clock(Server())
    names = ("my_very_own_attention_kernel", NORM)
    events = [clock.kernel(name, 50.0, 4096) for _ in range(40) for name in names]
    found = answer(written(tmp_path / "trace.json", *events, on_the_host("DECODE")))
    assert found["verdict"] == "unknown"
    assert "not known here" in found["reason"] and names[0] in found["reason"]


def test_where_copies_dominate_no_cast_is_never_the_answer(tmp_path: Path) -> None:
    server = Server(layers=LAYERS, graphs=True)
    document = json.loads(write(tmp_path / "trace.json", server).read_text())
    copies = [e for e in document["traceEvents"] if "direct_copy_kernel" in e["name"]]
    for copy in copies[::3]:
        document["traceEvents"].remove(copy)
    (tmp_path / "trace.json").write_text(json.dumps(document))
    found = answer(tmp_path / "trace.json")
    assert found["verdict"] != "absent"


def test_a_device_without_a_name_is_an_unknown_one(tmp_path: Path) -> None:
    text = write(tmp_path / "trace.json", Server(layers=LAYERS)).read_text()
    document = json.loads(text)
    document["deviceProperties"] = [{"name": ""}]
    (tmp_path / "trace.json").write_text(json.dumps(document))
    assert answer(tmp_path / "trace.json")["device"] == "unknown GPU"
