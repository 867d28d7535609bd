"""Triton kernels around the direct attention: `plan_splits` before it, `merge_splits` after."""

import triton
import triton.language as tl

from .work import (
    ITEM_BEGIN,
    ITEM_END,
    ITEM_FIELDS,
    ITEM_FIRST_SLOT,
    ITEM_LENGTH,
    ITEM_PART,
    ITEM_QUERY,
    ITEM_TOKENS,
    NOPE,
    TOKEN_FIELDS,
    TOKEN_FIRST_PART,
    TOKEN_PLACE,
    TOKEN_SPLITS,
)

_CHUNKS = tl.constexpr(32)  # sizes of a split that are tried, in steps of a 16th


@triton.jit
def _add_round(partial, partial_lse, place, live, col, acc, top, total):
    part_lse = tl.load(partial_lse + place, mask=live, other=float("-inf"))
    part = tl.load(partial + (place * NOPE)[:, None] + col[None, :], mask=live[:, None], other=0.0)
    part = part.to(tl.float32)
    new_top = tl.maximum(top, tl.max(part_lse, 0, keep_dims=True))
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    decay = tl.exp2(top - shift)
    weight = tl.exp2(part_lse - shift)
    acc = acc * decay + tl.sum(weight[:, None] * part, 0)
    return acc, new_top, total * decay + tl.sum(weight, 0, keep_dims=True)


