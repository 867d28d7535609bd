"""Split-KV MLA attention over FP8 rows, in Triton, for every card.

Both matrix products run on float16 operands. Every finite FP8 value is a float16 value, and the
hardware turns e4m3 into float16 in one instruction, but into bfloat16 in four. A query row is first
multiplied by a power of two that puts its largest element in [2**12, 2**13): bfloat16 has
three mantissa bits fewer than float16, so nothing above 2**-26 of that element is rounded.
The probabilities keep eleven bits of mantissa, three more than in bfloat16.
"""

import triton
import triton.language as tl

from ..work import (
    ITEM_BEGIN,
    ITEM_END,
    ITEM_FIELDS,
    ITEM_FIRST_SLOT,
    ITEM_LENGTH,
    ITEM_PART,
    ITEM_QUERY,
    ITEM_TOKENS,
    ITEM_ZERO,
    NOPE,
    ROPE,
)
from .codecs import IN_ORDER

_E4M3_NATIVE = tl.constexpr(IN_ORDER["e4m3"])
_E4M3_BITS = tl.constexpr(IN_ORDER["e4m3_bits"])
_E5M2_BYTES = tl.constexpr(IN_ORDER["e5m2"])
_QUARTER = tl.constexpr(NOPE.value // 4)  # columns that are held at once


@triton.jit
def _decode(raw, CODEC: tl.constexpr):
    if CODEC == "e5m2_plain":
        return (raw.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
    elif CODEC == "e4m3_plain":
        bits = raw.to(tl.uint32)
        wide = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
        value = wide.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2**120
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), value).to(tl.float16)
    else:
        ASSEMBLY: tl.constexpr = (
            _E5M2_BYTES
            if CODEC == "e5m2"
            else (_E4M3_BITS if CODEC == "e4m3_bits" else _E4M3_NATIVE)
        )
        # Triton moves a layout change across a conversion that it can see through, and then
        # converts each tile twice, byte by byte. Assembly marked as impure stays where it is.
        return tl.inline_asm_elementwise(
            ASSEMBLY, "=r,=r,r", [raw], tl.float16, is_pure=False, pack=4
        )


@triton.jit
def _load_query(row, live):
    # All columns at once would bring all of a wide query into registers at once.
    col = tl.arange(0, _QUARTER)[None, :]
    return (
        tl.load(row + col, mask=live, other=0.0).to(tl.float32),
        tl.load(row + (_QUARTER + col), mask=live, other=0.0).to(tl.float32),
        tl.load(row + (2 * _QUARTER + col), mask=live, other=0.0).to(tl.float32),
        tl.load(row + (3 * _QUARTER + col), mask=live, other=0.0).to(tl.float32),
    )


@triton.jit
def _load_tile(row, CODEC: tl.constexpr):
    col = tl.arange(0, _QUARTER)[None, :]
    return (
        _decode(tl.load(row + col), CODEC),
        _decode(tl.load(row + (_QUARTER + col)), CODEC),
        _decode(tl.load(row + (2 * _QUARTER + col)), CODEC),
        _decode(tl.load(row + (3 * _QUARTER + col)), CODEC),
        _decode(tl.load(row + (NOPE + tl.arange(0, ROPE)[None, :])), CODEC),
    )


@triton.jit
def _store_columns(row, c0, c1, c2, c3, live):
    col = tl.arange(0, _QUARTER)[None, :]
    dtype = row.dtype.element_ty
    tl.store(row + col, c0.to(dtype), mask=live)
    tl.store(row + (_QUARTER + col), c1.to(dtype), mask=live)
    tl.store(row + (2 * _QUARTER + col), c2.to(dtype), mask=live)
    tl.store(row + (3 * _QUARTER + col), c3.to(dtype), mask=live)


@triton.jit
def _power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _row_exponent(q0, q1, q2, q3, rope):
    # Exponent that lifts the largest element of a row to [2**12, 2**13), within float32's range.
    top = tl.maximum(
        tl.maximum(tl.max(tl.abs(q0), 1), tl.max(tl.abs(q1), 1)),
        tl.maximum(tl.max(tl.abs(q2), 1), tl.max(tl.abs(q3), 1)),
    )
    bits = tl.maximum(top, tl.max(tl.abs(rope), 1)).to(tl.int32, bitcast=True)
    return 139 - tl.maximum(bits >> 23, 13)


