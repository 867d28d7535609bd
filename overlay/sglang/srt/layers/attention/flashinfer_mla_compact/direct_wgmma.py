"""The attention kernel of the direct path for Hopper, in Gluon: same arguments, same numbers.

`direct_kernels.attend_splits` multiplies queries by keys; here both products are transposed, so
that the tokens of a tile (scores) and the 512 columns (values) are the 64 rows that a warpgroup
instruction needs, and 16 heads its columns. A tile is decoded once, into shared memory, where both
products read it; the next tile's bytes wait in registers meanwhile.

Gluon kernels can't run under Triton's interpreter: this one is tested on the GPU only.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import num_warps  # not in the Gluon of Triton 3.5
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.constexpr_function
def _raw_layout(tokens, warps, words):
    # Four lanes load 64 bytes of a row: the halves that a quarter-warp then stores lie in two
    # rows, whose swizzles differ in parity, so that the eight stores hit all banks once.
    columns = [[0, 16 << bit] for bit in range((words // 16).bit_length() - 1)]
    rows = [[1 << bit, 0] for bit in range(3, tokens.bit_length() - 1)]
    in_warps = warps.bit_length() - 1
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], *columns, *rows[in_warps:]],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=rows[:in_warps],
        block_bases=[],
        shape=[tokens, words],
    )


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
def _load_slots(slots, first, last, TOKENS: gl.constexpr, LAYOUT: gl.constexpr):
    # The tail repeats the last active row: a stale row could hold NaN, which a probability of
    # zero does not cancel.
    position = first + gl.arange(0, TOKENS, gl.SliceLayout(1, LAYOUT))
    return gl.load(slots + gl.minimum(position, last))


@gluon.jit
def _load_raw(pool, slot, pool_row, LAYOUT: gl.constexpr):
    row = gl.convert_layout(slot, gl.SliceLayout(1, LAYOUT)).to(gl.int64) * pool_row
    word = gl.arange(0, LAYOUT.shape[1], gl.SliceLayout(0, LAYOUT))
    return gl.load(pool + row[:, None] + word[None, :])


@gluon.jit
def _power_of_two(exponent):
    return ((exponent + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def _rows(item, tile, HEADS: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    # Field 7 is zero. As the compiler can't know that, it computes the rows again after the loop
    # instead of holding them in registers.
    row = tile * ROWS + gl.load(item + 7) + gl.arange(0, ROWS, LAYOUT)
    local = row // HEADS
    return local, row % HEADS, local < gl.load(item + 1), (gl.load(item) + local).to(gl.int64)


@gluon.jit
def _load_query(
    query,
    token_stride,
    head_stride,
    item,
    tile,
    HEADS: gl.constexpr,
    ROWS: gl.constexpr,
    WIDTH: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    _, head, live, token = _rows(item, tile, HEADS, ROWS, gl.SliceLayout(1, LAYOUT))
    row = query + (token * token_stride + head * head_stride)[:, None]
    col = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.load(row + col, mask=live[:, None], other=0.0)


@gluon.jit
def _lift_query(nope, rope, nope_smem, rope_smem):
    """Store both parts as float16, each row times a power of two; returns the exponents."""
    ROW: gl.constexpr = gl.SliceLayout(1, nope.type.layout)
    top = gl.max(gl.abs(rope.to(gl.float32)), 1)
    top = gl.maximum(gl.max(gl.abs(nope.to(gl.float32)), 1), gl.convert_layout(top, ROW))
    exponent = 139 - gl.maximum(top.to(gl.int32, bitcast=True) >> 23, 13)
    lift = _power_of_two(exponent)
    nope_smem.store((nope.to(gl.float32) * lift[:, None]).to(gl.float16))
    lift = gl.convert_layout(lift, gl.SliceLayout(1, rope.type.layout))
    rope_smem.store((rope.to(gl.float32) * lift[:, None]).to(gl.float16))
    return exponent


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
    # Warps that the tokens of a tile leave over divide the heads between them.
    DOWN: gl.constexpr = min(WARPS, TOKENS // 16)
    ACROSS: gl.constexpr = WARPS // DOWN
    SCORE: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [DOWN, ACROSS], [16, ROWS // ACROSS, 16]
    )
    VALUE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, ROWS, 16])
    HEAD: gl.constexpr = gl.SliceLayout(0, SCORE)
    NOPE_RAW: gl.constexpr = _raw_layout(TOKENS, WARPS, 128)
    ROPE_RAW: gl.constexpr = _raw_layout(TOKENS, WARPS, 16)
    NOPE_QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    ROPE_QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
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
    slot = _load_slots(slots, begin, end - 1, TOKENS, NOPE_RAW)
    nope_raw = _load_raw(pool, slot, pool_row, NOPE_RAW)
    rope_raw = _load_raw(pool + 128, slot, pool_row, ROPE_RAW)
    slot = _load_slots(slots, begin + TOKENS, end - 1, TOKENS, NOPE_RAW)

    nope_smem = gl.allocate_shared_memory(gl.float16, [ROWS, 512], HALVES)
    rope_smem = gl.allocate_shared_memory(gl.float16, [ROWS, 64], HALVES)
    exponent = _lift_query(
        _load_query(q_nope, nope_token, nope_head, item, tile, HEADS, ROWS, 512, NOPE_QUERY),
        _load_query(q_rope, rope_token, rope_head, item, tile, HEADS, ROWS, 64, ROPE_QUERY),
        nope_smem,
        rope_smem,
    )
    row_scale = gl.convert_layout(scale * _power_of_two(-exponent), HEAD)
    keys = gl.allocate_shared_memory(gl.float16, [TOKENS, 512], HALVES)
    rope_keys = gl.allocate_shared_memory(gl.float16, [TOKENS, 64], HALVES)
    weights = gl.allocate_shared_memory(gl.float16, [TOKENS, ROWS], WEIGHTS)

    local, _, _, _ = _rows(item, tile, HEADS, ROWS, HEAD)
    seen = gl.minimum(gl.load(item + 5) - gl.load(item + 1) + 1 + local, end)
    acc = gl.zeros([512, ROWS], gl.float32, VALUE)
    top = gl.full([ROWS], float("-inf"), gl.float32, HEAD)
    total = gl.zeros([TOKENS, ROWS], gl.float32, SCORE)
    for start in range(begin, end, TOKENS):
        keys.store(_decode(nope_raw, CODEC))
        rope_keys.store(_decode(rope_raw, CODEC))
        fence_async_shared()
        score = gl.zeros([TOKENS, ROWS], gl.float32, SCORE)
        score = warpgroup_mma(keys, nope_smem.permute((1, 0)), score, use_acc=False, is_async=True)
        score = warpgroup_mma(rope_keys, rope_smem.permute((1, 0)), score, is_async=True)
        nope_raw = _load_raw(pool, slot, pool_row, NOPE_RAW)
        rope_raw = _load_raw(pool + 128, slot, pool_row, ROPE_RAW)
        slot = _load_slots(slots, start + 2 * TOKENS, end - 1, TOKENS, NOPE_RAW)
        score = warpgroup_mma_wait(0, deps=[score])
        position = start + gl.arange(0, TOKENS, gl.SliceLayout(1, SCORE))
        limit = end if GROUP == 1 else seen[None, :]
        score = gl.where(position[:, None] < limit, score, float("-inf"))
        new_top = gl.maximum(top, gl.max(score, 0) * row_scale)
        # A token of a group may see nothing of a tile: -inf - -inf would be NaN.
        shift = gl.where(new_top == float("-inf"), 0.0, new_top)
        decay = gl.exp2(top - shift)
        weight = gl.exp2(score * row_scale[None, :] - shift[None, :])
        total = total * decay[None, :] + weight
        top = new_top
        weights.store(weight.to(gl.float16))
        fence_async_shared()
        acc = acc * gl.convert_layout(decay, gl.SliceLayout(0, VALUE))[None, :]
        acc = warpgroup_mma(keys.permute((1, 0)), weights, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])

    sums = gl.sum(total, 0)
    share = gl.where(sums == 0.0, 0.0, 1.0 / sums)
    acc = acc * gl.convert_layout(share, gl.SliceLayout(0, VALUE))[None, :]
    row_lse = top + gl.log2(sums)
    COLUMN: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [WARPS, 1], [1, 0])
    result = gl.convert_layout(gl.permute(acc, (1, 0)), COLUMN)
    col = gl.arange(0, 512, gl.SliceLayout(0, COLUMN))[None, :]
    local, head, live, token = _rows(item, tile, HEADS, ROWS, gl.SliceLayout(1, COLUMN))
    own, own_head, own_live, own_token = _rows(item, tile, HEADS, ROWS, HEAD)
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