@triton.jit
def merge_splits(
    partial,
    partial_lse,
    token_splits,
    out,
    lse,
    out_token,
    out_head,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    EXPECTED: tl.constexpr,
    WRITE_LSE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program: COLUMNS columns of one head of one token.

    Up to EXPECTED splits are one round, more take rounds of at least 16: what a round holds beyond
    the splits that there are costs as much as they do.
    """
    if EARLY:  # launched before attention has ended
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0)
    head = tl.program_id(1)
    entry = token_splits + token * TOKEN_FIELDS
    first = tl.load(entry + TOKEN_FIRST_PART).to(tl.int64)
    splits = tl.load(entry + TOKEN_SPLITS)
    row = tl.load(entry + TOKEN_PLACE) * HEADS + head
    if splits == 1:
        return
    col = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros((COLUMNS,), tl.float32)
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    if splits <= EXPECTED:
        split = tl.arange(0, EXPECTED)
        place = (first + split) * (GROUP * HEADS) + row
        live = split < splits
        acc, top, total = _add_round(partial, partial_lse, place, live, col, acc, top, total)
    else:
        ROUND: tl.constexpr = 16 if EXPECTED < 16 else EXPECTED
        for done in range(0, splits, ROUND):
            split = done + tl.arange(0, ROUND)
            place = (first + split) * (GROUP * HEADS) + row
            live = split < splits
            acc, top, total = _add_round(partial, partial_lse, place, live, col, acc, top, total)
    acc = acc * tl.where(total == 0.0, 0.0, 1.0 / total)
    target = out + token.to(tl.int64) * out_token + head * out_head + col
    tl.store(target, acc.to(out.dtype.element_ty))
    if WRITE_LSE:
        place = lse + token * HEADS + head + tl.arange(0, 1)
        tl.store(place, top + tl.log2(total), mask=(tl.arange(0, 1) + tl.program_id(2)) == 0)


@triton.jit
def _request(kv_indptr, qo_indptr, request, live, GROUP: tl.constexpr, RAGGED: tl.constexpr):
    first = tl.load(kv_indptr + request, mask=live, other=0)
    length = tl.load(kv_indptr + request + 1, mask=live, other=0) - first
    if RAGGED:
        query = tl.load(qo_indptr + request, mask=live, other=0)
        queries = tl.load(qo_indptr + request + 1, mask=live, other=0) - query
    else:
        query = request * GROUP
        queries = tl.where(live, GROUP, 0)
    return first, length, query, queries


# What differs from step to step selects no other compiled kernel.
@triton.jit(
    do_not_specialize=["requests", "wave", "shortest"],
    do_not_specialize_on_alignment=["kv_indptr", "qo_indptr"],
)
def plan_splits(
    kv_indptr,
    qo_indptr,
    items,
    item_count,
    token_splits,
    requests,
    wave,
    shortest,
    GROUP: tl.constexpr,
    RAGGED: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a request: cut its KV range into items that fill about one wave of programs.

    Each program repeats the sums over all requests, which needs no order between programs.
    """
    me = tl.program_id(0)
    load = tl.zeros((1,), tl.int64)
    for start in range(0, requests, BLOCK):
        other = start + tl.arange(0, BLOCK)
        _, length, _, queries = _request(
            kv_indptr, qo_indptr, other, other < requests, GROUP, RAGGED
        )
        groups = tl.cdiv(queries, GROUP)
        load += tl.sum(groups.to(tl.int64) * length, 0, keep_dims=True)
    even = tl.cdiv(tl.cdiv(tl.sum(load, 0), wave), TOKENS) * TOKENS
    even = tl.minimum(tl.maximum(even, shortest), 1 << 28).to(tl.int32)  # chunks stay in 32 bits
    # The last split of each range is short, so even shares may come to a few items more than run
    # at once, and those would take as long again: the smallest of some chunks that fits is taken.
    step = tl.cdiv(even, 16 * TOKENS) * TOKENS
    chunks = even + step * tl.arange(0, _CHUNKS)
    counts = tl.zeros((_CHUNKS,), tl.int32)
    for start in range(0, requests, BLOCK):
        other = start + tl.arange(0, BLOCK)
        _, length, _, queries = _request(
            kv_indptr, qo_indptr, other, other < requests, GROUP, RAGGED
        )
        splits = tl.cdiv(length[:, None], chunks[None, :])
        counts += tl.sum(tl.cdiv(queries, GROUP)[:, None] * splits, 0)
    fitting = tl.min(tl.where(counts <= wave, chunks, 0x7FFFFFFF), 0)
    chunk = tl.where(fitting == 0x7FFFFFFF, even, fitting)

    items_before = tl.zeros((1,), tl.int32)
    partials_before = tl.zeros((1,), tl.int32)
    for start in range(0, me, BLOCK):
        other = start + tl.arange(0, BLOCK)
        _, length, _, queries = _request(kv_indptr, qo_indptr, other, other < me, GROUP, RAGGED)
        splits = tl.cdiv(length, chunk)
        count = tl.cdiv(queries, GROUP) * splits
        items_before += tl.sum(count, 0, keep_dims=True)
        partials_before += tl.sum(tl.where(splits > 1, count, 0), 0, keep_dims=True)
    first_item = tl.sum(items_before, 0)
    first_partial = tl.sum(partials_before, 0)

    first_slot, length, query, queries = _request(
        kv_indptr, qo_indptr, me, me < requests, GROUP, RAGGED
    )
    splits = tl.cdiv(length, chunk)
    width = tl.cdiv(tl.cdiv(length, tl.maximum(splits, 1)), TOKENS) * TOKENS
    width = tl.maximum(width, TOKENS)
    count = tl.cdiv(queries, GROUP) * splits
    if me == requests - 1:
        tl.store(item_count, first_item + count)

    for start in range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        live = index < count
        group = index // splits
        begin = (index % splits) * width
        tokens = tl.minimum(queries - group * GROUP, GROUP)
        limit = tl.maximum(length - queries + group * GROUP + tokens, 0)
        item = items + (first_item + index) * ITEM_FIELDS
        tl.store(item + ITEM_QUERY, query + group * GROUP, mask=live)
        tl.store(item + ITEM_TOKENS, tokens, mask=live)
        tl.store(item + ITEM_FIRST_SLOT, first_slot + tl.zeros_like(index), mask=live)
        tl.store(item + ITEM_BEGIN, begin, mask=live)
        tl.store(item + ITEM_END, tl.minimum(begin + width, limit), mask=live)
        tl.store(item + ITEM_LENGTH, limit, mask=live)
        tl.store(item + ITEM_PART, tl.where(limit > width, first_partial + index, -1), mask=live)

    for start in range(0, queries, BLOCK):
        index = start + tl.arange(0, BLOCK)
        live = index < queries
        group = index // GROUP
        tokens = tl.minimum(queries - group * GROUP, GROUP)
        limit = tl.maximum(length - queries + group * GROUP + tokens, 0)
        entry = token_splits + (query + index) * TOKEN_FIELDS
        tl.store(entry + TOKEN_FIRST_PART, first_partial + group * splits, mask=live)
        tl.store(entry + TOKEN_SPLITS, tl.cdiv(limit, width), mask=live)
        tl.store(entry + TOKEN_PLACE, index % GROUP, mask=live)
