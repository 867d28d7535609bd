"""Stale rows, NaN bytes, odd pools and pools that change under the backend."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.captures import capture_one
from tests.gpu.compare import assert_same_bits, differs_in_bits
from tests.gpu.engine import DEVICE, DIM, Engine, Shape, dtype_name, make_pool
from tests.gpu.steps import decode_batch, extend_batch, run_eager, verify_batch

LENGTHS = [130, 1, 700, 64]
BUSY_CYCLES = 500_000_000  # a quarter of a second
NAN_BYTE = {torch.float8_e4m3fn: 0x7F, torch.float8_e5m2: 0x7E}


def poison(engine: Engine, active: torch.Tensor) -> None:
    """NaN bytes in slot 0 and in every slot that no request names."""
    inactive = torch.ones(engine.pool.kv_buffer[0].shape[0], dtype=torch.bool, device=DEVICE)
    inactive[active] = False
    assert inactive[0]
    for buffer in engine.pool.kv_buffer:
        buffer[inactive] = NAN_BYTE[engine.shape.dtype]


@pytest.mark.parametrize("dtype", list(NAN_BYTE), ids=dtype_name)
def test_nan_in_stale_rows_inactive_slots_and_slot_0_reaches_no_output(dtype: torch.dtype) -> None:
    engine = Engine(Shape(dtype=dtype))
    stock, compact = engine.pair()
    captured = capture_one(engine, compact, 8)
    requests = engine.place(LENGTHS)
    batch = decode_batch(engine, requests, LENGTHS)
    inputs = engine.inputs(4)
    expected = run_eager(engine, stock, batch, inputs)
    poison(engine, torch.cat(engine.slots_of(requests, LENGTHS)))
    compact.readings.gathered.buffer.fill_(float("nan"))
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected, "eager")

    graphed = capture_one(engine, stock, 8).replay(batch, inputs)  # four padded rows read slot 0
    compact.readings.gathered.buffer.fill_(float("nan"))
    assert_same_bits(captured.replay(batch, inputs), graphed, "captured")
    assert all(output.isfinite().all() for output in graphed)


@pytest.mark.parametrize("drafts", [0, 3], ids=["decode", "verify"])
def test_a_plan_that_the_device_has_yet_to_copy_is_not_written_over(drafts: int) -> None:
    """The host runs two steps ahead of a busy device, as where processes share one."""
    engine = Engine(Shape())
    stock, compact = engine.pair()
    captured, control = (capture_one(engine, one, 4, drafts) for one in (compact, stock))
    requests = engine.place([length + 8 for length in LENGTHS])
    steps = []
    for more in (1, 2):
        lengths = [length + more for length in LENGTHS]
        if drafts:
            batch = verify_batch(engine, requests, lengths, drafts)
        else:
            batch = decode_batch(engine, requests, lengths)
        steps.append((batch, engine.inputs(4 * max(1, drafts))))
    expected = []
    for step in steps:
        expected.append(control.replay(*step))
        torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    ahead = [captured.replay(*step) for step in steps]
    for outputs, wanted in zip(ahead, expected, strict=True):
        assert_same_bits(outputs, wanted)


def test_nan_in_stale_rows_reaches_no_extend() -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    requests = engine.place(LENGTHS)
    batch = extend_batch(engine, requests, [100, 0, 600, 60], [30, 1, 100, 4])
    inputs = engine.inputs(135)
    expected = run_eager(engine, stock, batch, inputs)
    poison(engine, torch.cat(engine.slots_of(requests, LENGTHS)))
    compact.readings.gathered.buffer.fill_(float("nan"))
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected)


def test_nan_that_a_request_reads_is_nan_in_both() -> None:
    engine = Engine(Shape(layers=1))
    stock, compact = engine.pair()
    requests = engine.place([40, 40])
    batch = decode_batch(engine, requests, [40, 40])
    engine.pool.kv_buffer[0][engine.req_to_token[1, 3].long(), 0, 5] = 0x7F
    inputs = engine.inputs(2)
    (expected,) = run_eager(engine, stock, batch, inputs)
    (actual,) = run_eager(engine, compact, batch, inputs)
    assert expected[0].isnan().any()
    assert torch.equal(actual.isnan(), expected.isnan())
    assert_same_bits([actual[1:]], [expected[1:]], "the request beside it")


def test_rows_with_a_stride_are_read_by_that_stride() -> None:
    engine = Engine(Shape())
    for layer, buffer in enumerate(engine.pool.kv_buffer):
        wide = torch.full((buffer.shape[0], 1, DIM + 64), 0x7F, dtype=torch.uint8, device=DEVICE)
        wide[..., :DIM] = buffer
        engine.pool.kv_buffer[layer] = wide[..., :DIM]
    stock, compact = engine.pair()
    batch = decode_batch(engine, engine.place(LENGTHS), LENGTHS)
    inputs = engine.inputs(4)
    expected = run_eager(engine, stock, batch, inputs)
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected)


def test_a_pool_that_is_swapped_or_allocated_anew_is_the_one_that_is_read() -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    batch = decode_batch(engine, engine.place(LENGTHS), LENGTHS)
    inputs = engine.inputs(4)
    before = run_eager(engine, compact, batch, inputs)

    engine.pool._clear_buffers()
    engine.pool._create_buffers()
    engine.fill_pool()
    expected = run_eager(engine, stock, batch, inputs)
    assert differs_in_bits(before, expected)
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected, "allocated anew")

    engine.pool = make_pool(engine.shape)
    engine.fill_pool()
    stock.token_to_kv_pool = compact.token_to_kv_pool = engine.pool
    other = run_eager(engine, stock, batch, inputs)
    assert differs_in_bits(other, expected)
    assert_same_bits(run_eager(engine, compact, batch, inputs), other, "swapped")


def test_steps_in_inference_mode_and_outside_of_it_may_alternate() -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    batch = decode_batch(engine, engine.place(LENGTHS), LENGTHS)
    inputs = engine.inputs(4)
    expected = run_eager(engine, stock, batch, inputs)
    with torch.inference_mode():
        inside = run_eager(engine, compact, batch, inputs)
    outside = run_eager(engine, compact, batch, inputs)
    assert_same_bits([output.clone() for output in inside], expected, "inside")
    assert_same_bits(outside, expected, "outside")


def test_arrays_made_in_inference_mode_can_be_written_outside_of_it() -> None:
    engine = Engine(Shape(rows=4095))  # a size of its own, so that its buffer is new
    with torch.inference_mode():
        compact = engine.make("flashinfer_mla_compact")
    table = compact.readings.gathered.rows.table
    arrays = [
        compact.readings.gathered.buffer,
        compact.readings.gathered.rows.slots,
        compact.readings.gathered.rows.count,
    ]
    arrays += [table.stamps, table.row_of_slot]
    assert [array.is_inference() for array in arrays] == [False] * len(arrays)
