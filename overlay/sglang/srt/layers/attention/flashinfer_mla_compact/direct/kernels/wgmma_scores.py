"""Half of Hopper's attention kernel for 64 query rows: one warpgroup makes the weights of a tile.

A warpgroup that holds whole rows of scores needs no exchange with others for a maximum or a sum.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..work import ITEM_LENGTH, ITEM_PART, ITEM_TOKENS, WIDTH
from .gluon import item_rows, load_slots

TILE = gl.constexpr(64)  # tokens of a tile
# A maximum that grew by less leaves the sums as they are: weights stay below 2 ** 8.
SLACK = gl.constexpr(8.0)
SCORE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
HEAD = gl.constexpr(gl.SliceLayout(1, SCORE))
# Lines of 128 bytes of each row of a tile.
LINES = gl.constexpr(gl.BlockedLayout([1, 4], [16, 2], [4, 1], [1, 0]))
ROW_WORDS = gl.constexpr(WIDTH.value // 4)
# Tiles between the one that is scored and the one that is brought to L2.
AHEAD = gl.constexpr(4)
# The scores' own registers, [rows, tokens // 8, 8].
PARTS = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [8, 0, 0], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        lane_bases=[[0, 0, 2], [0, 0, 4], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        warp_bases=[[16, 0, 0], [32, 0, 0]],
        block_bases=[],
        shape=[64, 8, 8],
    )
)


@gluon.jit
def _multiply(nope, rope, keys, rope_keys):
    score = gl.zeros([TILE, TILE], gl.float32, SCORE)
    score = warpgroup_mma(nope, keys.permute((1, 0)), score, use_acc=False, is_async=True)
    score = warpgroup_mma(rope, rope_keys.permute((1, 0)), score, is_async=True)
    return warpgroup_mma_wait(0, deps=[score])


@gluon.jit
def _hide(score, start, end, seen, GROUP: gl.constexpr):
    position = start + gl.arange(0, TILE, gl.SliceLayout(0, SCORE))
    if GROUP > 1:
        score = gl.where(position[None, :] < seen[:, None], score, float("-inf"))
    elif start + TILE > end:
        score = gl.where((position < end)[None, :], score, float("-inf"))
    return score


@gluon.jit
def _sum_in_threads(weight):
    """Sums of what each thread holds of a row, [rows, 8]: no exchange within the loop."""
    parts = gl.reshape(weight, (TILE, TILE // 8, 8))
    return gl.sum(gl.convert_layout(parts, PARTS, assert_trivial=True), 1)


@gluon.jit
def _weigh(score, top, row_scale):
    """Weights of a tile, what the sums before it are to be multiplied by, and the maxima."""
    tile_top = gl.max(score, 1) * row_scale
    new_top = gl.where(tile_top > top + SLACK, tile_top, top)
    # A token of a group may see nothing of a tile: -inf - -inf would be NaN.
    shift = gl.where(new_top == float("-inf"), 0.0, new_top)
    weight = gl.exp2(score * row_scale[:, None] - shift[:, None])
    return weight, gl.exp2(top - shift), new_top


@gluon.jit
def _store_lse(
    row_lse,
    item,
    tile,
    partial_lse,
    lse,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    WRITE_LSE: gl.constexpr,
):
    local, head, live, token = item_rows(item, tile, HEADS, TILE, HEAD)
    place = gl.load(item + ITEM_PART)
    if place >= 0:
        first = place.to(gl.int64) * (GROUP * HEADS)
        gl.store(partial_lse + (first + local * HEADS + head), row_lse, mask=live)
    elif WRITE_LSE:
        gl.store(lse + token * HEADS + head, row_lse, mask=live)


@gluon.jit
def _fetch_ahead(rows, slot):
    """Ask for a tile's rows to be brought to L2: registers hold no more than one tile ahead."""
    pool, _, pool_row = rows
    word = gl.minimum(gl.arange(0, 8, gl.SliceLayout(0, LINES)) * 32, ROW_WORDS - 1)
    line = pool + (slot.to(gl.int64) * pool_row)[:, None] + word[None, :]
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [line.to(gl.int64)],
        gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def weigh_tiles(
    work,
    results,
    rows,
    shared,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    WRITE_LSE: gl.constexpr,
):
    """Weights of each tile into shared memory, then what a row's values are to be divided by."""
    item, tile, begin, end = work
    queries, tiles, shares, barriers = shared
    nope, rope, scales = queries
    keys, rope_keys = tiles
    weights, decays = shares
    ready, full, weighed, added = barriers
    _, slots, _ = rows
    if GROUP * HEADS <= TILE:  # else the item's other query rows bring them
        for ahead in gl.static_range(AHEAD):
            slot = load_slots(slots, begin + ahead * TILE, end - 1, TILE, LINES)
            _fetch_ahead(rows, slot)
    local, _, _, _ = item_rows(item, tile, HEADS, TILE, HEAD)
    seen = gl.minimum(gl.load(item + ITEM_LENGTH) - gl.load(item + ITEM_TOKENS) + 1 + local, end)
    top = gl.full([TILE], float("-inf"), gl.float32, HEAD)
    total = _sum_in_threads(gl.zeros([TILE, TILE], gl.float32, SCORE))
    SUMS: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    mbarrier.wait(ready, 0)
    row_scale = scales.load(HEAD)
    slot = load_slots(slots, begin + AHEAD * TILE, end - 1, TILE, LINES)
    done = 0
    for start in range(begin, end, TILE):
        if GROUP * HEADS <= TILE:
            _fetch_ahead(rows, slot)
            slot = load_slots(slots, start + (AHEAD + 1) * TILE, end - 1, TILE, LINES)
        buffer = done & 1
        mbarrier.wait(full.index(buffer), (done >> 1) & 1)
        score = _multiply(nope, rope, keys.index(buffer), rope_keys.index(buffer))
        score = _hide(score, start, end, seen, GROUP)
        weight, decay, top = _weigh(score, top, row_scale)
        mbarrier.wait(added, (done & 1) ^ 1)
        decays.store(decay)
        weights.store(weight.to(gl.float16))
        fence_async_shared()
        mbarrier.arrive(weighed, count=1)
        decay = gl.convert_layout(decay, SUMS, assert_trivial=True)
        total = total * decay[:, None] + _sum_in_threads(weight)
        done += 1

    sums = gl.convert_layout(gl.sum(total, 1), HEAD)
    mbarrier.wait(added, (done & 1) ^ 1)
    decays.store(gl.where(sums == 0.0, 0.0, 1.0 / sums))
    mbarrier.arrive(weighed, count=1)
    partial_lse, lse = results
    row_lse = top + gl.log2(sums)
    _store_lse(row_lse, item, tile, partial_lse, lse, HEADS, GROUP, WRITE_LSE)
