"""The widths of a row, and the tables that `plan_splits` writes and the other kernels read."""

import triton.language as tl

NOPE = tl.constexpr(512)  # latent values of a row
ROPE = tl.constexpr(64)  # rotary values behind them
WIDTH = tl.constexpr(NOPE.value + ROPE.value)

# A work item is one split of one group of query tokens, int32 [ITEM_FIELDS].
ITEM_FIELDS = tl.constexpr(8)
ITEM_QUERY = tl.constexpr(0)  # first query token
ITEM_TOKENS = tl.constexpr(1)  # query tokens
ITEM_FIRST_SLOT = tl.constexpr(2)  # of the request
ITEM_BEGIN = tl.constexpr(3)  # of the split, in tokens of the request
ITEM_END = tl.constexpr(4)
ITEM_LENGTH = tl.constexpr(5)  # KV tokens that the last query token sees
ITEM_PART = tl.constexpr(6)  # place of the partial result; -1 for none
ITEM_ZERO = tl.constexpr(7)  # always zero, which the compiler can't know

# A query token's entry, int32 [TOKEN_FIELDS]; the fourth field is unused.
TOKEN_FIELDS = tl.constexpr(4)
TOKEN_FIRST_PART = tl.constexpr(0)
TOKEN_SPLITS = tl.constexpr(1)
TOKEN_PLACE = tl.constexpr(2)  # in its group
