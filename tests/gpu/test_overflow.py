"""A compact buffer smaller than the pool, and pools beyond 32-bit offsets."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.captures import capture_one
from tests.gpu.compare import assert_as_close_as_stock, assert_same_bits, reference
from tests.gpu.engine import COMPACT, DEVICE, DIM, Engine, Shape
from tests.gpu.steps import decode_batch, extend_batch, run_eager, verify_batch

GUARD = 64
# 576 bytes a row: offsets pass 2**31 at slot 3,728,271, and those of the 144 words that gathering
# sees at slot 14,913,081.
HIGH_ROWS, HIGH_WORD_ROWS = 4_000_000, 15_000_000


def guard_buffer(compact: object) -> torch.Tensor:
    """Put the backend's buffer between rows that a write past its ends would change."""
    capacity = compact.readings.gathered.buffer.shape[0]  # type: ignore[attr-defined]
    whole = torch.full((capacity + 2 * GUARD, 1, DIM), 3.0, dtype=torch.bfloat16, device=DEVICE)
    compact.readings.gathered.buffer = whole[GUARD : GUARD + capacity]  # type: ignore[attr-defined]
    return whole


def assert_guards_untouched(whole: torch.Tensor) -> None:
    assert bool((whole[:GUARD] == 3).all())
    assert bool((whole[-GUARD:] == 3).all())


@pytest.fixture
def one_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_BUFFER_MIB", "1")
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "auto")


@pytest.mark.usefixtures("one_mebibyte")
@pytest.mark.parametrize(
    "shape",
    [Shape(heads=16), Shape(heads=128), Shape(heads=16, dtype=torch.float8_e5m2)],
    ids=str,
)
def test_decode_is_right_when_the_buffer_is_smaller_than_the_step(shape: Shape) -> None:
    engine = Engine(shape)
    stock, compact = engine.pair()
    assert compact.readings.gathered.rows.capacity == 2**20 // (2 * DIM)
    whole = guard_buffer(compact)
    captured = capture_one(engine, compact, 8)
    lengths = [1200, 1, 65, 1500, 300]
    batch = decode_batch(engine, engine.place(lengths), lengths)
    inputs = engine.inputs(len(lengths))
    expected = run_eager(engine, stock, batch, inputs)
    exact = reference(engine, batch, inputs)
    assert_as_close_as_stock(run_eager(engine, compact, batch, inputs), expected, exact, "eager")
    assert_as_close_as_stock(captured.replay(batch, inputs), expected, exact, "captured")
    assert_guards_untouched(whole)


@pytest.mark.usefixtures("one_mebibyte")
def test_extend_is_right_whether_the_step_fits_the_buffer_or_not() -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    whole = guard_buffer(compact)
    fits, overflows = ([100, 0], [30, 200]), ([1200, 0, 800], [65, 33, 1])
    for prefixes, new in (fits, overflows, fits):
        lengths = [prefix + count for prefix, count in zip(prefixes, new, strict=True)]
        batch = extend_batch(engine, engine.place(lengths), prefixes, new)
        inputs = engine.inputs(sum(new))
        expected = run_eager(engine, stock, batch, inputs)
        actual = run_eager(engine, compact, batch, inputs)
        if compact._reading.name == "gather":
            assert sum(lengths) <= compact.readings.gathered.rows.capacity
            assert_same_bits(actual, expected, "fits")
        else:
            exact = reference(engine, batch, inputs)
            assert_as_close_as_stock(actual, expected, exact, "overflows")
        assert_guards_untouched(whole)


@pytest.mark.usefixtures("one_mebibyte")
def test_target_verify_is_right_when_the_buffer_is_smaller_than_the_step() -> None:
    engine, drafts = Engine(Shape()), 4
    stock, compact = engine.pair()
    whole = guard_buffer(compact)
    captured = capture_one(engine, compact, 4, drafts)
    prefixes = [1100, 3, 640]
    requests = engine.place([prefix + drafts for prefix in prefixes])
    batch = verify_batch(engine, requests, prefixes, drafts)
    inputs = engine.inputs(drafts * len(prefixes))
    expected = run_eager(engine, stock, batch, inputs)
    exact = reference(engine, batch, inputs)
    assert_as_close_as_stock(run_eager(engine, compact, batch, inputs), expected, exact, "eager")
    assert_as_close_as_stock(captured.replay(batch, inputs), expected, exact, "captured")
    assert_guards_untouched(whole)


def test_direct_decode_reads_no_nan_from_inactive_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "direct")
    engine = Engine(Shape())
    compact = engine.make("flashinfer_mla_compact")
    captured = capture_one(engine, compact, 8)
    lengths = [130, 1, 700, 64]
    requests = engine.place(lengths)
    batch = decode_batch(engine, requests, lengths)
    inputs = engine.inputs(4)
    expected = run_eager(engine, compact, batch, inputs)
    inactive = torch.ones(engine.pool.kv_buffer[0].shape[0], dtype=torch.bool, device=DEVICE)
    inactive[torch.cat(engine.slots_of(requests, lengths))] = False
    for buffer in engine.pool.kv_buffer:
        buffer[inactive] = 0x7F
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected, "eager")
    assert all(output.isfinite().all() for output in captured.replay(batch, inputs))


@pytest.mark.usefixtures("one_mebibyte")
def test_slots_beyond_32_bit_offsets_are_read_where_they_are() -> None:
    engine = Engine(Shape(rows=HIGH_ROWS, layers=1))
    stock, compact = engine.pair()
    lengths = [200, 31]
    slots = highest_slots(engine, sum(lengths))
    slots[::7] -= 3_900_000  # low ones among them
    batch = decode_batch(engine, engine.place(lengths, slots=slots), lengths)
    inputs = engine.inputs(2)
    expected = run_eager(engine, stock, batch, inputs)
    actual = run_eager(engine, compact, batch, inputs)
    assert compact._reading.name == "direct"
    assert_as_close_as_stock(actual, expected, reference(engine, batch, inputs), "direct")


@pytest.mark.usefixtures("one_mebibyte")
def test_slots_beyond_32_bit_word_offsets_are_gathered_from_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against the same rows at low slots: stock would cast the whole pool, 17 GB of it."""
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "gather")
    engine = Engine(Shape(rows=HIGH_WORD_ROWS, layers=1))
    compact = engine.make(COMPACT)
    prefixes, new = [200, 31], [3, 2]
    lengths = [203, 33]
    high = highest_slots(engine, sum(lengths))
    low = high - 14_920_000
    (rows,) = engine.pool.kv_buffer
    rows[low] = engine.random(len(low), 1, DIM).to(engine.shape.dtype).view(rows.dtype)
    rows[high] = rows[low]
    inputs, outputs = engine.inputs(sum(new)), []
    for slots in (low, high):
        batch = extend_batch(engine, engine.place(lengths, slots=slots), prefixes, new)
        outputs.append(run_eager(engine, compact, batch, inputs))
        assert compact._reading.name == "gather"
        assert int(compact.readings.gathered.rows.count) == sum(lengths)
    assert_same_bits(outputs[1], outputs[0], "high against low")


def highest_slots(engine: Engine, count: int) -> torch.Tensor:
    """In no order."""
    last = engine.shape.page_size + engine.shape.rows - 1
    return last - torch.randperm(count, generator=engine.generator, device=DEVICE)
