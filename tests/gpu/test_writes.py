"""New keys lie in the pool as stock writes them, whatever their value and however high the slot."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.engine import COMPACT, DEVICE, DIM, MODEL_DTYPE, NOPE, Engine, Shape, dtype_name

TOKENS = 114  # of 576 values: every 16-bit code, the first ones twice
# 576 bytes a row: from this slot on, offsets do not fit in 32 bits with a sign.
FIRST_HIGH = 2**31 // DIM + 1
HIGH_ROWS = 4_000_000


def written_by_both(
    engine: Engine, slots: torch.Tensor, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A layer before new keys, with those that the pool wrote, and with those that we wrote.

    Args:
        engine: the last layer of its pool is written.
        slots: [tokens] int64.
        keys: [tokens, 1, 576], bfloat16.

    Returns:
        Three tensors of [pool rows, 1, 576] in the pool's dtype.
    """
    compact, pool, layer = engine.make(COMPACT), engine.pool, engine.layers[-1]
    rows = pool.get_key_buffer(layer.layer_id)
    before = rows.clone()
    pool.set_mla_kv_buffer(layer, slots, keys[..., :NOPE], keys[..., NOPE:])
    expected = rows.clone()
    rows.copy_(before)
    compact._reading = compact.readings.decode
    compact._run_layer(
        lambda: compact.token_to_kv_pool.set_mla_kv_buffer(
            layer, slots, keys[..., :NOPE], keys[..., NOPE:]
        )
    )
    return before, expected, rows


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=dtype_name)
def test_every_value_is_written_as_stock_writes_it(dtype: torch.dtype) -> None:
    engine = Engine(Shape(dtype=dtype, rows=256))
    codes = torch.arange(TOKENS * DIM, device=DEVICE) % 2**16
    keys = codes.to(torch.int16).view(MODEL_DTYPE).view(TOKENS, 1, DIM)
    slots = engine.random_slots(TOKENS)
    slots[7] = 0  # of padded tokens: newer releases leave it alone
    before, expected, written = written_by_both(engine, slots, keys)

    differs = written.view(torch.uint8) != expected.view(torch.uint8)
    nan = written.float().isnan() & expected.float().isnan()
    assert (differs & ~nan).nonzero().tolist() == []
    assert (expected.view(torch.uint8) != before.view(torch.uint8)).any(-1).sum() >= TOKENS - 1


def test_slots_beyond_32_bit_offsets_are_written_where_they_are() -> None:
    engine = Engine(Shape(rows=HIGH_ROWS, layers=1))
    last = engine.shape.page_size + engine.shape.rows - 1
    edges = torch.tensor([FIRST_HIGH - 1, FIRST_HIGH, last], device=DEVICE)
    low, high = random_from(engine, 1), random_from(engine, FIRST_HIGH + 1)
    slots = torch.cat([low, edges, high])
    keys = engine.random(len(slots), 1, DIM)
    before, expected, written = written_by_both(engine, slots, keys)

    old, right, new = (rows.view(torch.uint8).view(-1, DIM) for rows in (before, expected, written))
    assert torch.equal(new, right)
    assert torch.equal(new[slots], keys.to(engine.shape.dtype).view(torch.uint8).view(-1, DIM))
    assert (new != old).any(-1).nonzero().squeeze(1).tolist() == sorted(slots.tolist())


def random_from(engine: Engine, first: int) -> torch.Tensor:
    """Distinct slots of the 250,000 from `first` on, two apart: each has an untouched neighbour."""
    places = torch.randperm(125_000, generator=engine.generator, device=DEVICE)[:TOKENS]
    return first + 2 * places
