"""The gather kernel: FP8 rows come out as torch casts them, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.gather.gather import (
    gather_rows,
    grid_programs,
)

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DIM = 576
GUARD = 64
UNTOUCHED = 7.0
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
OUTPUTS = (torch.bfloat16, torch.float16)


def random_pool(rows: int, dtype: torch.dtype, width: int = DIM) -> torch.Tensor:
    """[rows, 1, 576] of random bytes, every byte value among them; width sets the row stride."""
    generator = torch.Generator().manual_seed(rows)
    pool = torch.randint(0, 256, (rows, 1, width), dtype=torch.uint8, generator=generator)
    pool[0, 0, :256] = torch.arange(256, dtype=torch.uint8)
    return pool[..., :DIM].view(dtype)


def guarded(capacity: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """An output of `capacity` rows, and the allocation around it, whose other rows must stay."""
    whole = torch.full((capacity + 2 * GUARD, 1, DIM), UNTOUCHED, dtype=dtype)
    return whole[GUARD : GUARD + capacity], whole


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal bit for bit; NaNs are equal whatever their payload."""
    equal = actual.view(torch.int16) == expected.view(torch.int16)
    return bool((equal | (actual.isnan() & expected.isnan())).all())


def gather(
    pool: torch.Tensor, slots: list[int], count: int, out: torch.Tensor, programs: int = 4
) -> None:
    named = torch.tensor(slots, dtype=torch.int32)
    gather_rows(pool, named, torch.tensor([count], dtype=torch.int32), out, programs)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("dtype", FP8)
def test_every_byte_value_comes_out_as_torch_casts_it(
    dtype: torch.dtype, output: torch.dtype
) -> None:
    pool = random_pool(1, dtype)
    out, _ = guarded(1, output)
    gather(pool, [0], 1, out)
    assert same_bits(out, pool.to(output))


@pytest.mark.parametrize("output", OUTPUTS)
def test_special_codes_stay_special_and_keep_their_sign(output: torch.dtype) -> None:
    e4m3 = torch.zeros((1, 1, DIM), dtype=torch.uint8)
    e4m3[0, 0, :2] = torch.tensor([0x7F, 0xFF], dtype=torch.uint8)
    out, _ = guarded(1, output)
    gather(e4m3.view(torch.float8_e4m3fn), [0], 1, out)
    assert out[0, 0, :2].isnan().all()
    assert not out[0, 0, 2:].any()

    e5m2 = torch.zeros((1, 1, DIM), dtype=torch.uint8)
    e5m2[0, 0, :4] = torch.tensor([0x7C, 0xFC, 0x7D, 0xFF], dtype=torch.uint8)
    gather(e5m2.view(torch.float8_e5m2), [0], 1, out)
    assert out[0, 0, :2].tolist() == [float("inf"), float("-inf")]
    assert out[0, 0, 2:4].isnan().all()


@pytest.mark.parametrize("programs", [1, 3, 64])
def test_scattered_slots_land_in_row_order_whatever_the_grid(programs: int) -> None:
    pool = random_pool(50, torch.float8_e4m3fn)
    slots = [49, 0, 17, 17, 3, 48, 1, 30, 31, 2, 44]
    out, _ = guarded(len(slots), torch.bfloat16)
    gather(pool, slots, len(slots), out, programs)
    assert same_bits(out, pool[torch.tensor(slots)].to(torch.bfloat16))


@pytest.mark.parametrize("count", [0, 1, 8, 9, 19, 20])
def test_rows_past_the_count_stay_as_they_are(count: int) -> None:
    capacity = 20
    pool = random_pool(40, torch.float8_e5m2)
    slots = list(range(39, 39 - capacity, -1))
    out, whole = guarded(capacity, torch.bfloat16)
    gather(pool, slots, count, out)
    wanted = pool[torch.tensor(slots[:count], dtype=torch.int64)].to(torch.bfloat16)
    assert same_bits(out[:count], wanted)
    assert (whole[GUARD + count :] == UNTOUCHED).all()
    assert (whole[:GUARD] == UNTOUCHED).all()


@pytest.mark.parametrize("above", [1, 8, 52])
def test_a_count_above_capacity_never_writes_past_the_end(above: int) -> None:
    capacity = 12
    pool = random_pool(30, torch.float8_e4m3fn)
    slots = list(range(capacity)) + [29] * above
    out, whole = guarded(capacity, torch.bfloat16)
    gather(pool, slots, capacity + above, out)
    assert same_bits(out, pool[:capacity].to(torch.bfloat16))
    assert (whole[:GUARD] == UNTOUCHED).all()
    assert (whole[GUARD + capacity :] == UNTOUCHED).all()


@pytest.mark.parametrize("width", [580, 640, 3 * DIM])
def test_row_stride_comes_from_the_tensor(width: int) -> None:
    pool = random_pool(20, torch.float8_e4m3fn, width)
    assert pool.stride(0) == width
    out, _ = guarded(3, torch.float16)
    gather(pool, [19, 5, 0], 3, out)
    assert same_bits(out, pool[torch.tensor([19, 5, 0])].to(torch.float16))


def test_a_wrong_row_would_be_seen() -> None:
    pool = random_pool(6, torch.float8_e4m3fn)
    out, _ = guarded(2, torch.bfloat16)
    gather(pool, [4, 5], 2, out)
    assert not same_bits(out, pool[torch.tensor([4, 3])].to(torch.bfloat16))


def test_the_interpreter_gets_a_grid_of_its_own() -> None:
    assert grid_programs(torch.device("cpu")) > 0
