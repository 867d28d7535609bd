"""What the counters say of steps whose rows are known, eager and replayed."""

from __future__ import annotations

import prometheus_client
import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_compact import backend, metrics

from tests.gpu.captures import capture_one
from tests.gpu.engine import COMPACT, Engine, Shape
from tests.gpu.steps import decode_batch, extend_batch, run_eager

LABELS = {"model": "target", "tp_rank": "0", "pp_rank": "0"}


@pytest.fixture(autouse=True)
def every_step_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "metric_labels", lambda runner: LABELS)
    monkeypatch.setattr(metrics, "SAMPLE_EVERY", 1)


def value(name: str, **more: str) -> float:
    labels = {**LABELS, **more}
    name = f"sglang:mla_compact_{name}_total"
    return prometheus_client.REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("strategy", ["gather", "direct"])
def test_rows_of_a_replay_are_counted_and_a_shared_prefix_is_saved_by_gathering(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", strategy)
    engine = Engine(Shape())
    captured = capture_one(engine, engine.make(COMPACT), 2)
    lengths, shared = [300, 280], 200
    batch = decode_batch(engine, engine.place(lengths, shared), lengths)
    inputs = engine.inputs(2)
    captured.replay(batch, inputs)
    torch.cuda.synchronize()
    rows, saved = value("rows", read=strategy), value("shared_rows_saved")
    captured.replay(batch, inputs)  # counts the one before
    read_once = shared if strategy == "gather" else 0
    assert value("rows", read=strategy) - rows == sum(lengths) - read_once
    assert value("shared_rows_saved") - saved == read_once


def test_an_extend_that_does_not_fit_is_counted_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_BUFFER_MIB", "1")
    engine = Engine(Shape())
    compact = engine.make(COMPACT)
    before = value("fallbacks")
    for prefixes, new in (([100], [30]), ([1200], [65]), ([1200], [65])):
        lengths = [prefixes[0] + new[0]]
        batch = extend_batch(engine, engine.place(lengths), prefixes, new)
        run_eager(engine, compact, batch, engine.inputs(new[0]))
    assert value("fallbacks") - before == 2
    lines = [line for line in caplog.messages if "reads an extend directly" in line]
    assert len(lines) == 1
