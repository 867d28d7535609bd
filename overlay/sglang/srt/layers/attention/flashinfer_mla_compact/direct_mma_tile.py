"""What `direct_mma` does with one tile: copy its rows, score them, weigh them, add their values."""

from sglang.srt.layers.attention.flashinfer_mla_compact.direct_codecs import EVEN_ODD, IN_ORDER
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import num_warps  # not in the Gluon of Triton 3.5
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

# Triton 3.9 knows the copy under the first name only, Triton 3.6 under the second.
_async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
PARTS = gl.constexpr(4)  # of the columns, as the scores are shared out among warps


@gluon.constexpr_function
def _keys_assembly(codec):
    return IN_ORDER[codec]


@gluon.constexpr_function
def _values_assembly(codec):
    return EVEN_ODD[codec]


@gluon.constexpr_function
def _bits(count):
    return range(count.bit_length() - 1)


@gluon.constexpr_function
def _keys_layout(pairs, tokens, warps):
    # Four lanes hold eight pairs of a token: 16 columns, which a step of the product takes.
    return gl.DistributedLinearLayout(
        reg_bases=[
            [0, 1, 0],
            *([0, 8 << bit, 0] for bit in _bits(pairs // 8)),
            *([0, 0, 8 << bit] for bit in _bits(tokens // 8)),
        ],
        lane_bases=[[0, 2, 0], [0, 4, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]],
        warp_bases=[*([0, 0, 0] for _ in _bits(warps // 4)), [1, 0, 0], [2, 0, 0]],
        block_bases=[],
        shape=[4, pairs, tokens],
    )


@gluon.constexpr_function
def sums_layout(rows, tokens, warps):
    # A thread adds up the parts of four tokens of a row; a row lies within a warp.
    lanes = [[0, 0, 4 << bit] for bit in _bits(tokens // 4)]
    spread = [[0, 1 << bit, 0] for bit in _bits(rows)]
    ours = 5 - len(lanes)
    theirs = ours + len(_bits(warps))
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 0, 2], *spread[theirs:], [1, 0, 0], [2, 0, 0]],
        lane_bases=[*lanes, *spread[:ours]],
        warp_bases=spread[ours:theirs],
        block_bases=[],
        shape=[4, rows, tokens],
    )


@gluon.constexpr_function
def swizzled(row_bytes, vector, dtype_bytes, rank=2):
    # Eight rows of the same 16 (or 32) bytes lie in different banks.
    return gl.SwizzledSharedLayout(
        vector // dtype_bytes,
        max(128 // row_bytes, 1),
        min(row_bytes, 128) // vector,
        list(reversed(range(rank))),
    )


@gluon.jit
def by_part(smem):
    """[rows, PARTS * columns] seen as [PARTS, rows, columns]."""
    COLUMNS: gl.constexpr = smem.shape[1] // PARTS
    return smem.reshape((smem.shape[0], PARTS, COLUMNS)).permute((1, 0, 2))


@gluon.jit
def operand_order(halves):
    """Columns 4t + 2f + i of 16 become 8f + 2t + i: a lane's four bytes are its operand."""
    ROWS: gl.constexpr = halves.shape[0]
    COLUMNS: gl.constexpr = halves.shape[1]
    parts = gl.reshape(halves, (ROWS, COLUMNS // 16, 4, 2, 2))
    return gl.reshape(gl.permute(parts, (0, 1, 3, 2, 4)), (ROWS, COLUMNS))


@gluon.jit
def copy_rows(smem, pool, slot, pool_row, LAYOUT: gl.constexpr):
    column = gl.arange(0, smem.shape[1], gl.SliceLayout(0, LAYOUT))
    row = pool + (slot.to(gl.int64) * pool_row)[:, None]
    _async_load(smem, row + column[None, :])


@gluon.jit
def _decode_keys(pairs, CODEC: gl.constexpr, LAYOUT: gl.constexpr):
    """[PARTS, pairs, tokens] as operand [PARTS, columns, tokens], ordered as the queries are."""
    PAIRS: gl.constexpr = pairs.shape[1]
    TOKENS: gl.constexpr = pairs.shape[2]
    front, back = gl.inline_asm_elementwise(
        _keys_assembly(CODEC),
        "=r,=r,r",
        [pairs],
        (gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )
    halves = gl.reshape(gl.join(front, back), (PARTS, PAIRS // 8, 8, TOKENS, 2))
    keys = gl.reshape(gl.permute(halves, (0, 1, 4, 2, 3)), (PARTS, 2 * PAIRS, TOKENS))
    return gl.convert_layout(keys, LAYOUT, assert_trivial=True)


@gluon.jit
def _score(pairs, rope_pairs, q0, q1, q2, q3, q_rope, CODEC: gl.constexpr):
    """Partial scores [PARTS, rows, tokens] of pairs [PARTS, pairs, tokens]."""
    SCORE: gl.constexpr = q0.type.layout.parent
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SCORE, 2)
    ROWS: gl.constexpr = q0.shape[1]
    TOKENS: gl.constexpr = pairs.shape[2]
    NOPE_STEP: gl.constexpr = _keys_layout(16, TOKENS, num_warps())
    ROPE_STEP: gl.constexpr = _keys_layout(8, TOKENS, num_warps())
    score = gl.zeros([PARTS, ROWS, TOKENS], gl.float32, SCORE)
    for step in gl.static_range(4):
        if step == 0:
            query = q0
        elif step == 1:
            query = q1
        elif step == 2:
            query = q2
        else:
            query = q3
        keys = _decode_keys(pairs.slice(16 * step, 16, 1).load(NOPE_STEP), CODEC, RIGHT)
        score = mma_v2(query, keys, score)
    keys = _decode_keys(rope_pairs.load(ROPE_STEP), CODEC, RIGHT)
    return mma_v2(by_part(q_rope).load(q0.type.layout), keys, score)


@gluon.jit
def score_tile(exchange, tile, rope_tile, q0, q1, q2, q3, q_rope, CODEC: gl.constexpr):
    """Store the partial scores of a tile; `q_rope` lies in shared memory."""
    # Four sums of a warp are under way at once, enough to hide a product's latency.
    STEP: gl.constexpr = 128 * num_warps() // q0.shape[1]
    TOKENS: gl.constexpr = tile.shape[0]
    pairs = by_part(tile).permute((0, 2, 1))
    rope_pairs = by_part(rope_tile).permute((0, 2, 1))
    for first in gl.static_range(0, TOKENS, STEP):
        score = _score(
            pairs.slice(first, STEP, 2),
            rope_pairs.slice(first, STEP, 2),
            q0,
            q1,
            q2,
            q3,
            q_rope,
            CODEC,
        )
        exchange.slice(first, STEP, 2).store(score)


@gluon.jit
def sum_in_threads(weight):
    return gl.sum(gl.reshape(weight, (weight.shape[0], weight.shape[1] // 4, 4)), 2)


@gluon.jit
def weigh(exchange, weights, decays, top, total, row_scale, start, limit, SUMS: gl.constexpr):
    """Store the weights of a tile and the factors of what was added before; returns top, total."""
    score = gl.sum(exchange.load(SUMS), 0) * row_scale[:, None]
    position = start + gl.arange(0, score.shape[1], gl.SliceLayout(0, score.type.layout))
    score = gl.where(position[None, :] < limit, score, float("-inf"))
    # Float16 holds weights of up to 2**8 as well as those of up to 1: few tiles raise the top.
    new_top = gl.max(score, 1)
    new_top = gl.where(new_top > top + 8.0, new_top, top)
    # A token of a group may see nothing of a tile: -inf - -inf would be NaN.
    shift = gl.where(new_top == float("-inf"), 0.0, new_top)
    decay = gl.exp2(top - shift)
    weight = gl.exp2(score - shift[:, None])
    weights.store(weight.to(gl.float16))
    decays.store(decay)
    decay = gl.convert_layout(decay, gl.SliceLayout(1, total.type.layout), assert_trivial=True)
    return new_top, total * decay[:, None] + sum_in_threads(weight)


@gluon.jit
def add_values(tile, weights, decays, even, odd, CODEC: gl.constexpr):
    """Add a tile's weighted values to the sums of even and of odd columns."""
    VALUE: gl.constexpr = even.type.layout
    LEFT: gl.constexpr = gl.DotOperandLayout(0, VALUE, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, VALUE, 2)
    decay = decays.load(gl.SliceLayout(1, VALUE))
    if gl.min(decay, 0) < 1.0:
        even *= decay[:, None]
        odd *= decay[:, None]
    TOKENS: gl.constexpr = tile.shape[0]
    for first in gl.static_range(0, TOKENS, 16):
        pairs = tile.slice(first, 16, 0).load(RIGHT)
        values, odd_values = gl.inline_asm_elementwise(
            _values_assembly(CODEC),
            "=r,=r,r",
            [pairs],
            (gl.float16, gl.float16),
            is_pure=True,
            pack=2,
        )
        weight = weights.slice(first, 16, 1).load(LEFT)
        even = mma_v2(weight, values, even)
        odd = mma_v2(weight, odd_values, odd)
    return even, odd
