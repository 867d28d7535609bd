"""New keys lie in the pool as stock writes them, whatever their value."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.engine import COMPACT, DEVICE, DIM, MODEL_DTYPE, NOPE, Engine, Shape, dtype_name

TOKENS = 114  # of 576 values: every 16-bit code, the first ones twice


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=dtype_name)
def test_every_value_is_written_as_stock_writes_it(dtype: torch.dtype) -> None:
    engine = Engine(Shape(dtype=dtype, rows=256))
    compact, pool, layer = engine.make(COMPACT), engine.pool, engine.layers[1]
    codes = torch.arange(TOKENS * DIM, device=DEVICE) % 2**16
    keys = codes.to(torch.int16).view(MODEL_DTYPE).view(TOKENS, 1, DIM)
    slots = engine.random_slots(TOKENS)
    slots[7] = 0  # of padded tokens: newer releases leave it alone
    before = pool.get_key_buffer(layer.layer_id).clone()

    pool.set_mla_kv_buffer(layer, slots, keys[..., :NOPE], keys[..., NOPE:])
    expected = pool.get_key_buffer(layer.layer_id).clone()
    pool.get_key_buffer(layer.layer_id).copy_(before)
    with compact._keys_for_reading():
        reader = compact.token_to_kv_pool
        reader.set_mla_kv_buffer(layer, slots, keys[..., :NOPE], keys[..., NOPE:])
    written = pool.get_key_buffer(layer.layer_id)

    differs = written.view(torch.uint8) != expected.view(torch.uint8)
    nan = written.float().isnan() & expected.float().isnan()
    assert (differs & ~nan).nonzero().tolist() == []
    assert (expected.view(torch.uint8) != before.view(torch.uint8)).any(-1).sum() >= TOKENS - 1
