"""The attention kernel of the direct path on mma.sync, up to 32 query rows: same arguments and
numbers as `direct_kernels.attend_splits`.

Rows stay FP8 in shared memory. Four groups of warps split the 576 columns of the scores, so that
each keeps its share of the queries in registers and reads its share of a tile once; their partial
scores are summed through shared memory. For the values each warp owns some of the 512 columns. A
tile is read as pairs of codes both times: as it lies for the scores, transposed for the values.
Gluon kernels can't run under Triton's interpreter: this one is tested on the GPU only.
"""

from sglang.srt.layers.attention.flashinfer_mla_compact.direct_gluon import (
    item_rows,
    lift_query,
    load_query,
    load_slots,
    power_of_two,
)
from sglang.srt.layers.attention.flashinfer_mla_compact.direct_mma_tile import (
    PARTS,
    add_values,
    by_part,
    copy_rows,
    operand_order,
    score_tile,
    sum_in_threads,
    sums_layout,
    swizzled,
    weigh,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import num_warps
from triton.experimental.gluon.language.nvidia.ampere import async_copy

_STAGES = gl.constexpr(3)


@gluon.jit
def attend_splits_mma(
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
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, WARPS // 4, 1], [1, 16, 8])
    VALUE: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, WARPS], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SCORE, 2)
    SUMS: gl.constexpr = sums_layout(ROWS, TOKENS, WARPS)
    HEAD: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(0, SUMS))
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    ROPE_COPY: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [WARPS, 1], [1, 0])
    ROPE_QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])

    tile = gl.program_id(0)
    index = gl.program_id(1)
    item = items + index * 8
    count = gl.load(item_count)
    begin = gl.load(item + 3)
    end = gl.load(item + 4)
    if (index >= count) | (begin >= end):
        return
    slots += gl.load(item + 2)
    # As pairs of codes; rows lie a multiple of two pairs apart, which a copy has to know.
    pool = pool.to(gl.pointer_type(gl.int16))
    pool_row = pool_row // 4 * 2
    tiles = gl.allocate_shared_memory(gl.int16, [_STAGES, TOKENS, 256], swizzled(512, 16, 2))
    ropes = gl.allocate_shared_memory(gl.int16, [_STAGES, TOKENS, 32], swizzled(64, 16, 2))
    for stage in gl.static_range(_STAGES):
        first = begin + stage * TOKENS
        if first < end:
            slot = load_slots(slots, first, end - 1, TOKENS, COPY)
            rope_slot = load_slots(slots, first, end - 1, TOKENS, ROPE_COPY)
            copy_rows(tiles.index(stage), pool, slot, pool_row, COPY)
            copy_rows(ropes.index(stage), pool + 256, rope_slot, pool_row, ROPE_COPY)
        async_copy.commit_group()
    slot = load_slots(slots, begin + _STAGES * TOKENS, end - 1, TOKENS, COPY)
    rope_slot = load_slots(slots, begin + _STAGES * TOKENS, end - 1, TOKENS, ROPE_COPY)

    nope, rope, exponent = lift_query(
        load_query(q_nope, nope_token, nope_head, item, tile, HEADS, ROWS, 512, COPY),
        load_query(q_rope, rope_token, rope_head, item, tile, HEADS, ROWS, 64, ROPE_QUERY),
    )
    row_scale = gl.convert_layout(scale * power_of_two(-exponent), HEAD)
    nopes = gl.allocate_shared_memory(gl.float16, [ROWS, 512], swizzled(1024, 16, 2))
    nopes.store(operand_order(nope))
    parts = by_part(nopes)
    q0 = parts.slice(0, 32, 2).load(LEFT)
    q1 = parts.slice(32, 32, 2).load(LEFT)
    q2 = parts.slice(64, 32, 2).load(LEFT)
    q3 = parts.slice(96, 32, 2).load(LEFT)
    # These stay in shared memory, as there are no registers left for them.
    q_ropes = gl.allocate_shared_memory(gl.float16, [ROWS, 64], swizzled(128, 16, 2))
    q_ropes.store(operand_order(rope))

    exchange = gl.allocate_shared_memory(
        gl.float32, [PARTS, ROWS, TOKENS], swizzled(4 * TOKENS, 32, 4, 3)
    )
    weights = gl.allocate_shared_memory(gl.float16, [ROWS, TOKENS], swizzled(2 * TOKENS, 16, 2))
    decays = gl.allocate_shared_memory(gl.float32, [ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    if GROUP == 1:
        limit = end
    else:
        local, _, _, _ = item_rows(item, tile, HEADS, ROWS, HEAD)
        limit = gl.minimum(gl.load(item + 5) - gl.load(item + 1) + 1 + local, end)[:, None]
    even = gl.zeros([ROWS, 256], gl.float32, VALUE)
    odd = gl.zeros([ROWS, 256], gl.float32, VALUE)
    top = gl.full([ROWS], float("-inf"), gl.float32, HEAD)
    total = sum_in_threads(gl.zeros([ROWS, TOKENS], gl.float32, gl.SliceLayout(0, SUMS)))
    async_copy.wait_group(_STAGES - 1)
    score_tile(exchange, tiles.index(0), ropes.index(0), q0, q1, q2, q3, q_ropes, CODEC)
    top, total = weigh(exchange, weights, decays, top, total, row_scale, begin, limit, SUMS)
    stage = 0
    for start in range(begin, end, TOKENS):
        # The next tile's scores go before this one's values: two barriers a tile are enough.
        async_copy.wait_group(_STAGES - 2)
        following = stage + 1 if stage + 1 < _STAGES else 0
        after = start + TOKENS
        if after < end:
            keys, rope_keys = tiles.index(following), ropes.index(following)
            score_tile(exchange, keys, rope_keys, q0, q1, q2, q3, q_ropes, CODEC)
        even, odd = add_values(tiles.index(stage), weights, decays, even, odd, CODEC)
        if after < end:
            top, total = weigh(exchange, weights, decays, top, total, row_scale, after, limit, SUMS)
            if start + _STAGES * TOKENS < end:
                copy_rows(tiles.index(stage), pool, slot, pool_row, COPY)
                copy_rows(ropes.index(stage), pool + 256, rope_slot, pool_row, ROPE_COPY)
                ahead = after + _STAGES * TOKENS
                slot = load_slots(slots, ahead, end - 1, TOKENS, COPY)
                rope_slot = load_slots(slots, ahead, end - 1, TOKENS, ROPE_COPY)
        async_copy.commit_group()
        stage = following

    sums = gl.convert_layout(gl.sum(total, 1), HEAD)
    share = gl.convert_layout(gl.where(sums == 0.0, 0.0, 1.0 / sums), gl.SliceLayout(1, VALUE))
    row_lse = top + gl.log2(sums)
    result = gl.reshape(gl.join(even * share[:, None], odd * share[:, None]), (ROWS, 512))
    COLUMN: gl.constexpr = result.type.layout
    col = gl.arange(0, 512, gl.SliceLayout(0, COLUMN))[None, :]
    local, head, live, token = item_rows(item, tile, HEADS, ROWS, gl.SliceLayout(1, COLUMN))
    own, own_head, own_live, own_token = item_rows(item, tile, HEADS, ROWS, HEAD)
    place = gl.load(item + 6)
    if place >= 0:
        first_part = place.to(gl.int64) * (GROUP * HEADS)
        part = partial + ((first_part + local * HEADS + head) * 512)[:, None]
        gl.store(part + col, result, mask=live[:, None])
        gl.store(partial_lse + (first_part + own * HEADS + own_head), row_lse, mask=own_live)
    else:
        row = out + (token * out_token + head * out_head)[:, None]
        gl.store(row + col, result.to(out.dtype.element_ty), mask=live[:, None])
        if WRITE_LSE:
            gl.store(lse + own_token * HEADS + own_head, row_lse, mask=own_live)
