"""sglang's KV pools: their rows, how these are stored, and how new keys are written."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, set_mla_kv_buffer_triton

from ..pool.format import PoolFormat, top_code

# What decides how the plain MLA pool writes rows; older releases have the first alone.
WRITERS = ("set_mla_kv_buffer", "_write_mla_kv_buffer")


def pool_rows(pool: Any) -> int:
    """Rows of a layer's buffer: the slots, and one page in front as the sink of padded tokens."""
    return int(pool.size + pool.page_size)


def mla_pool(runner: Any) -> Any:
    """The pool of the MLA layers; a hybrid model keeps it within its own."""
    pool = runner.token_to_kv_pool
    return getattr(pool, "full_kv_pool", pool)


def writes_plainly(pool: Any) -> bool:
    """Whether a pool writes new keys as upstream's plain MLA pool: a cast, then row by row."""
    kind: Any = type(pool)
    return _kind_writes_plainly(kind)


@cache  # asked in every layer of every step
def _kind_writes_plainly(kind: Any) -> bool:
    return all(
        getattr(kind, name, None) is getattr(MLATokenToKVPool, name, None) for name in WRITERS
    )


def pool_format(runner: Any) -> PoolFormat:
    """How the rows of a runner's MLA pool are stored."""
    dtype = mla_pool(runner).dtype
    return PoolFormat(dtype, top_code(dtype, torch.device(runner.device)), reserved_slot())


def reserved_slot() -> int:
    """The slot that upstream's plain MLA pool leaves unwritten; -1 in older releases: none.

    Padded tokens go to slot 0, whose NaN would be read by every padded row.
    """
    skipped = inspect.signature(set_mla_kv_buffer_triton).parameters.get("reserved_skip_index")
    return -1 if skipped is None else int(skipped.default)