@triton.jit
def _rows(item, tile, HEADS: tl.constexpr, ROWS: tl.constexpr):
    # As the compiler can't know that this is zero, it computes the rows again after the loop
    # instead of holding them in registers that a third block on the SM needs.
    row = tile * ROWS + tl.load(item + ITEM_ZERO) + tl.arange(0, ROWS)
    local = row // HEADS
    live = local < tl.load(item + ITEM_TOKENS)
    return local, row % HEADS, live, (tl.load(item + ITEM_QUERY) + local).to(tl.int64)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def attend_splits_plain(
    q_nope,
    q_rope,
    pool,
    slots,
    items,
    item_count,
    partial,
    partial_lse,
    out,
    lse,
    nope_token,
    nope_head,
    rope_token,
    rope_head,
    pool_row,
    out_token,
    out_head,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    CODEC: tl.constexpr,
    WRITE_LSE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program: ROWS (token, head) rows of one item. `scale` includes log2(e)."""
    TILES: tl.constexpr = (GROUP * HEADS + ROWS - 1) // ROWS
    index = tl.program_id(0) // TILES
    tile = tl.program_id(0) % TILES
    if index >= tl.load(item_count):
        return
    item = items + index * ITEM_FIELDS
    begin = tl.load(item + ITEM_BEGIN)
    end = tl.load(item + ITEM_END)
    if begin >= end:
        return
    first_slot = tl.load(item + ITEM_FIRST_SLOT)
    local, head, live, token = _rows(item, tile, HEADS, ROWS)
    seen = tl.load(item + ITEM_LENGTH) - tl.load(item + ITEM_TOKENS) + 1 + local
    q0, q1, q2, q3 = _load_query(
        q_nope + (token * nope_token + head.to(tl.int64) * nope_head)[:, None], live[:, None]
    )
    rope_row = q_rope + (token * rope_token + head.to(tl.int64) * rope_head)[:, None]
    rope = tl.load(rope_row + tl.arange(0, ROPE)[None, :], mask=live[:, None], other=0.0).to(
        tl.float32
    )
    exponent = _row_exponent(q0, q1, q2, q3, rope)
    lift = _power_of_two(exponent)[:, None]
    q0 = (q0 * lift).to(tl.float16)
    q1 = (q1 * lift).to(tl.float16)
    q2 = (q2 * lift).to(tl.float16)
    q3 = (q3 * lift).to(tl.float16)
    rope = (rope * lift).to(tl.float16)
    row_scale = (scale * _power_of_two(-exponent))[:, None]

    acc0 = tl.zeros((ROWS, _QUARTER), tl.float32)
    acc1 = tl.zeros((ROWS, _QUARTER), tl.float32)
    acc2 = tl.zeros((ROWS, _QUARTER), tl.float32)
    acc3 = tl.zeros((ROWS, _QUARTER), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(begin, end, TOKENS):
        position = start + tl.arange(0, TOKENS)
        # The tail repeats the last active row: masked loads would cost registers, and a stale
        # row could hold NaN, which a probability of zero does not cancel.
        slot = tl.load(slots + first_slot + tl.minimum(position, end - 1)).to(tl.int64)
        k0, k1, k2, k3, k_rope = _load_tile(pool + (slot * pool_row)[:, None], CODEC)
        score = tl.dot(q0, k0.T)
        score = tl.dot(q1, k1.T, score)
        score = tl.dot(q2, k2.T, score)
        score = tl.dot(q3, k3.T, score)
        score = tl.dot(rope, k_rope.T, score) * row_scale
        if GROUP == 1:
            visible = (position < end)[None, :]
        else:
            visible = position[None, :] < tl.minimum(seen, end)[:, None]
        score = tl.where(visible, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        # A token of a group may see nothing of a tile: -inf - -inf would be NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - shift)
        weight = tl.exp2(score - shift[:, None])
        total = total * decay + tl.sum(weight, 1)
        top = new_top
        half = weight.to(tl.float16)
        acc0 = tl.dot(half, k0, acc0 * decay[:, None])
        acc1 = tl.dot(half, k1, acc1 * decay[:, None])
        acc2 = tl.dot(half, k2, acc2 * decay[:, None])
        acc3 = tl.dot(half, k3, acc3 * decay[:, None])

    local, head, live, token = _rows(item, tile, HEADS, ROWS)
    place = tl.load(item + ITEM_PART)
    share = tl.where(total == 0.0, 0.0, 1.0 / total)[:, None]
    row_lse = top + tl.log2(total)
    acc0, acc1, acc2, acc3 = acc0 * share, acc1 * share, acc2 * share, acc3 * share
    if place >= 0:
        part = place.to(tl.int64) * (GROUP * HEADS) + local * HEADS + head
        _store_columns(partial + (part * NOPE)[:, None], acc0, acc1, acc2, acc3, live[:, None])
        tl.store(partial_lse + part, row_lse, mask=live)
    else:
        out_row = out + (token * out_token + head * out_head)[:, None]
        _store_columns(out_row, acc0, acc1, acc2, acc3, live[:, None])
        if WRITE_LSE:
            tl.store(lse + token * HEADS + head, row_lse, mask=live)
