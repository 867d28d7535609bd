"""Write a layer's new keys to the pool and fill the compact buffer, in one launch.

The rows that a step attends to are those that the pool held before it, which are gathered, and
those of its new tokens, which are cast here anyway. They have nothing to wait for in each other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from sglang.srt.layers.attention.flashinfer_mla_compact.gather import (
    ROWS_PER_TILE,
    WARPS,
    decode_byte,
    gather_tiles,
)
from sglang.srt.layers.attention.flashinfer_mla_compact.launch import Launcher
from sglang.srt.layers.attention.flashinfer_mla_compact.rows import CompactRows, NewRows
from sglang.srt.layers.attention.flashinfer_mla_compact.write import NOPE, ROPE, NewKeys, write_row


@triton.jit
def _fill_new(
    token,
    pool,
    pool_stride,
    nope,
    nope_stride,
    rope,
    rope_stride,
    written,
    written_stride,
    found,
    out,
    IS_E4M3: tl.constexpr,
    TOP: tl.constexpr,
    RESERVED: tl.constexpr,
):
    """A token's key: to its slot and, as the pool then holds it, to its row, if it has one."""
    wide = token.to(tl.int64)
    slot = tl.load(written + wide * written_stride).to(tl.int64)
    row = tl.load(found + token).to(tl.int64)
    if slot != RESERVED:
        place = pool.to(tl.pointer_type(tl.uint8), bitcast=True) + slot * (pool_stride * 4)
        latent, rotary = write_row(
            place, nope + wide * nope_stride, rope + wide * rope_stride, IS_E4M3, TOP
        )
        if row >= 0:
            target = out + row * (NOPE + ROPE)
            kind = out.dtype.element_ty
            value = decode_byte(latent.to(tl.uint32), 0, IS_E4M3)
            tl.store(target + tl.arange(0, NOPE), value.to(kind))
            value = decode_byte(rotary.to(tl.uint32), 0, IS_E4M3)
            tl.store(target + NOPE + tl.arange(0, ROPE), value.to(kind))


@triton.jit(do_not_specialize=["capacity"])
def fill_rows_kernel(
    pool,  # *int32, the layer's rows seen as 144 words
    pool_stride,  # words from one slot to the next
    nope,  # *bf16 or *fp16 [tokens, 512]
    nope_stride,
    rope,  # *bf16 or *fp16 [tokens, 64]
    rope_stride,
    written,  # *int64 [tokens]
    written_stride,
    found,  # *int32 [tokens]
    slots,  # *int32 [capacity]
    count,  # *int32 [1]
    out,  # *bf16 or *fp16 [capacity, 576]
    capacity,
    IS_E4M3: tl.constexpr,
    TOP: tl.constexpr,
    RESERVED: tl.constexpr,
    TILE: tl.constexpr,
    GATHERERS: tl.constexpr,
):
    """The first programs take a token each, the last GATHERERS the tiles of what is known."""
    tokens = tl.num_programs(0) - GATHERERS
    program = tl.program_id(0)
    if program < tokens:
        _fill_new(
            program,
            pool,
            pool_stride,
            nope,
            nope_stride,
            rope,
            rope_stride,
            written,
            written_stride,
            found,
            out,
            IS_E4M3,
            TOP,
            RESERVED,
        )
    else:
        rows = tl.minimum(tl.load(count), capacity)
        program -= tokens
        gather_tiles(program, GATHERERS, pool, pool_stride, slots, rows, out, IS_E4M3, TILE, True)


launch_fill = Launcher(fill_rows_kernel, WARPS)


class Fill:
    """Writes the new keys of each layer of a step and fills the compact buffer.

    Args:
        new: of the step.
        rows: of the step.
        out: [capacity, 1, 576], contiguous, bfloat16 or float16.
        programs: size of the grid that gathers, from `grid_programs`.
        dtype: of the pool, float8_e4m3fn or float8_e5m2.
        top: from `top_code` for this dtype.
        reserved: the slot that keeps what it holds, the sink of padded tokens; -1 for none.
    """

    def __init__(
        self,
        new: NewRows,
        rows: CompactRows,
        out: torch.Tensor,
        programs: int,
        dtype: torch.dtype,
        top: int,
        reserved: int,
    ) -> None:
        self.new = new
        self._launch = launch_fill.bind(
            new.slots.shape[0] + programs,
            new.slots,
            new.slots.stride(0),
            new.rows,
            rows.slots,
            rows.count,
            out,
            out.shape[0],
            dtype == torch.float8_e4m3fn,
            top,
            reserved,
            ROWS_PER_TILE,
            programs,
        )

    def __call__(self, keys: NewKeys) -> None:
        """Write `keys`, and `out[:rows.count]` as the pool holds it then, cast.

        Args:
            keys: of one layer, for the slots of `new`; with this dtype, `top` and `reserved`.
        """
        self._launch(keys.pool.view(torch.int32), keys.nope, keys.rope)
