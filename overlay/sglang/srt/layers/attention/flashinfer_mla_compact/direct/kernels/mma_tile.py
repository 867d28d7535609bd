"""What `mma` does with one tile: copy its rows, score them, weigh them, add their values."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from ..triton_release import async_load
from .codecs import EVEN_ODD, IN_ORDER

WARPS = gl.constexpr(4)


@gluon.constexpr_function
def _keys_assembly(codec):
    return IN_ORDER[codec]


@gluon.constexpr_function
def _values_assembly(codec):
    return EVEN_ODD[codec]


@gluon.constexpr_function
def _keys_layout(pairs):
    # Four lanes hold eight pairs of a token: 16 columns, which a step of the product takes.
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1, 0], *([[0, 8, 0]] if pairs == 16 else []), [0, 0, 8], [0, 0, 16]],
        lane_bases=[[0, 2, 0], [0, 4, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]],
        warp_bases=[[1, 0, 0], [2, 0, 0]],
        block_bases=[],
        shape=[4, pairs, 32],
    )


@gluon.constexpr_function
def parts_layout(rows):
    # A thread holds all parts of the scores that it adds up, of eight tokens where there are
    # enough. Rows that differ by two lie in other banks, those that differ by one do not.
    half = [[0, 0, 16]]
    wide = rows == 32
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 0, 2], *(half if wide else []), [1, 0, 0], [2, 0, 0]],
        lane_bases=[
            [0, 0, 4],
            [0, 0, 8],
            *([] if wide else half),
            [0, 2, 0],
            [0, 1, 0],
            *([[0, 4, 0]] if wide else []),
        ],
        warp_bases=[[0, rows // 4, 0], [0, rows // 2, 0]],
        block_bases=[],
        shape=[4, rows, 32],
    )


@gluon.constexpr_function
def swizzled(row_bytes, dtype_bytes, rank=2, vector=16):
    # The same `vector` bytes of neighbouring rows lie in different banks.
    return gl.SwizzledSharedLayout(
        vector // dtype_bytes,
        max(128 // row_bytes, 1),
        min(row_bytes, 128) // vector,
        list(reversed(range(rank))),
    )


@gluon.jit
def by_part(smem):
    """[rows, WARPS * columns] seen as [WARPS, rows, columns]."""
    COLUMNS: gl.constexpr = smem.shape[1] // WARPS
    return smem.reshape((smem.shape[0], WARPS, COLUMNS)).permute((1, 0, 2))


@gluon.jit
def operand_order(halves):
    """Columns 4t + 2f + i of 16 become 8f + 2t + i: a lane's four bytes are its operand."""
    ROWS: gl.constexpr = halves.shape[0]
    COLUMNS: gl.constexpr = halves.shape[1]
    parts = gl.reshape(halves, (ROWS, COLUMNS // 16, 4, 2, 2))
    return gl.reshape(gl.permute(parts, (0, 1, 3, 2, 4)), (ROWS, COLUMNS))


@gluon.jit
def copy_slots(smem, slots, first, last):
    """Start to copy `slots[first:]` to shared memory, the last active one for those behind it."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    position = first + gl.arange(0, smem.shape[0], LAYOUT)
    async_load(smem, slots + gl.minimum(position, last))


@gluon.jit
def copy_rows(smem, pool, slot, pool_row, live, LAYOUT: gl.constexpr):
    """Start to copy rows `slot` of the pool to shared memory, as pairs of codes, if `live`."""
    column = gl.arange(0, smem.shape[1], gl.SliceLayout(0, LAYOUT))
    # The compiler takes the product for one of 64 bits by 64, where its hoisting has hidden that
    # both are 32 bits wide; rows lie a multiple of 16 bytes apart.
    row = gl.inline_asm_elementwise(
        "mul.wide.s32 $0, $1, $2;", "=l,r,r", [slot, pool_row], gl.int64, is_pure=True, pack=1
    )
    row = pool + gl.multiple_of(row, 8)[:, None]
    async_load(smem, row + column[None, :], mask=(column >= 0)[None, :] & live)


@gluon.jit
def _decode(pairs, ASSEMBLY: gl.constexpr):
    """Pairs of codes as two float16 tensors of the same shape and layout."""
    return gl.inline_asm_elementwise(
        ASSEMBLY, "=r,=r,r", [pairs], (gl.float16, gl.float16), is_pure=True, pack=2
    )


@gluon.jit
def _decode_keys(pairs, CODEC: gl.constexpr, LAYOUT: gl.constexpr):
    """[WARPS, pairs, tokens] as operand [WARPS, columns, tokens], ordered as the queries are."""
    PAIRS: gl.constexpr = pairs.shape[1]
    TOKENS: gl.constexpr = pairs.shape[2]
    front, back = _decode(pairs, _keys_assembly(CODEC))
    halves = gl.reshape(gl.join(front, back), (WARPS, PAIRS // 8, 8, TOKENS, 2))
    keys = gl.reshape(gl.permute(halves, (0, 1, 4, 2, 3)), (WARPS, 2 * PAIRS, TOKENS))
    return gl.convert_layout(keys, LAYOUT, assert_trivial=True)


@gluon.jit
def score(tile, rope_tile, first_query, queries, rope_query, CODEC: gl.constexpr):
    """Partial scores [WARPS, rows, tokens] of a tile; `queries` lie in shared memory."""
    LEFT: gl.constexpr = first_query.type.layout
    SCORE: gl.constexpr = LEFT.parent
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SCORE, 2)
    pairs = by_part(tile).permute((0, 2, 1))
    TOKENS: gl.constexpr = tile.shape[0]
    total = gl.zeros([WARPS, first_query.shape[1], TOKENS], gl.float32, SCORE)
    for step in gl.static_range(4):
        query = first_query
        if step > 0:
            query = queries.index(step - 1).load(LEFT)
        words = pairs.slice(16 * step, 16, 1).load(_keys_layout(16))
        total = mma_v2(query, _decode_keys(words, CODEC, RIGHT), total)
    words = by_part(rope_tile).permute((0, 2, 1)).load(_keys_layout(8))
    return mma_v2(rope_query, _decode_keys(words, CODEC, RIGHT), total)


@gluon.jit
def sum_in_threads(weight):
    """Sums of four tokens, [rows, 2, 4]: no exchange within the loop."""
    return gl.sum(gl.reshape(weight, (weight.shape[0], 2, 4, 4)), 3)


@gluon.jit
def weigh(parts, weights, decays, top, total, row_scale, start, limit):
    """Store the weights of a tile and the factors of what was added before; returns top, total."""
    score = gl.sum(parts, 0)
    position = start + gl.arange(0, score.shape[1], gl.SliceLayout(0, score.type.layout))
    score = gl.where(position[None, :] < limit, score, float("-inf"))
    # Float16 holds weights of up to 2**8 as well as those of up to 1: few tiles raise the top.
    new_top = gl.max(score, 1) * row_scale
    new_top = gl.where(new_top > top + 8.0, new_top, top)
    # A token of a group may see nothing of a tile: -inf - -inf would be NaN.
    shift = gl.where(new_top == float("-inf"), 0.0, new_top)
    decay = gl.exp2(top - shift)
    weight = gl.exp2(score * row_scale[:, None] - shift[:, None])
    weights.store(weight.to(gl.float16))
    decays.store(decay)
    SUMS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, total.type.layout))
    decay = gl.convert_layout(decay, SUMS, assert_trivial=True)
    return new_top, total * decay[:, None, None] + sum_in_threads(weight)


@gluon.jit
def add_values(tile, weights, decays, raised, even, odd, CODEC: gl.constexpr):
    """Add a tile's weighted values to the sums of even and of odd columns."""
    VALUE: gl.constexpr = even.type.layout
    LEFT: gl.constexpr = gl.DotOperandLayout(0, VALUE, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, VALUE, 2)
    if raised:
        decay = decays.load(gl.SliceLayout(1, VALUE))[:, None]
        even *= decay
        odd *= decay
    TOKENS: gl.constexpr = tile.shape[0]
    for first in gl.static_range(0, TOKENS, 16):
        pairs = tile.slice(first, 16, 0).load(RIGHT)
        values, odd_values = _decode(pairs, _values_assembly(CODEC))
        weight = weights.slice(first, 16, 1).load(LEFT)
        even = mma_v2(weight, values, even)
        odd = mma_v2(weight, odd_values, odd)
    return even, odd
