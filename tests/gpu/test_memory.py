"""Bytes are a formula, replays allocate nothing, and no step copies the pool."""

from __future__ import annotations

import gc
import logging
import re
from typing import Any

import pytest
import torch

from tests.gpu.captures import capture_one
from tests.gpu.engine import COMPACT, DEVICE, DIM, MODEL_DTYPE, STOCK, Engine, Shape
from tests.gpu.large_results import pool_sized
from tests.gpu.steps import decode_batch, extend_batch, run_eager, verify_batch


def make_step(engine: Engine, kind: str) -> tuple[Any, list[Any]]:
    lengths = [1500, 40]  # more than the bounded buffer holds
    requests = engine.place([length + 4 for length in lengths])
    if kind == "decode":
        return decode_batch(engine, requests, lengths), engine.inputs(2)
    if kind == "extend":
        return extend_batch(engine, requests, [1496, 0], [4, 40]), engine.inputs(44)
    return verify_batch(engine, requests, lengths, 4), engine.inputs(8)


@pytest.mark.parametrize("mib", ["1", "1024"], ids=["bounded", "whole"])
@pytest.mark.parametrize("kind", ["decode", "extend", "verify"])
def test_no_step_makes_a_tensor_of_the_pools_length(
    kind: str, mib: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_BUFFER_MIB", mib)
    engine = Engine(Shape(rows=65536))
    stock, compact = engine.pair()
    batch, inputs = make_step(engine, kind)
    control = pool_sized(engine, lambda: run_eager(engine, stock, batch, inputs))
    assert len(control) == engine.shape.layers, "stock casts the pool once in each layer"
    assert pool_sized(engine, lambda: run_eager(engine, compact, batch, inputs)) == []


@pytest.mark.parametrize("drafts", [0, 4], ids=["decode", "verify"])
def test_no_captured_step_makes_a_tensor_of_the_pools_length(drafts: int) -> None:
    engine = Engine(Shape(rows=65536))
    stock, compact = engine.pair()
    assert pool_sized(engine, lambda: capture_one(engine, stock, 2, drafts)) != []
    assert pool_sized(engine, lambda: capture_one(engine, compact, 2, drafts)) == []


def test_the_buffer_takes_the_bytes_of_the_formula() -> None:
    from sglang.srt.layers.attention.flashinfer_mla_compact.readings import compact_buffer

    capacity = 54321  # a capacity that no other test has, so that the buffer is new
    before = requested_bytes()
    buffer = compact_buffer(capacity, MODEL_DTYPE, torch.device(DEVICE))
    formula = capacity * DIM * 2
    assert buffer.untyped_storage().nbytes() == formula
    assert requested_bytes() - before == formula


def requested_bytes() -> int:
    """What callers hold, before the allocator rounds up to its blocks."""
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


# Pools and heads of numbers that no other test has, so that buffer and scratch are new.
@pytest.mark.parametrize(
    ("strategy", "verified", "rows", "heads"),
    [("gather", 0, 5003, 16), ("direct", 0, 5009, 24), ("direct", 4, 5011, 28)],
)
def test_the_start_line_states_the_bytes_that_a_start_takes(
    strategy: str,
    verified: int,
    rows: int,
    heads: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from sglang.srt.layers.attention.flashinfer_mla_compact import backend

    kept, taken = [], []
    start = backend.FlashInferMLACompactAttnBackend._init_readings
    monkeypatch.setattr(backend, "verified_tokens", lambda: verified)

    def measured(compact: Any, *arguments: Any) -> None:
        kept.append(compact.decode_wrapper)  # upstream's, which direct reading takes the place of
        gc.collect()  # backends of other tests die with their cycles, at any time
        before = requested_bytes()
        start(compact, *arguments)
        taken.append(requested_bytes() - before)

    monkeypatch.setattr(backend.FlashInferMLACompactAttnBackend, "_init_readings", measured)
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", strategy)
    with caplog.at_level(logging.INFO):
        Engine(Shape(heads=heads, rows=rows)).make(COMPACT)
    (line,) = [text for text in caplog.messages if "compact buffer of" in text]
    assert [sum(map(int, re.findall(r"(\d+) bytes", line)))] == taken


def test_layers_graphs_and_backends_share_one_buffer() -> None:
    engine = Engine(Shape(layers=3))
    first, second = engine.make("flashinfer_mla_compact"), engine.make("flashinfer_mla_compact")
    assert first.readings.gathered.buffer.data_ptr() == second.readings.gathered.buffer.data_ptr()


def test_a_replay_allocates_nothing_and_200_leave_memory_as_it_was() -> None:
    engine = Engine(Shape())
    captured = capture_one(engine, engine.make("flashinfer_mla_compact"), 2)
    lengths = [30, 500]
    requests = engine.place([length + 200 for length in lengths])
    inputs = engine.inputs(2)
    for _ in range(3):  # whatever is made on first use
        captured.replay(decode_batch(engine, requests, lengths), inputs)
    batch = decode_batch(engine, requests, lengths)
    captured.load(batch, inputs)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    captured.graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before

    gc.collect()  # backends of other tests die with their cycles, at any time
    held = torch.cuda.memory_allocated()
    for step in range(200):
        grown = [length + step for length in lengths]
        captured.load(decode_batch(engine, requests, grown), inputs)
        captured.graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == held


def test_a_pool_in_the_models_dtype_is_left_to_stock() -> None:
    engine = Engine(Shape(dtype=MODEL_DTYPE))
    compact = engine.make("flashinfer_mla_compact")
    assert type(compact) is type(engine.make(STOCK))
