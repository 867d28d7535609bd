"""Gather the active rows of one layer and cast them: FP8 pool -> compact buffer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..launch import Launcher
from ..support import KV_LORA_RANK, QK_ROPE_HEAD_DIM

# A row is read as words of four codes.
NOPE_WORDS = tl.constexpr(KV_LORA_RANK // 4)
ROPE_WORDS = tl.constexpr(QK_ROPE_HEAD_DIM // 4)

# A captured graph learns the row count on the device alone, so the grid must not depend on it.
# The fastest of the shapes timed on an H200: more programs than stay resident cost a fifth. The
# share of the copy bandwidth is `gather-alone` of bench/results/kernels.json.
PROGRAMS_PER_SM = 16
ROWS_PER_TILE = 4
WARPS = 2


@triton.jit
def decode_byte(word, SHIFT: tl.constexpr, IS_E4M3: tl.constexpr):
    """One byte of each 32-bit word as float32, exact, without a conversion instruction.

    Cards before SM89 can't convert e4m3. Exponent and mantissa are moved to where float32 has
    its own; one multiplication makes up for the bias and keeps subnormals exact. Codes that the
    cast maps to NaN or infinity are rebuilt from bits.
    """
    byte = (word >> SHIFT) & 0xFF
    sign = (byte & 0x80) << 24
    if IS_E4M3:
        magnitude = (byte & 0x7F) << 20
        scale: tl.constexpr = 1.329227995784916e36  # 2**(127 - 7)
        special = (byte & 0x7F) == 0x7F
    else:
        magnitude = (byte & 0x7F) << 21
        scale: tl.constexpr = 5.192296858534828e33  # 2**(127 - 15)
        special = (byte & 0x7F) >= 0x7C
    value = (sign | magnitude).to(tl.float32, bitcast=True) * scale
    rebuilt = (sign | magnitude | 0x7F800000).to(tl.float32, bitcast=True)
    return tl.where(special, rebuilt, value)


@triton.jit
def decode_words(words, IS_E4M3: tl.constexpr):
    """[rows, n] words -> [rows, 4 * n] float32, bytes in memory order."""
    even = tl.join(decode_byte(words, 0, IS_E4M3), decode_byte(words, 16, IS_E4M3))
    odd = tl.join(decode_byte(words, 8, IS_E4M3), decode_byte(words, 24, IS_E4M3))
    return tl.reshape(tl.join(even, odd), (words.shape[0], words.shape[1] * 4))


@triton.jit
def _load_rows(pool, pool_stride, slot, active):
    # 64 bits: 144 words a slot pass 2**31 at slot 14,913,081. A step reads the pool's bytes once.
    row = (pool + slot.to(tl.int64) * pool_stride)[:, None]
    nope = row + tl.arange(0, NOPE_WORDS)[None, :]
    rope = row + (tl.arange(0, ROPE_WORDS) + NOPE_WORDS)[None, :]
    return (
        tl.load(nope, mask=active[:, None], other=0, eviction_policy="evict_first"),
        tl.load(rope, mask=active[:, None], other=0, eviction_policy="evict_first"),
    )


@triton.jit
def _store_rows(out, row, nope, rope, active, IS_E4M3: tl.constexpr):
    target = (out + row.to(tl.int64) * ((NOPE_WORDS + ROPE_WORDS) * 4))[:, None]
    dtype = out.dtype.element_ty
    latent = target + tl.arange(0, NOPE_WORDS * 4)[None, :]
    tl.store(latent, decode_words(nope, IS_E4M3).to(dtype), mask=active[:, None])
    rotary = target + (tl.arange(0, ROPE_WORDS * 4) + NOPE_WORDS * 4)[None, :]
    tl.store(rotary, decode_words(rope, IS_E4M3).to(dtype), mask=active[:, None])


@triton.jit(do_not_specialize=["capacity"])
def gather_rows_kernel(
    pool,  # *int32, the layer's rows seen as 144 words
    pool_stride,  # words from one slot to the next
    slots,  # *int32 [capacity]
    count,  # *int32 [1]
    out,  # *bf16 or *fp16 [capacity, 576]
    capacity,
    IS_E4M3: tl.constexpr,
    TILE: tl.constexpr,
):
    """Every grid-th tile of the rows; one tile is on its way while one is stored."""
    rows = tl.minimum(tl.load(count), capacity)
    first = tl.program_id(0) * TILE
    step = tl.num_programs(0) * TILE
    row = first + tl.arange(0, TILE)
    slot = tl.load(slots + row, mask=row < rows, other=0)
    next_slot = tl.load(slots + row + step, mask=row + step < rows, other=0)
    active = row < rows
    nope, rope = _load_rows(pool, pool_stride, slot, active)
    for _ in range(first, rows, step):
        next_row = row + step
        next_active = next_row < rows
        next_nope, next_rope = _load_rows(pool, pool_stride, next_slot, next_active)
        next_slot = tl.load(slots + next_row + step, mask=next_row + step < rows, other=0)
        _store_rows(out, row, nope, rope, active, IS_E4M3)
        row = next_row
        active = next_active
        nope = next_nope
        rope = next_rope


launch_gather = Launcher(gather_rows_kernel, WARPS)


def grid_programs(device: torch.device) -> int:
    """Programs of the fixed grid on this device; 4 where there is no CUDA (the interpreter)."""
    if device.type != "cuda":
        return 4
    return PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


def gather_rows(
    key_buffer: torch.Tensor,
    slots: torch.Tensor,
    count: torch.Tensor,
    out: torch.Tensor,
    programs: int,
) -> None:
    """Cast rows `slots[:count]` of one layer into `out[:count]`; rows past count stay as they are.

    Args:
        key_buffer: [pool rows, 1, 576], float8_e4m3fn or float8_e5m2; the row stride is free, a
            multiple of 4 bytes.
        slots: [capacity] int32 pool rows.
        count: [1] int32 on the device; read by the kernel, so that a captured launch follows it.
        out: [capacity, 1, 576], contiguous, bfloat16 or float16.
        programs: size of the grid, from `grid_programs`.
    """
    words = key_buffer.view(torch.int32)
    launch_gather(
        programs,
        words,
        words.stride(0),
        slots,
        count,
        out,
        out.shape[0],
        key_buffer.dtype == torch.float8_e4m3fn,
        ROWS_PER_TILE,
    )
