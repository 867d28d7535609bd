"""The attention kernel of the direct path on mma.sync, up to 32 query rows: same arguments and
numbers as `plain.attend_splits_plain`.

Rows stay FP8 in shared memory. Four warps split the 576 columns of the scores, so that each reads
its share of the queries and of a tile once; their partial scores are summed through shared memory.
For the values each warp owns a quarter of the 512 columns. A tile of 32 tokens is read as pairs of
codes both times: as it lies for the scores, transposed for the values.
Gluon kernels can't run under Triton's interpreter: this one is tested on the GPU only.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from ..work import (
    ITEM_BEGIN,
    ITEM_END,
    ITEM_FIELDS,
    ITEM_FIRST_SLOT,
    ITEM_LENGTH,
    ITEM_PART,
    ITEM_TOKENS,
    NOPE,
    ROPE,
)
from .gluon import (
    await_inputs,
    item_rows,
    let_merge_start,
    lift_query,
    load_query,
    load_slots,
    power_of_two,
)
from .mma_tile import (
    WARPS,
    add_values,
    by_part,
    copy_rows,
    copy_slots,
    operand_order,
    parts_layout,
    score,
    sum_in_threads,
    swizzled,
    weigh,
)

_STAGES = gl.constexpr(3)
# Rows lie in shared memory as pairs of codes.
_PAIRS = gl.constexpr(NOPE.value // 2)
_ROPE_PAIRS = gl.constexpr(ROPE.value // 2)


@gluon.jit(do_not_specialize_on_alignment=["slots"])
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
    EARLY: gl.constexpr,
):
    """One program: ROWS (token, head) rows of one item. `scale` includes log2(e).

    One function of more than 100 lines, since tiles, queries and sums are values of its loop:
    a function apart would take and return most of them.
    """
    gl.static_assert(TOKENS == 32)
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    VALUE: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, WARPS], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SCORE, 2)
    PARTS: gl.constexpr = parts_layout(ROWS)
    HEAD: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(0, PARTS))
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    ROPE_COPY: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [WARPS, 1], [1, 0])
    ROPE_QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])

    await_inputs(EARLY)
    TILES: gl.constexpr = (GROUP * HEADS + ROWS - 1) // ROWS
    index = gl.program_id(0) // TILES
    tile = gl.program_id(0) % TILES
    item = items + index * ITEM_FIELDS
    count = gl.load(item_count)
    begin = gl.load(item + ITEM_BEGIN)
    end = gl.load(item + ITEM_END)
    if (index >= count) | (begin >= end):
        return
    slots += gl.load(item + ITEM_FIRST_SLOT)
    # As pairs of codes.
    pool = pool.to(gl.pointer_type(gl.int16))
    pool_row = pool_row // 2
    tiles = gl.allocate_shared_memory(gl.int16, [_STAGES, TOKENS, _PAIRS], swizzled(NOPE, 2))
    ropes = gl.allocate_shared_memory(gl.int16, [_STAGES, TOKENS, _ROPE_PAIRS], swizzled(ROPE, 2))
    later_slots = gl.allocate_shared_memory(gl.int32, [_STAGES, TOKENS], FLAT)
    for stage in gl.static_range(_STAGES):
        first = begin + stage * TOKENS
        slot = load_slots(slots, first, end - 1, TOKENS, COPY)
        rope_slot = load_slots(slots, first, end - 1, TOKENS, ROPE_COPY)
        copy_rows(tiles.index(stage), pool, slot, pool_row, first < end, COPY)
        copy_rows(ropes.index(stage), pool + _PAIRS, rope_slot, pool_row, first < end, ROPE_COPY)
        if stage > 0:
            copy_slots(later_slots.index(stage), slots, begin + (2 + stage) * TOKENS, end - 1)
        async_copy.commit_group()

    nope, rope, exponent = lift_query(
        load_query(q_nope, nope_token, nope_head, item, tile, HEADS, ROWS, NOPE, COPY),
        load_query(q_rope, rope_token, rope_head, item, tile, HEADS, ROWS, ROPE, ROPE_QUERY),
    )
    row_scale = gl.convert_layout(scale * power_of_two(-exponent), HEAD)
    nopes = gl.allocate_shared_memory(gl.float16, [ROWS, NOPE], swizzled(2 * NOPE, 2))
    nopes.store(operand_order(nope))
    parts = by_part(nopes)
    q0 = parts.slice(0, 32, 2).load(LEFT)
    q1 = parts.slice(32, 32, 2).load(LEFT)
    q2 = parts.slice(64, 32, 2).load(LEFT)
    q3 = parts.slice(96, 32, 2).load(LEFT)
    # Most go back: with all in registers, too few are left to keep the products under way.
    query = gl.allocate_shared_memory(gl.float16, [3, WARPS, ROWS, 32], swizzled(64, 2, 3))
    query.index(0).store(q1)
    query.index(1).store(q2)
    query.index(2).store(q3)
    q_ropes = gl.allocate_shared_memory(gl.float16, [ROWS, ROPE], swizzled(2 * ROPE, 2))
    q_ropes.store(operand_order(rope))
    q4 = by_part(q_ropes).load(LEFT)

    exchange = gl.allocate_shared_memory(
        gl.float32, [WARPS, ROWS, TOKENS], swizzled(128, 4, 3, vector=32)
    )
    weights = gl.allocate_shared_memory(gl.float16, [ROWS, TOKENS], swizzled(64, 2))
    decays = gl.allocate_shared_memory(gl.float32, [ROWS], FLAT)
    if GROUP == 1:
        limit = end
    else:
        local, _, _, _ = item_rows(item, tile, HEADS, ROWS, HEAD)
        limit = gl.minimum(
            gl.load(item + ITEM_LENGTH) - gl.load(item + ITEM_TOKENS) + 1 + local, end
        )[:, None]
    even = gl.zeros([ROWS, _PAIRS], gl.float32, VALUE)
    odd = gl.zeros([ROWS, _PAIRS], gl.float32, VALUE)
    top = gl.full([ROWS], float("-inf"), gl.float32, HEAD)
    total = sum_in_threads(gl.zeros([ROWS, TOKENS], gl.float32, gl.SliceLayout(0, PARTS)))
    async_copy.wait_group(_STAGES - 1)
    exchange.store(score(tiles.index(0), ropes.index(0), q0, query, q4, CODEC))
    parts = exchange.load(PARTS)
    top, total = weigh(parts, weights, decays, top, total, row_scale, begin, limit)
    stage = 0
    for start in range(begin, end - TOKENS, TOKENS):
        # The next tile's scores go before this one's values: two barriers a tile are enough.
        async_copy.wait_group(_STAGES - 2)
        raised = gl.min(decays.load(gl.SliceLayout(1, VALUE)), 0) < 1.0
        copy_slots(later_slots.index(stage), slots, start + (_STAGES + 2) * TOKENS, end - 1)
        following = stage + 1 if stage + 1 < _STAGES else 0
        exchange.store(score(tiles.index(following), ropes.index(following), q0, query, q4, CODEC))
        even, odd = add_values(tiles.index(stage), weights, decays, raised, even, odd, CODEC)
        parts = exchange.load(PARTS)
        top, total = weigh(parts, weights, decays, top, total, row_scale, start + TOKENS, limit)
        live = start + _STAGES * TOKENS < end
        slot = later_slots.index(following).load(gl.SliceLayout(1, COPY))
        rope_slot = later_slots.index(following).load(gl.SliceLayout(1, ROPE_COPY))
        copy_rows(tiles.index(stage), pool, slot, pool_row, live, COPY)
        copy_rows(ropes.index(stage), pool + _PAIRS, rope_slot, pool_row, live, ROPE_COPY)
        async_copy.commit_group()
        stage = following
    even, odd = add_values(tiles.index(stage), weights, decays, True, even, odd, CODEC)
    let_merge_start(EARLY)

    sums = gl.convert_layout(gl.sum(gl.sum(total, 2), 1), HEAD)
    share = gl.convert_layout(gl.where(sums == 0.0, 0.0, 1.0 / sums), gl.SliceLayout(1, VALUE))
    row_lse = top + gl.log2(sums)
    result = gl.reshape(gl.join(even * share[:, None], odd * share[:, None]), (ROWS, NOPE))
    COLUMN: gl.constexpr = result.type.layout
    col = gl.arange(0, NOPE, gl.SliceLayout(0, COLUMN))[None, :]
    local, head, live, token = item_rows(item, tile, HEADS, ROWS, gl.SliceLayout(1, COLUMN))
    own, own_head, own_live, own_token = item_rows(item, tile, HEADS, ROWS, HEAD)
    place = gl.load(item + ITEM_PART)
    if place >= 0:
        first_part = place.to(gl.int64) * (GROUP * HEADS)
        part = partial + ((first_part + local * HEADS + head) * NOPE)[:, None]
        gl.store(part + col, result.to(partial.dtype.element_ty), mask=live[:, None])
        gl.store(partial_lse + (first_part + own * HEADS + own_head), row_lse, mask=own_live)
    else:
        row = out + (token * out_token + head * out_head)[:, None]
        gl.store(row + col, result.to(out.dtype.element_ty), mask=live[:, None])
        if WRITE_LSE:
            gl.store(lse + own_token * HEADS + own_head, row_lse, mask=own_live)
