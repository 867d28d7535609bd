"""What a model runner says of its model: the facts that decide what is served, metric labels."""

from __future__ import annotations

from typing import Any

from ..support import (
    GLUE_GRAPH_VARIABLE,
    HEAD_DIM,
    PLAN_STREAM_VARIABLE,
    Facts,
    allows_experimental,
    is_set,
)
from .pools import mla_pool
from .settings import (
    get_disagg,
    get_exec,
    get_memory,
    get_observability,
    get_parallel,
    get_schedule,
    get_spec,
)


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
        cp_size=get_parallel().attn_cp_size,
        unified_memory=bool(get_memory().enable_unified_memory),
        pdmux=bool(get_disagg().enable_pdmux),
        topk=int(get_spec().speculative_eagle_topk or 0),
        experimental=allows_experimental(),
        plan_stream=is_set(PLAN_STREAM_VARIABLE),
        glue_graph=is_set(GLUE_GRAPH_VARIABLE),
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


def verified_tokens() -> int:
    """Query tokens of each request that a verify step has; 0 without speculative decoding."""
    return int(get_spec().speculative_num_draft_tokens or 0)


def most_new_tokens(runner: Any) -> int:
    """Query tokens that an extend is expected to have at the most."""
    schedule = get_schedule()
    chunk = schedule.chunked_prefill_size or 0
    # Without chunks a prompt comes whole, however long it is.
    longest = chunk if chunk > 0 else runner.model_config.context_len
    return int(max(longest, schedule.max_prefill_tokens))
