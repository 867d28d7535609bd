"""The attention kernel of the direct path for Hopper, 64 query rows: same arguments and numbers as
`direct_kernels.attend_splits`.

64 rows fill a warpgroup instruction as they are. Two warpgroups halve the tokens of the scores and
the columns of the values.
"""

from sglang.srt.layers.attention.flashinfer_mla_compact.direct_gluon import (
    item_rows,
    lift_query,
    load_query,
    load_slots,
    power_of_two,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

WARPS = gl.constexpr(8)
GROUPS = gl.constexpr(2)  # of four warps
# A word holds four codes; its float16 values leave one by one, which costs no instruction.
_E4M3 = gl.constexpr(
    "{ .reg .b16 low, high; .reg .b32 front, back; mov.b32 {low, high}, $4;"
    " cvt.rn.f16x2.e4m3x2 front, low; cvt.rn.f16x2.e4m3x2 back, high;"
    " mov.b32 {$0, $1}, front; mov.b32 {$2, $3}, back; }"
)
_E5M2 = gl.constexpr(
    "{ .reg .b32 front, back; prmt.b32 front, $4, 0, 0x1404; prmt.b32 back, $4, 0, 0x3424;"
    " mov.b32 {$0, $1}, front; mov.b32 {$2, $3}, back; }"
)


@gluon.jit
def _decode(words, CODEC: gl.constexpr):
    ASSEMBLY: gl.constexpr = _E5M2 if CODEC == "e5m2" else _E4M3
    a, b, c, d = gl.inline_asm_elementwise(
        ASSEMBLY,
        "=h,=h,=h,=h,r",
        [words],
        (gl.float16, gl.float16, gl.float16, gl.float16),
        is_pure=True,
        pack=1,
    )
    halves = gl.join(gl.join(a, c), gl.join(b, d))
    return gl.reshape(halves, (words.shape[0], 4 * words.shape[1]))


@gluon.jit
def _load_raw(pool, slot, pool_row, LAYOUT: gl.constexpr):
    row = gl.convert_layout(slot, gl.SliceLayout(1, LAYOUT)).to(gl.int64) * pool_row
    word = gl.arange(0, LAYOUT.shape[1], gl.SliceLayout(0, LAYOUT))
    return gl.load(pool + row[:, None] + word[None, :])


@gluon.constexpr_function
def _raw_layout(tokens, words):
    # Four lanes load 64 bytes of a row: the halves that a quarter-warp then stores lie in two
    # rows, whose swizzles differ in parity, so that the eight stores hit all banks once.
    columns = [[0, 16 << bit] for bit in range((words // 16).bit_length() - 1)]
    rows = [[8 << bit, 0] for bit in range((tokens // 8).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], *columns, *rows[3:]],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=rows[:3],
        block_bases=[],
        shape=[tokens, words],
    )


@gluon.constexpr_function
def _tops_layout():
    # Each thread holds the maxima of both warpgroups for the rows of its scores.
    return gl.DistributedLinearLayout(
        reg_bases=[[8, 0], [0, 1]],
        lane_bases=[[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0], [0, 0]],
        block_bases=[],
        shape=[64, GROUPS],
    )


@gluon.jit
def _tile_top(score, LAYOUT: gl.constexpr):
    # One exchange between the warps; a reduction over all tokens at once would take two.
    parts = gl.reshape(score, (score.shape[0], GROUPS, score.shape[1] // GROUPS))
    return gl.max(gl.convert_layout(gl.max(parts, 2), LAYOUT), 1)


@gluon.jit
def _sum_in_threads(weight):
    """Sums of what each thread holds of a row, [rows, GROUPS, 4]: no exchange within the loop."""
    ROWS: gl.constexpr = weight.shape[0]
    parts = gl.reshape(weight, (ROWS, GROUPS, weight.shape[1] // GROUPS // 8, 4, 2))
    return gl.sum(gl.sum(parts, 4), 2)


@gluon.jit
def attend_splits_wide(
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
    """One program: 64 (token, head) rows of one item. `scale` includes log2(e)."""
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, TOKENS // GROUPS, 16])
    VALUE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, 256, 16])
    HEAD: gl.constexpr = gl.SliceLayout(1, SCORE)
    VALUE_HEAD: gl.constexpr = gl.SliceLayout(1, VALUE)
    RAW: gl.constexpr = _raw_layout(TOKENS, 128)
    ROPE_RAW: gl.constexpr = _raw_layout(TOKENS, 16)
    TOPS: gl.constexpr = _tops_layout()
    NOPE_QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    ROPE_QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    COLUMN: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [WARPS, 1], [1, 0])
    HALVES: gl.constexpr = gl.NVMMASharedLayout(128, 16)

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
    raw = _load_raw(pool, slot, pool_row, RAW)
    rope_raw = _load_raw(pool + 128, slot, pool_row, ROPE_RAW)
    slot = load_slots(slots, begin + TOKENS, end - 1, TOKENS, RAW)

    nope = gl.allocate_shared_memory(gl.float16, [ROWS, 512], HALVES)
    rope = gl.allocate_shared_memory(gl.float16, [ROWS, 64], HALVES)
    nope_query, rope_query, exponent = lift_query(
        load_query(q_nope, nope_token, nope_head, item, tile, HEADS, ROWS, 512, NOPE_QUERY),
        load_query(q_rope, rope_token, rope_head, item, tile, HEADS, ROWS, 64, ROPE_QUERY),
    )
    nope.store(nope_query)
    rope.store(rope_query)
    row_scale = gl.convert_layout(scale * power_of_two(-exponent), HEAD)
    keys = gl.allocate_shared_memory(gl.float16, [TOKENS, 512], HALVES)
    rope_keys = gl.allocate_shared_memory(gl.float16, [TOKENS, 64], HALVES)
    weights = gl.allocate_shared_memory(gl.float16, [ROWS, TOKENS], HALVES)

    local, _, _, _ = item_rows(item, tile, HEADS, ROWS, HEAD)
    seen = gl.minimum(gl.load(item + 5) - gl.load(item + 1) + 1 + local, end)
    acc = gl.zeros([ROWS, 512], gl.float32, VALUE)
    top = gl.full([ROWS], float("-inf"), gl.float32, HEAD)
    total = _sum_in_threads(gl.zeros([ROWS, TOKENS], gl.float32, SCORE))
    SUMS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, total.type.layout))
    for start in range(begin, end, TOKENS):
        keys.store(_decode(raw, CODEC))
        rope_keys.store(_decode(rope_raw, CODEC))
        fence_async_shared()
        score = gl.zeros([ROWS, TOKENS], gl.float32, SCORE)
        score = warpgroup_mma(nope, keys.permute((1, 0)), score, use_acc=False, is_async=True)
        score = warpgroup_mma(rope, rope_keys.permute((1, 0)), score, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        position = start + gl.arange(0, TOKENS, gl.SliceLayout(0, SCORE))
        limit = end if GROUP == 1 else seen[:, None]
        score = gl.where(position[None, :] < limit, score, float("-inf"))
        tile_top = gl.convert_layout(_tile_top(score, TOPS), HEAD, assert_trivial=True)
        new_top = gl.maximum(top, tile_top * row_scale)
        # A token of a group may see nothing of a tile: -inf - -inf would be NaN.
        shift = gl.where(new_top == float("-inf"), 0.0, new_top)
        decay = gl.exp2(top - shift)
        weight = gl.exp2(score * row_scale[:, None] - shift[:, None])
        top = new_top
        weights.store(weight.to(gl.float16))
        fence_async_shared()
        # Not before the fence, which waits for loads that are under way.
        raw = _load_raw(pool, slot, pool_row, RAW)
        rope_raw = _load_raw(pool + 128, slot, pool_row, ROPE_RAW)
        slot = load_slots(slots, start + 2 * TOKENS, end - 1, TOKENS, RAW)
        acc = acc * gl.convert_layout(decay, VALUE_HEAD, assert_trivial=True)[:, None]
        acc = warpgroup_mma(weights, keys, acc, is_async=True)
        decay = gl.convert_layout(decay, SUMS, assert_trivial=True)
        total = total * decay[:, None, None] + _sum_in_threads(weight)
        acc = warpgroup_mma_wait(0, deps=[acc])

    sums = gl.convert_layout(gl.sum(gl.sum(total, 2), 1), HEAD)
    share = gl.where(sums == 0.0, 0.0, 1.0 / sums)
    row_lse = top + gl.log2(sums)
    acc = acc * gl.convert_layout(share, VALUE_HEAD, assert_trivial=True)[:, None]
    result = gl.convert_layout(acc, COLUMN)
    col = gl.arange(0, 512, gl.SliceLayout(0, COLUMN))[None, :]
    local, head, live, token = item_rows(item, tile, HEADS, ROWS, gl.SliceLayout(1, COLUMN))
    own, own_head, own_live, own_token = item_rows(item, tile, HEADS, ROWS, HEAD)
    place = gl.load(item + 6)
    if place >= 0:
        first = place.to(gl.int64) * (GROUP * HEADS)
        part = partial + ((first + local * HEADS + head) * 512)[:, None]
        gl.store(part + col, result, mask=live[:, None])
        gl.store(partial_lse + (first + own * HEADS + own_head), row_lse, mask=own_live)
    else:
        row = out + (token * out_token + head * out_head)[:, None]
        gl.store(row + col, result.to(out.dtype.element_ty), mask=live[:, None])
        if WRITE_LSE:
            gl.store(lse + own_token * HEADS + own_head, row_lse, mask=own_live)
