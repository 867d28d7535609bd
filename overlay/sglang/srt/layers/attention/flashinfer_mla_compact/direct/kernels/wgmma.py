"""The attention kernel of the direct path for Hopper, 64 query rows: same arguments and numbers as
`plain.attend_splits_plain`.

Of three warpgroups one makes weights (`wgmma_scores`), two decode tiles and add up values:
what a tile waits for is done while another one is worked on, which eight warps in step can't.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..triton_release import reinterpret
from ..work import ITEM_BEGIN, ITEM_END, ITEM_FIELDS, ITEM_FIRST_SLOT, ITEM_PART, NOPE, ROPE
from .codecs import WORDS
from .gluon import (
    await_inputs,
    item_rows,
    let_merge_start,
    lift_query,
    load_query,
    load_slots,
    power_of_two,
)
from .wgmma_scores import TILE, weigh_tiles

WARPS = gl.constexpr(8)  # that decode and add; four more make weights
# A thread of the four; the eight have what is left of the SM's. Neither spills within its loop.
SCORE_REGISTERS = gl.constexpr(104)
VALUE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 256, 16]))
VALUE_HEAD = gl.constexpr(gl.SliceLayout(1, VALUE))
COLUMN = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [8, 1], [1, 0]))
_E4M3 = gl.constexpr(WORDS["e4m3"])
_E5M2 = gl.constexpr(WORDS["e5m2"])
# A row as words of four codes.
_WORDS = gl.constexpr(NOPE.value // 4)
_ROPE_WORDS = gl.constexpr(ROPE.value // 4)


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


@gluon.constexpr_function
def _raw_layout(words):
    # Four lanes load 64 bytes of a row: the halves that a quarter-warp then stores lie in two
    # rows, whose swizzles differ in parity, so that the eight stores hit all banks once.
    columns = [[0, 16 << bit] for bit in range((words // 16).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], *columns],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[8, 0], [16, 0], [32, 0]],
        block_bases=[],
        shape=[64, words],
    )


@gluon.constexpr_function
def _whole_layout():
    # Every warp holds all rows: a minimum needs no exchange between warps.
    return gl.DistributedLinearLayout(
        reg_bases=[[1], [2]],
        lane_bases=[[4], [8], [16], [32], [0]],
        warp_bases=[[0], [0], [0]],
        block_bases=[],
        shape=[64],
    )


@gluon.jit
def _load_words(pool, slot, pool_row, LAYOUT: gl.constexpr):
    row = gl.convert_layout(slot, gl.SliceLayout(1, LAYOUT)).to(gl.int64) * pool_row
    word = gl.arange(0, LAYOUT.shape[1], gl.SliceLayout(0, LAYOUT))
    return gl.load(pool + row[:, None] + word[None, :])


@gluon.jit
def _load_tile(rows, start, end):
    """The codes of a tile, from slots that were loaded before, and the slots of the next one."""
    pool, slots, pool_row, slot = rows
    nope = _load_words(pool, slot, pool_row, _raw_layout(_WORDS))
    rope = _load_words(pool + _WORDS, slot, pool_row, _raw_layout(_ROPE_WORDS))
    return nope, rope, load_slots(slots, start + TILE, end - 1, TILE, _raw_layout(_WORDS))


@gluon.jit
def _store_tile(nope, rope, tiles, full, buffer, CODEC: gl.constexpr):
    keys, rope_keys = tiles
    keys.index(buffer).store(_decode(nope, CODEC))
    rope_keys.index(buffer).store(_decode(rope, CODEC))
    fence_async_shared()
    mbarrier.arrive(full.index(buffer), count=1)


@gluon.jit
def _ready_queries(query, work, queries, ready, HEADS: gl.constexpr):
    LATENT: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    ROTARY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    q_nope, q_rope, nope_token, nope_head, rope_token, rope_head, scale = query
    item, tile, _, _ = work
    nope, rope, scales = queries
    nope_halves, rope_halves, exponent = lift_query(
        load_query(q_nope, nope_token, nope_head, item, tile, HEADS, TILE, NOPE, LATENT),
        load_query(q_rope, rope_token, rope_head, item, tile, HEADS, TILE, ROPE, ROTARY),
    )
    nope.store(nope_halves)
    rope.store(rope_halves)
    scales.store(scale * power_of_two(-exponent))
    fence_async_shared()
    mbarrier.arrive(ready, count=1)


@gluon.jit
def _store_values(acc, keys, results, item, tile, HEADS: gl.constexpr, GROUP: gl.constexpr):
    partial, out, out_token, out_head = results
    # By way of the tiles' place: an instruction would store parts of eight rows.
    lines = reinterpret(keys, gl.float32, [TILE, NOPE], gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
    lines.store(acc)
    result = lines.load(COLUMN)
    col = gl.arange(0, NOPE, gl.SliceLayout(0, COLUMN))[None, :]
    local, head, live, token = item_rows(item, tile, HEADS, TILE, gl.SliceLayout(1, COLUMN))
    place = gl.load(item + ITEM_PART)
    if place >= 0:
        first = place.to(gl.int64) * (GROUP * HEADS)
        part = partial + ((first + local * HEADS + head) * NOPE)[:, None]
        gl.store(part + col, result.to(partial.dtype.element_ty), mask=live[:, None])
    else:
        row = out + (token * out_token + head * out_head)[:, None]
        gl.store(row + col, result.to(out.dtype.element_ty), mask=live[:, None])


@gluon.jit
def _add_tiles(
    work,
    results,
    query,
    rows,
    shared,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    CODEC: gl.constexpr,
    EARLY: gl.constexpr,
):
    item, tile, begin, end = work
    pool, slots, pool_row = rows
    queries, tiles, shares, barriers = shared
    weights, decays = shares
    ready, full, weighed, added = barriers
    slot = load_slots(slots, begin, end - 1, TILE, _raw_layout(_WORDS))
    _ready_queries(query, work, queries, ready, HEADS)
    nope, rope, slot = _load_tile((pool, slots, pool_row, slot), begin, end)
    _store_tile(nope, rope, tiles, full, 0, CODEC)
    # Not before the fence of the tile before, which waits for loads that are under way.
    nope, rope, slot = _load_tile((pool, slots, pool_row, slot), begin + TILE, end)
    acc = gl.zeros([TILE, NOPE], gl.float32, VALUE)
    done = 0
    for start in range(begin, end, TILE):
        buffer = done & 1
        if start + TILE < end:
            _store_tile(nope, rope, tiles, full, buffer ^ 1, CODEC)
        nope, rope, slot = _load_tile((pool, slots, pool_row, slot), start + 2 * TILE, end)
        mbarrier.wait(weighed, buffer)
        if gl.min(decays.load(_whole_layout()), 0) < 1.0:
            acc = acc * decays.load(VALUE_HEAD)[:, None]
        acc = warpgroup_mma(weights, tiles[0].index(buffer), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(added, count=1)
        done += 1

    let_merge_start(EARLY)
    mbarrier.wait(weighed, done & 1)
    acc = acc * decays.load(VALUE_HEAD)[:, None]
    _store_values(acc, tiles[0], results, item, tile, HEADS, GROUP)


@gluon.jit(do_not_specialize_on_alignment=["slots"])
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
    EARLY: gl.constexpr,
):
    """One program: 64 (token, head) rows of one item. `scale` includes log2(e)."""
    gl.static_assert(ROWS == TILE and TOKENS == TILE)
    HALVES: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    FLOATS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    await_inputs(EARLY)
    TILES: gl.constexpr = (GROUP * HEADS + ROWS - 1) // ROWS
    index = gl.program_id(0) // TILES
    tile = gl.program_id(0) % TILES
    item = items + index * ITEM_FIELDS
    begin = gl.load(item + ITEM_BEGIN)
    end = gl.load(item + ITEM_END)
    if (index >= gl.load(item_count)) | (begin >= end):
        return
    nope = gl.allocate_shared_memory(gl.float16, [TILE, NOPE], HALVES)
    rope = gl.allocate_shared_memory(gl.float16, [TILE, ROPE], HALVES)
    keys = gl.allocate_shared_memory(gl.float16, [2, TILE, NOPE], HALVES)
    rope_keys = gl.allocate_shared_memory(gl.float16, [2, TILE, ROPE], HALVES)
    weights = gl.allocate_shared_memory(gl.float16, [TILE, TILE], HALVES)
    scales = gl.allocate_shared_memory(gl.float32, [TILE], FLOATS)
    decays = gl.allocate_shared_memory(gl.float32, [TILE], FLOATS)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    others = gl.allocate_shared_memory(gl.int64, [3, 1], BARRIER)
    for one in gl.static_range(2):
        mbarrier.init(full.index(one), count=1)
    for one in gl.static_range(3):
        mbarrier.init(others.index(one), count=1)

    work = (item, tile, begin, end)
    query = (q_nope, q_rope, nope_token, nope_head, rope_token, rope_head, scale)
    queries = (nope, rope, scales)
    tiles = (keys, rope_keys)
    shares = (weights, decays)
    # The queries are there; a tile is there; its weights are; they may be overwritten.
    barriers = (others.index(0), full, others.index(1), others.index(2))
    results = (partial, out, out_token, out_head)
    pool = pool.to(gl.pointer_type(gl.int32))
    slots += gl.load(item + ITEM_FIRST_SLOT)
    rows = (pool, slots, pool_row // 4)
    shared = (queries, tiles, shares, barriers)
    gl.warp_specialize(
        [
            (_add_tiles, (work, results, query, rows, shared, HEADS, GROUP, CODEC, EARLY)),
            (weigh_tiles, (work, (partial_lse, lse), rows, shared, HEADS, GROUP, WRITE_LSE)),
        ],
        [4],
        [SCORE_REGISTERS],
    )
