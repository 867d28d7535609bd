"""What Hopper's attention kernels share: decoding, loads, and the queries made ready.

Gluon kernels can't run under Triton's interpreter: they are tested on the GPU only.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

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
def decode(words, CODEC: gl.constexpr):
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
def load_slots(slots, first, last, TOKENS: gl.constexpr, LAYOUT: gl.constexpr):
    # The tail repeats the last active row: a stale row could hold NaN, which a probability of
    # zero does not cancel.
    position = first + gl.arange(0, TOKENS, gl.SliceLayout(1, LAYOUT))
    return gl.load(slots + gl.minimum(position, last))


@gluon.jit
def load_raw(pool, slot, pool_row, LAYOUT: gl.constexpr):
    row = gl.convert_layout(slot, gl.SliceLayout(1, LAYOUT)).to(gl.int64) * pool_row
    word = gl.arange(0, LAYOUT.shape[1], gl.SliceLayout(0, LAYOUT))
    return gl.load(pool + row[:, None] + word[None, :])


@gluon.jit
def power_of_two(exponent):
    return ((exponent + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def item_rows(item, tile, HEADS: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    # Field 7 is zero. As the compiler can't know that, it computes the rows again after the loop
    # instead of holding them in registers.
    row = tile * ROWS + gl.load(item + 7) + gl.arange(0, ROWS, LAYOUT)
    local = row // HEADS
    return local, row % HEADS, local < gl.load(item + 1), (gl.load(item) + local).to(gl.int64)


@gluon.jit
def load_query(
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
    _, head, live, token = item_rows(item, tile, HEADS, ROWS, gl.SliceLayout(1, LAYOUT))
    row = query + (token * token_stride + head * head_stride)[:, None]
    col = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.load(row + col, mask=live[:, None], other=0.0)


@gluon.jit
def operand_order(halves):
    """Columns in the order in which four lanes' runs of 16 bytes make up left operands.

    A lane's registers of a left operand hold columns 2t, 2t + 1, 2t + 8 and 2t + 9 of 16. The sum
    over columns may run in any order, so the 16 bytes that lane t loads can be its share of four
    steps, if the queries' columns are stored in the same order.
    """
    ROWS: gl.constexpr = halves.shape[0]
    COLUMNS: gl.constexpr = halves.shape[1]
    parts = gl.reshape(halves, (ROWS, COLUMNS // 64, 4, 4, 2, 2))
    return gl.reshape(gl.permute(parts, (0, 1, 3, 4, 2, 5)), (ROWS, COLUMNS))


@gluon.jit
def lift_query(nope, rope, nope_smem, rope_smem, OPERAND_ORDER: gl.constexpr):
    """Store both parts as float16, each row times a power of two; returns the exponents."""
    ROW: gl.constexpr = gl.SliceLayout(1, nope.type.layout)
    top = gl.max(gl.abs(rope.to(gl.float32)), 1)
    top = gl.maximum(gl.max(gl.abs(nope.to(gl.float32)), 1), gl.convert_layout(top, ROW))
    exponent = 139 - gl.maximum(top.to(gl.int32, bitcast=True) >> 23, 13)
    lift = power_of_two(exponent)
    rope_lift = gl.convert_layout(lift, gl.SliceLayout(1, rope.type.layout))
    nope = (nope.to(gl.float32) * lift[:, None]).to(gl.float16)
    rope = (rope.to(gl.float32) * rope_lift[:, None]).to(gl.float16)
    if OPERAND_ORDER:
        nope_smem.store(operand_order(nope))
        rope_smem.store(operand_order(rope))
    else:
        nope_smem.store(nope)
        rope_smem.store(rope)
    return exponent
