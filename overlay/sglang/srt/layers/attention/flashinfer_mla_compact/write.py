"""Cast a step's new keys and write them to one layer of the FP8 pool, in one launch.

Upstream casts latent and rope by a kernel each and scatters the results by a third one. At small
batches launches are what a layer's attention costs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from sglang.srt.layers.attention.flashinfer_mla_compact.launch import Launcher

NOPE = tl.constexpr(512)
ROPE = tl.constexpr(64)
WARPS = 2  # 16 bytes a thread and load


@triton.jit
def encode(value, IS_E4M3: tl.constexpr, TOP: tl.constexpr):
    """float32 to FP8 codes as torch casts: to nearest even, what is too large to code `TOP`.

    In integers, as cards before SM89 can't convert to e4m3. Exponent and mantissa move to their
    places; a subnormal is aligned by adding a power of two whose last bit is worth the smallest
    subnormal.
    """
    bits = value.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    SHIFT: tl.constexpr = 20 if IS_E4M3 else 21
    UNBIAS: tl.constexpr = (127 - 7 if IS_E4M3 else 127 - 15) << 23
    ALIGN: tl.constexpr = (141 if IS_E4M3 else 134) << 23  # 2**14, 2**7
    odd = (magnitude >> SHIFT) & 1
    normal = (magnitude - UNBIAS + ((1 << (SHIFT - 1)) - 1) + odd) >> SHIFT
    unit = tl.full(magnitude.shape, ALIGN, tl.uint32).to(tl.float32, bitcast=True)
    aligned = magnitude.to(tl.float32, bitcast=True) + unit
    subnormal = aligned.to(tl.uint32, bitcast=True) - ALIGN
    code = tl.where(magnitude < UNBIAS + (1 << 23), subnormal, normal)
    code = tl.where(magnitude > 0x7F800000, 0x7F, tl.minimum(code, TOP))
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def write_row(row, nope, rope, IS_E4M3: tl.constexpr, TOP: tl.constexpr):
    """Cast one key to FP8 at `row`; the codes of latent and rope."""
    latent, rotary = tl.arange(0, NOPE), tl.arange(0, ROPE)
    latent_code = encode(tl.load(nope + latent).to(tl.float32), IS_E4M3, TOP)
    rotary_code = encode(tl.load(rope + rotary).to(tl.float32), IS_E4M3, TOP)
    tl.store(row + latent, latent_code)
    tl.store(row + NOPE + rotary, rotary_code)
    return latent_code, rotary_code


@triton.jit
def write_rows_kernel(
    pool,  # *uint8, the layer's rows
    pool_stride,
    slots,  # *int64 [tokens]
    slots_stride,
    nope,  # *bf16 or *fp16 [tokens, 512]
    nope_stride,
    rope,  # *bf16 or *fp16 [tokens, 64]
    rope_stride,
    IS_E4M3: tl.constexpr,
    TOP: tl.constexpr,
    RESERVED: tl.constexpr,
):
    """One program a token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token * slots_stride).to(tl.int64)
    if slot == RESERVED:
        return
    row = pool + slot * pool_stride
    write_row(row, nope + token * nope_stride, rope + token * rope_stride, IS_E4M3, TOP)


launch_write = Launcher(write_rows_kernel, WARPS)


class NewKeys(NamedTuple):
    """A step's new keys of one layer, and where they belong.

    Attributes:
        pool: [pool rows, 1, 576], float8_e4m3fn or float8_e5m2; the row stride is free.
        slots: [tokens] integers; the stride is free, as sglang's draft steps need.
        nope: [tokens, 1, 512], bfloat16 or float16; the row stride is free.
        rope: [tokens, 1, 64], of the same dtype; the row stride is free.
        top: from `top_code` for the pool's dtype.
        reserved: the slot that keeps what it holds, the sink of padded tokens; -1 for none.
    """

    pool: torch.Tensor
    slots: torch.Tensor
    nope: torch.Tensor
    rope: torch.Tensor
    top: int
    reserved: int


def write_rows(keys: NewKeys) -> None:
    """Write the keys, cast, to their slots."""
    rows = keys.pool.view(torch.uint8)
    launch_write(
        keys.slots.shape[0],
        rows,
        rows.stride(0),
        keys.slots,
        keys.slots.stride(0),
        keys.nope,
        keys.nope.stride(0),
        keys.rope,
        keys.rope.stride(0),
        keys.pool.dtype == torch.float8_e4m3fn,
        keys.top,
        keys.reserved,
    )


def top_code(dtype: torch.dtype, device: torch.device) -> int:
    """The code that this torch's cast to FP8 gives what is too large, on this device.

    e4m3 became saturating in torch: 448 where it used to be NaN.
    """
    return int(torch.full((1,), float("inf"), device=device).to(dtype).view(torch.uint8))
