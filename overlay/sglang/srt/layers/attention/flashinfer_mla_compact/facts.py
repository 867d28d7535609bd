"""Reads from a model runner what `support` decides on, and from its pool how keys are written."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from sglang.srt.layers.attention.flashinfer_mla_compact.context import (
    get_disagg,
    get_exec,
    get_memory,
    get_observability,
    get_parallel,
    get_spec,
)
from sglang.srt.layers.attention.flashinfer_mla_compact.support import (
    HEAD_DIM,
    Facts,
    allows_experimental,
    has_plan_stream,
)
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, set_mla_kv_buffer_triton

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


def reserved_slot() -> int:
    """The slot that upstream's plain MLA pool leaves unwritten; -1 in older releases: none.

    Padded tokens go to slot 0, whose NaN would be read by every padded row.
    """
    skipped = inspect.signature(set_mla_kv_buffer_triton).parameters.get("reserved_skip_index")
    return -1 if skipped is None else int(skipped.default)


def runner_facts(runner: Any) -> Facts:
    """The facts of a runner whose KV pool is allocated."""
    model = runner.model_config
    pool = mla_pool(runner)
    return Facts(
        kv_lora_rank=model.kv_lora_rank,
        qk_rope_head_dim=model.qk_rope_head_dim,
        pool_class=type(pool).__name__,
        pool_dtype=str(pool.dtype).removeprefix("torch."),
        kv_cache_dim=getattr(pool, "kv_cache_dim", HEAD_DIM),
        is_dsa=bool(getattr(pool, "use_dsa", False) or getattr(pool, "use_nsa", False)),
        prefill_graph=str(
            getattr(get_exec().graph.cuda_graph_config.prefill, "backend", "disabled")
        ),
        dcp_size=get_parallel().attn_dcp_size,
        unified_memory=bool(get_memory().enable_unified_memory),
        pdmux=bool(get_disagg().enable_pdmux),
        topk=int(get_spec().speculative_eagle_topk or 0),
        experimental=allows_experimental(),
        plan_stream=has_plan_stream(),
    )


def metric_labels(runner: Any) -> dict[str, str] | None:
    """Labels of a runner's counters; None where the server keeps no metrics."""
    if not get_observability().enable_metrics:
        return None
    parallel = get_parallel()
    return {
        "model": "draft" if runner.is_draft_worker else "target",
        "tp_rank": str(parallel.tp_rank),
        "pp_rank": str(parallel.pp_rank),
    }
