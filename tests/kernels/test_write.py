"""The write kernel: new keys lie as torch casts them, each in its slot, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.pool.format import PoolFormat, top_code
from sglang.srt.layers.attention.flashinfer_mla_compact.pool.write import write_rows

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NOPE, ROPE = 512, 64
DIM = NOPE + ROPE
UNTOUCHED = 0x55
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
MODELS = (torch.bfloat16, torch.float16)


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 values of a 16-bit dtype, [114, 1, 576], the last ones repeated."""
    codes = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    return codes[torch.arange(114 * DIM) % 2**16].view(114, 1, DIM)


def empty_pool(rows: int, dtype: torch.dtype, width: int = DIM) -> torch.Tensor:
    whole = torch.full((rows, 1, width), UNTOUCHED, dtype=torch.uint8)
    return whole[..., :DIM].view(dtype)


def write(
    pool: torch.Tensor,
    slots: torch.Tensor,
    nope: torch.Tensor,
    rope: torch.Tensor,
    reserved: int = -1,
) -> None:
    top = top_code(pool.dtype, pool.device)
    write_rows(pool, slots, nope, rope, PoolFormat(pool.dtype, top, reserved))


def wrong_bytes(actual: torch.Tensor, expected: torch.Tensor) -> list[list[int]]:
    """Coordinates of bytes that differ; NaNs are equal whatever their code."""
    differs = actual.view(torch.uint8) != expected.view(torch.uint8)
    nan = actual.float().isnan() & expected.float().isnan()
    return (differs & ~nan).nonzero().tolist()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", FP8)
def test_every_value_is_cast_as_torch_does(dtype: torch.dtype, model: torch.dtype) -> None:
    keys = every_value(model)
    pool = empty_pool(len(keys), dtype)
    write(pool, torch.arange(len(keys)), keys[..., :NOPE], keys[..., NOPE:])
    assert wrong_bytes(pool, keys.to(dtype)) == []


@pytest.mark.parametrize("top", [0x7E, 0x7F])
def test_too_large_becomes_the_code_that_this_torch_uses(top: int) -> None:
    keys = torch.full((1, 1, DIM), 448.0).bfloat16()
    keys[..., :6] = torch.tensor([464.0, 466.0, 480.0, -3e38, float("inf"), float("nan")])
    pool = empty_pool(1, torch.float8_e4m3fn)
    slots = torch.zeros(1, dtype=torch.int64)
    form = PoolFormat(pool.dtype, top, -1)
    write_rows(pool, slots, keys[..., :NOPE], keys[..., NOPE:], form)
    *codes, nan, plain = pool.view(torch.uint8)[0, 0, :7].tolist()
    assert codes == [0x7E, top, top, 0x80 | top, top]
    assert (nan & 0x7F, plain) == (0x7F, 0x7E)


@pytest.mark.parametrize("width", [DIM, 640])
def test_each_key_lands_in_its_slot_and_nothing_else_is_written(width: int) -> None:
    keys = torch.randn(3, 1, DIM, generator=torch.Generator().manual_seed(3)).bfloat16()
    pool = empty_pool(8, torch.float8_e4m3fn, width)
    slots = torch.tensor([6, 1, 4])
    write(pool, slots, keys[..., :NOPE], keys[..., NOPE:])
    expected = empty_pool(8, torch.float8_e4m3fn)
    expected[slots] = keys.to(torch.float8_e4m3fn)
    assert wrong_bytes(pool, expected) == []


def test_the_slot_of_padded_tokens_keeps_what_it_holds() -> None:
    keys = torch.randn(3, 1, DIM, generator=torch.Generator().manual_seed(4)).bfloat16()
    keys[[0, 2]] = float("nan")
    pool = empty_pool(4, torch.float8_e4m3fn)
    write(pool, torch.tensor([0, 3, 0]), keys[..., :NOPE], keys[..., NOPE:], reserved=0)
    expected = empty_pool(4, torch.float8_e4m3fn)
    expected[3] = keys[1].to(torch.float8_e4m3fn)
    assert wrong_bytes(pool, expected) == []


def test_latent_and_rope_may_lie_apart_with_strides_of_their_own() -> None:
    nope = torch.randn(4, 1, NOPE).bfloat16()
    rope = torch.randn(4, 1, 3 * ROPE).bfloat16()[..., ROPE : 2 * ROPE]
    pool = empty_pool(4, torch.float8_e5m2)
    write(pool, torch.arange(4, dtype=torch.int32), nope, rope)
    assert wrong_bytes(pool, torch.cat([nope, rope], dim=-1).to(torch.float8_e5m2)) == []


@pytest.mark.parametrize("step", [0, 1, 2])
def test_keys_of_a_draft_step_lie_in_its_column_of_the_slots(step: int) -> None:
    """sglang lays slots out as requests x steps and hands each step a strided view of them."""
    slots = torch.tensor([[1, 2, 3], [9, 4, 7], [5, 0, 8]])
    keys = every_value(torch.bfloat16)[:3]
    pool, expected = empty_pool(10, FP8[0]), empty_pool(10, FP8[0])
    write(pool, slots[:, step], keys[..., :NOPE], keys[..., NOPE:])
    expected[slots[:, step]] = keys.to(FP8[0])
    assert wrong_bytes(pool, expected) == []
