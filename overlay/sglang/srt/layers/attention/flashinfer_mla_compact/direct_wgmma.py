"""The attention kernel of the direct path for Hopper, up to 32 query rows: same arguments and
numbers as `direct_kernels.attend_splits`.

Both products are transposed, so that the tokens of a tile (scores) and the 512 columns (values)
are the 64 rows that a warpgroup instruction needs, and the heads its columns. A warp multiplies
the rows that it decoded straight from its registers; they pass through shared memory for the second
product only, where each value is needed by a warp that did not load it.
"""

from sglang.srt.layers.attention.flashinfer_mla_compact.direct_gluon import (
    decode,
    item_rows,
    lift_query,
    load_query,
    load_raw,
    load_slots,
    operand_order,
    power_of_two,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import num_warps  # not in the Gluon of Triton 3.5
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.constexpr_function
def _bits(count):
    return range(count.bit_length() - 1)


@gluon.constexpr_function
def _raw_layout(tokens, warps, words):
    # Four lanes load 64 bytes of a row: the halves that a quarter-warp then stores lie in two
    # rows, whose swizzles differ in parity, so that the eight stores hit all banks once.
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [8, 0], *([0, 16 << bit] for bit in _bits(words // 16))],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16 << bit, 0] for bit in _bits(warps)],
        block_bases=[],
        shape=[tokens, words],
    )


@gluon.constexpr_function
def _tops_layout(warps, rows):
    # Each thread holds the maxima of all warps for the columns of its scores.
    return gl.DistributedLinearLayout(
        reg_bases=[
            [0, 1],
            *([0, 8 << bit] for bit in _bits(rows // 8)),
            *([1 << bit, 0] for bit in _bits(warps)),
        ],
        lane_bases=[[0, 2], [0, 4], [0, 0], [0, 0], [0, 0]],
        warp_bases=[[0, 0] for _ in _bits(warps)],
        block_bases=[],
        shape=[warps, rows],
    )


@gluon.jit
def _load_tile(pool, slot, pool_row, RAW: gl.constexpr, ROPE_RAW: gl.constexpr):
    return (
        load_raw(pool, slot, pool_row, RAW),
        load_raw(pool + 32, slot, pool_row, RAW),
        load_raw(pool + 64, slot, pool_row, RAW),
        load_raw(pool + 96, slot, pool_row, RAW),
        load_raw(pool + 128, slot, pool_row, ROPE_RAW),
    )


@gluon.jit
def _add_scores(halves, query, score, OPERAND: gl.constexpr):
    left = gl.convert_layout(operand_order(halves), OPERAND, assert_trivial=True)
    return warpgroup_mma(left, query.permute((1, 0)), score, is_async=True)


@gluon.jit
def _tile_top(score, WARPS: gl.constexpr, TOPS: gl.constexpr):
    # One exchange between the warps; a reduction over all tokens at once would take two.
    tops = gl.max(gl.reshape(score, (WARPS, 16, score.shape[1])), 1)
    return gl.max(gl.convert_layout(tops, TOPS), 0)


@gluon.jit
def _store_columns(place, c0, c1, c2, c3, share, live, COLUMN: gl.constexpr):
    dtype = place.dtype.element_ty
    live = live[:, None]
    gl.store(place, _rows_first(c0 * share, COLUMN).to(dtype), mask=live)
    gl.store(place + 128, _rows_first(c1 * share, COLUMN).to(dtype), mask=live)
    gl.store(place + 256, _rows_first(c2 * share, COLUMN).to(dtype), mask=live)
    gl.store(place + 384, _rows_first(c3 * share, COLUMN).to(dtype), mask=live)


@gluon.jit
def _rows_first(columns, LAYOUT: gl.constexpr):
    return gl.convert_layout(gl.permute(columns, (1, 0)), LAYOUT)


@gluon.jit
def attend_splits_wgmma(
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
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    TOKENS: gl.constexpr,
    CODEC: gl.constexpr,
    WRITE_LSE: gl.constexpr,
):
    """One program: ROWS (token, head) rows of one item. `scale` includes log2(e)."""
    WARPS: gl.constexpr = num_warps()
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, ROWS, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SCORE, 2)
    HEAD: gl.constexpr = gl.SliceLayout(0, SCORE)
    RAW: gl.constexpr = _raw_layout(TOKENS, WARPS, 32)
    ROPE_RAW: gl.constexpr = _raw_layout(TOKENS, WARPS, 16)
    TOPS: gl.constexpr = _tops_layout(WARPS, ROWS)
    NOPE_QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    ROPE_QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    COLUMN: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [WARPS, 1], [1, 0])
    HALVES: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TOKENS, ROWS], gl.float16)

    tile = gl.program_id(0)
    index = gl.program_id(1)
    item = items + index * 8
    count = gl.load(item_count)
    begin = gl.load(item + 3)
    end = gl.load(item + 4)
    if (index >= count) | (begin >= end):
        return
    slots += gl.load(item + 2)
    pool = pool.to(gl.pointer_type(gl.int32))
    pool_row = pool_row // 4
    slot = load_slots(slots, begin, end - 1, TOKENS, RAW)
    raw0, raw1, raw2, raw3, rope_raw = _load_tile(pool, slot, pool_row, RAW, ROPE_RAW)
    slot = load_slots(slots, begin + TOKENS, end - 1, TOKENS, RAW)

    nopes = gl.allocate_shared_memory(gl.float16, [1, ROWS, 512], HALVES)
    ropes = gl.allocate_shared_memory(gl.float16, [1, ROWS, 64], HALVES)
    exponent = lift_query(
        load_query(q_nope, nope_token, nope_head, item, tile, HEADS, ROWS, 512, NOPE_QUERY),
        load_query(q_rope, rope_token, rope_head, item, tile, HEADS, ROWS, 64, ROPE_QUERY),
        nopes.index(0),
        ropes.index(0),
        True,
    )
    row_scale = gl.convert_layout(scale * power_of_two(-exponent), HEAD)
    keys0 = gl.allocate_shared_memory(gl.float16, [TOKENS, 128], HALVES)
    keys1 = gl.allocate_shared_memory(gl.float16, [TOKENS, 128], HALVES)
    keys2 = gl.allocate_shared_memory(gl.float16, [TOKENS, 128], HALVES)
    keys3 = gl.allocate_shared_memory(gl.float16, [TOKENS, 128], HALVES)
    weights = gl.allocate_shared_memory(gl.float16, [TOKENS, ROWS], WEIGHTS)

    local, _, _, _ = item_rows(item, tile, HEADS, ROWS, HEAD)
    seen = gl.minimum(gl.load(item + 5) - gl.load(item + 1) + 1 + local, end)
    acc0 = gl.zeros([128, ROWS], gl.float32, SCORE)
    acc1 = gl.zeros([128, ROWS], gl.float32, SCORE)
    acc2 = gl.zeros([128, ROWS], gl.float32, SCORE)
    acc3 = gl.zeros([128, ROWS], gl.float32, SCORE)
    top = gl.full([ROWS], float("-inf"), gl.float32, HEAD)
    total = gl.zeros([TOKENS, ROWS], gl.float32, SCORE)
    for start in range(begin, end, TOKENS):
        # Field 7 is zero, which the compiler can't know: it would hold the 36 descriptors of the
        # queries in registers from here on, and spill.
        zero = gl.load(item + 7)
        nope = nopes.index(zero)
        halves = decode(raw0, CODEC)
        score = gl.zeros([TOKENS, ROWS], gl.float32, SCORE)
        score = _add_scores(halves, nope.slice(0, 128, 1), score, OPERAND)
        keys0.store(halves)
        halves = decode(raw1, CODEC)
        score = _add_scores(halves, nope.slice(128, 128, 1), score, OPERAND)
        keys1.store(halves)
        # Registers that a product reads are free again once it is done.
        score = warpgroup_mma_wait(1, deps=[score])
        halves = decode(raw2, CODEC)
        score = _add_scores(halves, nope.slice(256, 128, 1), score, OPERAND)
        keys2.store(halves)
        score = warpgroup_mma_wait(1, deps=[score])
        halves = decode(raw3, CODEC)
        score = _add_scores(halves, nope.slice(384, 128, 1), score, OPERAND)
        keys3.store(halves)
        score = warpgroup_mma_wait(1, deps=[score])
        halves = decode(rope_raw, CODEC)
        score = _add_scores(halves, ropes.index(zero), score, OPERAND)
        score = warpgroup_mma_wait(0, deps=[score])
        position = start + gl.arange(0, TOKENS, gl.SliceLayout(1, SCORE))
        limit = end if GROUP == 1 else seen[None, :]
        score = gl.where(position[:, None] < limit, score, float("-inf"))
        tile_top = gl.convert_layout(_tile_top(score, WARPS, TOPS), HEAD, assert_trivial=True)
        new_top = gl.maximum(top, tile_top * row_scale)
        # A token of a group may see nothing of a tile: -inf - -inf would be NaN.
        shift = gl.where(new_top == float("-inf"), 0.0, new_top)
        decay = gl.exp2(top - shift)
        weight = gl.exp2(score * row_scale[None, :] - shift[None, :])
        total = total * decay[None, :] + weight
        top = new_top
        weights.store(weight.to(gl.float16))
        fence_async_shared()
        # Not before the fence, which waits for loads that are under way.
        raw0, raw1, raw2, raw3, rope_raw = _load_tile(pool, slot, pool_row, RAW, ROPE_RAW)
        slot = load_slots(slots, start + 2 * TOKENS, end - 1, TOKENS, RAW)
        decay = decay[None, :]
        acc0 = warpgroup_mma(keys0.permute((1, 0)), weights, acc0 * decay, is_async=True)
        acc1 = warpgroup_mma(keys1.permute((1, 0)), weights, acc1 * decay, is_async=True)
        acc2 = warpgroup_mma(keys2.permute((1, 0)), weights, acc2 * decay, is_async=True)
        acc3 = warpgroup_mma(keys3.permute((1, 0)), weights, acc3 * decay, is_async=True)
        acc0, acc1, acc2, acc3 = warpgroup_mma_wait(0, deps=[acc0, acc1, acc2, acc3])

    sums = gl.sum(total, 0)
    share = gl.where(sums == 0.0, 0.0, 1.0 / sums)[None, :]
    row_lse = top + gl.log2(sums)
    col = gl.arange(0, 128, gl.SliceLayout(0, COLUMN))[None, :]
    local, head, live, token = item_rows(item, tile, HEADS, ROWS, gl.SliceLayout(1, COLUMN))
    own, own_head, own_live, own_token = item_rows(item, tile, HEADS, ROWS, HEAD)
    place = gl.load(item + 6)
    if place >= 0:
        first = place.to(gl.int64) * (GROUP * HEADS)
        part = partial + ((first + local * HEADS + head) * 512)[:, None] + col
        _store_columns(part, acc0, acc1, acc2, acc3, share, live, COLUMN)
        gl.store(partial_lse + (first + own * HEADS + own_head), row_lse, mask=own_live)
    else:
        row = out + (token * out_token + head * out_head)[:, None] + col
        _store_columns(row, acc0, acc1, acc2, acc3, share, live, COLUMN)
        if WRITE_LSE:
            gl.store(lse + own_token * HEADS + own_head, row_lse, mask=own_live)
