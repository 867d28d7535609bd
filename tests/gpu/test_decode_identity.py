"""Decode is bit-identical to stock on the same runner: eager, captured, padded, shared prefixes."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.captures import capture_one, capture_sizes
from tests.gpu.compare import assert_same_bits, differs_in_bits
from tests.gpu.engine import Engine, Shape
from tests.gpu.steps import decode_batch, forward, run_eager

SHAPES = [
    Shape(heads=8),
    Shape(heads=16, dtype=torch.float8_e5m2),
    Shape(heads=64, page_size=16),
    Shape(heads=128, page_size=64, dtype=torch.float8_e5m2),
]
BATCHES = [[1], [1500], [1, 1, 1], [700, 1, 63, 64, 65, 1025, 200, 300]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_eager_and_captured_decode_equal_stock(shape: Shape) -> None:
    engine = Engine(shape)
    stock, compact = engine.pair()
    captured = capture_sizes(engine, compact, (8, 3, 1))
    control = capture_sizes(engine, stock, (8, 3, 1))
    for lengths in BATCHES:
        batch = decode_batch(engine, engine.place(lengths), lengths)
        inputs = engine.inputs(len(lengths))
        expected = run_eager(engine, stock, batch, inputs)
        assert_same_bits(run_eager(engine, compact, batch, inputs), expected, f"eager {lengths}")
        size = len(lengths)
        graphed = control[size].replay(batch, inputs)
        assert_same_bits(captured[size].replay(batch, inputs), graphed, f"captured {lengths}")


@pytest.mark.parametrize("page_size", [1, 16, 32, 64])
def test_slots_are_tokens_whatever_the_page_size(page_size: int) -> None:
    engine = Engine(Shape(page_size=page_size))
    stock, compact = engine.pair()
    lengths = [130, 17, 64, 63]
    batch = decode_batch(engine, engine.place(lengths), lengths)
    inputs = engine.inputs(len(lengths))
    expected = run_eager(engine, stock, batch, inputs)
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected)


def test_200_replays_follow_growing_lengths_and_moving_slots() -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    captured, control = (capture_one(engine, backend, 4) for backend in (compact, stock))
    lengths = [1, 50, 300, 650]
    for step in range(200):
        if step % 10 == 0:  # other slots than before; in between each request grows by one token
            slots = engine.random_slots(sum(lengths) + 10 * len(lengths))
            engine.place([length + 10 for length in lengths], slots=slots)
        batch = decode_batch(engine, torch.arange(1, 5, device="cuda"), lengths)
        inputs = engine.inputs(4)
        expected = control.replay(batch, inputs)
        assert_same_bits(captured.replay(batch, inputs), expected, f"replay {step}")
        lengths = [length + 1 for length in lengths]


@pytest.mark.parametrize("real", [1, 2, 3])
def test_padded_rows_change_nothing(real: int) -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    captured, control = (capture_one(engine, backend, 4) for backend in (compact, stock))
    lengths = [400, 1, 77][:real]
    batch = decode_batch(engine, engine.place(lengths), lengths)
    inputs = engine.inputs(real)
    expected = control.replay(batch, inputs)
    assert_same_bits(captured.replay(batch, inputs), expected)


def test_a_shared_prefix_far_above_the_pool_is_gathered_once() -> None:
    prefix, requests = 8192, 64
    engine = Engine(Shape(rows=12288, requests=requests, context=prefix + 64, layers=1))
    stock, compact = engine.pair()
    lengths = [prefix + 1 + request % 40 for request in range(requests)]
    assert sum(lengths) > 40 * engine.shape.rows
    batch = decode_batch(engine, engine.place(lengths, shared=prefix), lengths)
    inputs = engine.inputs(requests)
    captured = capture_one(engine, compact, requests)
    expected = run_eager(engine, stock, batch, inputs)
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected, "eager")
    graphed = capture_one(engine, stock, requests).replay(batch, inputs)
    assert_same_bits(captured.replay(batch, inputs), graphed, "captured")
    distinct = torch.cat(engine.slots_of(batch.req_pool_indices, lengths)).unique()
    assert compact.readings.gathered.rows.count.item() == distinct.numel()


def test_one_row_gathered_wrong_is_seen() -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    lengths = [300, 20]
    batch = decode_batch(engine, engine.place(lengths), lengths)
    inputs = engine.inputs(2)
    expected = run_eager(engine, stock, batch, inputs)
    compact.init_forward_metadata(batch)
    compact.readings.gathered.rows.slots[7] = compact.readings.gathered.rows.slots[8]
    assert differs_in_bits(forward(engine, compact, batch, inputs), expected)
