"""Cast a step's new keys and write them to one layer of the FP8 pool, in one launch.

Upstream casts latent and rope by a kernel each and scatters the results by a third one. At small
batches launches are what a layer's attention costs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..launch import Launcher
from ..support import KV_LORA_RANK, QK_ROPE_HEAD_DIM
from .format import PoolFormat

NOPE = tl.constexpr(KV_LORA_RANK)
ROPE = tl.constexpr(QK_ROPE_HEAD_DIM)
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


# Slots may be a view of a draft step's column, or of a part of a step.
@triton.jit(do_not_specialize=["slots_stride"], do_not_specialize_on_alignment=["slots"])
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
    nope += token * nope_stride
    rope += token * rope_stride
    latent, rotary = tl.arange(0, NOPE), tl.arange(0, ROPE)
    tl.store(row + latent, encode(tl.load(nope + latent).to(tl.float32), IS_E4M3, TOP))
    tl.store(row + NOPE + rotary, encode(tl.load(rope + rotary).to(tl.float32), IS_E4M3, TOP))


launch_write = Launcher(write_rows_kernel, WARPS)


def write_rows(
    rows: torch.Tensor,
    slots: torch.Tensor,
    nope: torch.Tensor,
    rope: torch.Tensor,
    form: PoolFormat,
) -> None:
    """Write a step's new keys of one layer, cast, to their slots.

    Args:
        rows: [pool rows, 1, 576] in the pool's dtype; the row stride is free.
        slots: [tokens] integers; the stride is free, as sglang's draft steps need.
        nope: [tokens, 1, 512], bfloat16 or float16; the row stride is free.
        rope: [tokens, 1, 64], of the same dtype; the row stride is free.
        form: of the pool.
    """
    codes = rows.view(torch.uint8)
    launch_write(
        slots.shape[0],
        codes,
        codes.stride(0),
        slots,
        slots.stride(0),
        nope,
        nope.stride(0),
        rope,
        rope.stride(0),
        form.is_e4m3,
        form.top_code,
        form.reserved_slot,
    )
