"""Modes beside plain decode, extend and verify, each against stock on the same runner."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.gpu.captures import capture, capture_one
from tests.gpu.compare import assert_same_bits
from tests.gpu.engine import COMPACT, DEVICE, STOCK, Engine, Inputs, Shape
from tests.gpu.steps import decode_batch, extend_batch, forward, run_eager

LENGTHS = [130, 1, 700, 64]


@pytest.mark.parametrize("mode", ["MIXED", "DRAFT_EXTEND_V2"])
def test_what_is_planned_as_an_extend_equals_stock(mode: str) -> None:
    """Decoding requests beside a chunk of prefill; a draft model's extend behind a prefix."""
    engine = Engine(Shape())
    stock, compact = engine.pair()
    prefixes, new = [100, 300, 0, 7], [1, 1, 64, 4]
    requests = engine.place([101, 301, 64, 11])
    batch = extend_batch(engine, requests, prefixes, new)
    batch.forward_mode = type(batch.forward_mode)[mode]
    inputs = engine.inputs(sum(new))
    expected = run_eager(engine, stock, batch, inputs)
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected)


@pytest.mark.parametrize("ours", ["prefill", "decode"])
def test_one_half_of_a_split_backend_equals_stock(ours: str) -> None:
    module = importlib.import_module("sglang.srt.layers.attention.hybrid_attn_backend")
    engine = Engine(Shape())
    stock, compact = engine.pair()
    prefill, decode = (compact, stock) if ours == "prefill" else (stock, compact)
    split = module.HybridAttnBackend(engine.runner, prefill, decode)
    requests = engine.place([length + 1 for length in LENGTHS])
    for batch, tokens in (
        (extend_batch(engine, requests, [100, 0, 600, 60], [30, 1, 100, 4]), 135),
        (decode_batch(engine, requests, [length + 1 for length in LENGTHS]), 4),
    ):
        inputs = engine.inputs(tokens)
        expected = run_eager(engine, stock, batch, inputs)
        assert_same_bits(run_eager(engine, split, batch, inputs), expected)


def test_an_idle_rank_leaves_the_next_step_right() -> None:
    """Data-parallel attention pads a rank without requests, and replays a graph all the same."""
    engine = Engine(Shape())
    stock, compact = engine.pair()
    captured, control = (capture_one(engine, backend, 4) for backend in (compact, stock))
    nobody = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    idle = decode_batch(engine, nobody, [1, 1, 1])
    idle.forward_mode = type(idle.forward_mode)["IDLE"]
    batch = decode_batch(engine, engine.place(LENGTHS), LENGTHS)
    inputs = engine.inputs(4)
    expected = run_eager(engine, stock, batch, inputs)
    run_eager(engine, compact, idle, engine.inputs(3))
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected, "eager")
    captured.replay(decode_batch(engine, nobody[:0], []), engine.inputs(0))
    graphed = control.replay(batch, inputs)
    assert_same_bits(captured.replay(batch, inputs), graphed, "captured")


def test_a_batch_larger_than_the_pool_of_requests_stops_as_in_stock() -> None:
    engine = Engine(Shape(requests=2))
    nobody = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    batch, inputs = decode_batch(engine, nobody, [1] * 4), engine.inputs(4)
    for backend in engine.pair():
        with pytest.raises(RuntimeError, match="must match"):
            run_eager(engine, backend, batch, inputs)


def test_two_batches_may_take_their_layers_in_turn() -> None:
    """Two-batch overlap: two backends on one stream share the buffer."""
    engine = Engine(Shape(layers=3))
    stock, halves = engine.make(STOCK), [engine.make(COMPACT), engine.make(COMPACT)]
    assert (
        halves[0].readings.gathered.buffer.data_ptr()
        == halves[1].readings.gathered.buffer.data_ptr()
    )
    requests = engine.place(LENGTHS)
    batches = [
        decode_batch(engine, requests[part], LENGTHS[part]) for part in (slice(2), slice(2, 4))
    ]
    inputs = [engine.inputs(2) for _ in batches]
    expected = [run_eager(engine, stock, *half) for half in zip(batches, inputs, strict=True)]
    outputs: list[list[torch.Tensor]] = [[], []]
    with torch.no_grad():
        for half, batch in zip(halves, batches, strict=True):
            half.init_forward_metadata(batch)
        for layer in range(engine.shape.layers):
            for index, half in enumerate(halves):
                step = one_layer(engine, half, batches[index], inputs[index], layer)
                outputs[index].append(step)
    for index in range(2):
        assert_same_bits(outputs[index], expected[index], f"batch {index}")


def test_two_captured_batches_may_take_their_layers_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one graph, as upstream captures overlapping batches: planned one after the other."""
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "gather")
    engine = Engine(Shape(layers=3))
    halves = [capture_one(engine, engine.make(COMPACT), 2) for _ in range(2)]
    controls = [capture_one(engine, engine.make(STOCK), 2) for _ in range(2)]

    def step() -> list[torch.Tensor]:
        for half in halves:
            half.backend.init_forward_metadata_in_graph(half.batch)
        return [
            one_layer(engine, half.backend, half.batch, half.inputs, layer)
            for layer in range(engine.shape.layers)
            for half in halves
        ]

    with torch.no_grad():
        step()
        graph, outputs = capture(step)
    requests = engine.place(LENGTHS)
    expected = []
    for index, part in enumerate((slice(2), slice(2, 4))):
        batch = decode_batch(engine, requests[part], LENGTHS[part])
        inputs = engine.inputs(2)
        expected.append(controls[index].replay(batch, inputs))
        halves[index].load(batch, inputs)
    graph.replay()
    for index in range(2):
        assert_same_bits(outputs[index::2], expected[index], f"batch {index}")


def one_layer(
    engine: Engine, backend: Any, batch: Any, inputs: list[Inputs], layer: int
) -> torch.Tensor:
    alone: Any = SimpleNamespace(layers=[engine.layers[layer]])
    (output,) = forward(alone, backend, batch, [inputs[layer]])
    return output


class Counter:
    """Counts loaded layers of a hierarchical cache, and notes who waited for which."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    def wait_until(self, layer: int) -> None:
        self.waits.append(layer)


def test_layers_that_are_still_being_loaded_are_waited_for() -> None:
    engine = Engine(Shape())
    requests = engine.place(LENGTHS)
    batch, inputs = decode_batch(engine, requests, LENGTHS), engine.inputs(4)
    waits = []
    for backend in engine.pair():
        engine.pool.register_layer_transfer_counter(counter := Counter())
        run_eager(engine, backend, batch, inputs)
        waits.append(counter.waits)
    assert waits[0] == list(range(engine.shape.layers))
    assert list(dict.fromkeys(waits[1])) == waits[0]  # ours asks before it writes, too
