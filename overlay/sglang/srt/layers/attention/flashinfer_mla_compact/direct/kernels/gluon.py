"""What the attention kernels in Gluon share: loads, and the queries made ready.

Gluon kernels can't run under Triton's interpreter: they are tested on the GPU only.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..work import ITEM_QUERY, ITEM_TOKENS, ITEM_ZERO


@gluon.jit
def load_slots(slots, first, last, TOKENS: gl.constexpr, LAYOUT: gl.constexpr):
    """Slots [TOKENS] from `first` on."""
    # The tail repeats the last active row: a stale row could hold NaN, which a probability of
    # zero does not cancel.
    position = first + gl.arange(0, TOKENS, gl.SliceLayout(1, LAYOUT))
    return gl.load(slots + gl.minimum(position, last))


@gluon.jit
def let_merge_start(EARLY: gl.constexpr):
    """Lets the merge be launched while the last programs finish; it waits for them itself."""
    if EARLY:
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def await_inputs(EARLY: gl.constexpr):
    """Waits for the kernels before this one, which may have been launched before they ended."""
    if EARLY:
        gl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r", [], gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def power_of_two(exponent):
    """float32, of an int32 exponent above -127."""
    return ((exponent + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def item_rows(item, tile, HEADS: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Token within the item, head, whether there is one, and token of the batch; [ROWS] each."""
    # As the compiler can't know that this is zero, it computes the rows again after the loop
    # instead of holding them in registers.
    row = tile * ROWS + gl.load(item + ITEM_ZERO) + gl.arange(0, ROWS, LAYOUT)
    local = row // HEADS
    return (
        local,
        row % HEADS,
        local < gl.load(item + ITEM_TOKENS),
        (gl.load(item + ITEM_QUERY) + local).to(gl.int64),
    )


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
    """A tile's queries, [ROWS, WIDTH]; 0 in rows that are not there."""
    _, head, live, token = item_rows(item, tile, HEADS, ROWS, gl.SliceLayout(1, LAYOUT))
    # The head's stride may be that of all tokens of a step: their product needs 64 bits.
    row = query + (token * token_stride + head.to(gl.int64) * head_stride)[:, None]
    col = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.load(row + col, mask=live[:, None], other=0.0)


@gluon.jit
def lift_query(nope, rope):
    """Both parts as float16, each row times a power of two; and the powers' exponents."""
    ROW: gl.constexpr = gl.SliceLayout(1, nope.type.layout)
    top = gl.max(gl.abs(rope.to(gl.float32)), 1)
    top = gl.maximum(gl.max(gl.abs(nope.to(gl.float32)), 1), gl.convert_layout(top, ROW))
    exponent = 139 - gl.maximum(top.to(gl.int32, bitcast=True) >> 23, 13)
    lift = power_of_two(exponent)
    rope_lift = gl.convert_layout(lift, gl.SliceLayout(1, rope.type.layout))
    nope = (nope.to(gl.float32) * lift[:, None]).to(gl.float16)
    rope = (rope.to(gl.float32) * rope_lift[:, None]).to(gl.float16)
    return nope, rope, exponent
