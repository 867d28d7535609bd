"""What the backend serves, what it refuses and why: importable without torch and without sglang.

Launch-time tools load this file by path and ask it the same questions as the server does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

NAME = "flashinfer_mla_compact"
VERSION = "0.1.0"

KV_LORA_RANK = 512
QK_ROPE_HEAD_DIM = 64
HEAD_DIM = KV_LORA_RANK + QK_ROPE_HEAD_DIM

FP8_DTYPES = ("float8_e4m3fn", "float8_e5m2")
UNCAST_DTYPES = ("bfloat16", "float16")

EXPERIMENTAL_VARIABLE = "FLASHINFER_ALLOW_EXPERIMENTAL_AUTO_BACKENDS"
PLAN_STREAM_VARIABLE = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"
GLUE_GRAPH_VARIABLE = "SGLANG_ENABLE_METADATA_GLUE_GRAPH"


@dataclass(frozen=True)
class Facts:
    """What the answer depends on; each field is named as sglang names it.

    Attributes:
        pool_class: class name of the KV pool.
        pool_dtype: the pool's dtype without "torch.", for example "float8_e4m3fn".
        kv_cache_dim: values in a row of the pool; 576, or 656 bytes for a quantised DSA row.
        is_dsa: the model selects tokens with an indexer (GLM-5, DeepSeek-V3.2).
        prefill_graph: "breakable", "tc_piecewise", "full" or "disabled".
        topk: speculative_eagle_topk; 0 without speculative decoding.
        experimental: FlashInfer may choose among its experimental backends, too.
        cp_size: attn_cp_size, the ranks that share the prefill of a prompt.
        plan_stream: speculative steps are planned on a stream of their own.
        glue_graph: plans are recorded into a graph.
    """

    kv_lora_rank: int = KV_LORA_RANK
    qk_rope_head_dim: int = QK_ROPE_HEAD_DIM
    pool_class: str = "MLATokenToKVPool"
    pool_dtype: str = "float8_e4m3fn"
    kv_cache_dim: int = HEAD_DIM
    is_dsa: bool = False
    prefill_graph: str = "disabled"
    dcp_size: int = 1
    cp_size: int = 1
    unified_memory: bool = False
    pdmux: bool = False
    topk: int = 0
    experimental: bool = False
    plan_stream: bool = False
    glue_graph: bool = False


def allows_experimental(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether FlashInfer, from 0.7 on, would choose an experimental backend in this environment."""
    return environment.get(EXPERIMENTAL_VARIABLE) == "1"


def is_set(variable: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a variable of sglang's is switched on; read as sglang reads it."""
    return environment.get(variable, "").lower() in ("true", "1", "yes", "y")


def casts_keys(facts: Facts) -> bool:
    """Whether stock would cast this pool; where it would not, the backend is stock."""
    return facts.pool_dtype not in UNCAST_DTYPES


def refusals(facts: Facts) -> list[str]:
    """One sentence for each thing that can't be served, with its remedy; empty when all is well."""
    return [reason for check in _CHECKS if (reason := check(facts))]


def notices(facts: Facts) -> list[str]:
    """What an operator should know once, although it is served."""
    if not facts.is_dsa:
        return []
    return [
        "this model was trained with sparse attention; FlashInfer MLA attends to every token, "
        "which differs from it once a context is longer than the model's index_topk"
    ]


def _head_dims(facts: Facts) -> str | None:
    dims = (facts.kv_lora_rank, facts.qk_rope_head_dim)
    if dims == (KV_LORA_RANK, QK_ROPE_HEAD_DIM):
        return None
    return (
        f"kv_lora_rank + qk_rope_head_dim is {dims[0]} + {dims[1]}, and FlashInfer's MLA kernels "
        f"are right for {KV_LORA_RANK} + {QK_ROPE_HEAD_DIM} alone: use --attention-backend triton."
    )


def _pool(facts: Facts) -> str | None:
    if facts.unified_memory or "Unified" in facts.pool_class or "Interleave" in facts.pool_class:
        return (
            f"the unified memory pool ({facts.pool_class}) is not served: "
            "start without --enable-unified-memory."
        )
    if "FP4" in facts.pool_class or facts.pool_dtype not in FP8_DTYPES + UNCAST_DTYPES:
        return (
            f"a {facts.pool_dtype} pool ({facts.pool_class}) is not served: "
            "use --kv-cache-dtype fp8_e4m3, fp8_e5m2 or bfloat16."
        )
    if "HiSparse" in facts.pool_class or "LayerSplit" in facts.pool_class:
        return (
            f"the pool {facts.pool_class} keeps only part of a layer on the device: "
            "start without hierarchical sparse or layer-split KV."
        )
    return None


def _dsa_rows(facts: Facts) -> str | None:
    if facts.kv_cache_dim == facts.kv_lora_rank + facts.qk_rope_head_dim or _head_dims(facts):
        return None  # no flag helps other sizes
    return (
        f"the pool's rows hold {facts.kv_cache_dim} bytes, the quantised DSA layout: add "
        "--dsa-prefill-backend trtllm --dsa-decode-backend trtllm, which selects raw 576-byte rows "
        "(older releases call these flags --nsa-prefill-backend and --nsa-decode-backend)."
    )


def _dsa_graph(facts: Facts) -> str | None:
    if not facts.is_dsa or facts.prefill_graph == "disabled" or _head_dims(facts):
        return None
    return (
        f"a DSA model under a {facts.prefill_graph} prefill graph meets an indexer without "
        "metadata: add --cuda-graph-backend-prefill disabled (in older releases, leave out "
        "--enable-piecewise-cuda-graph)."
    )


def _context_parallel(facts: Facts) -> str | None:
    if facts.dcp_size <= 1:
        return None
    return (
        f"decode context parallelism of size {facts.dcp_size} is not served: start with "
        "--dcp-size 1."
    )


def _prefill_context_parallel(facts: Facts) -> str | None:
    if facts.cp_size <= 1:
        return None
    return (
        f"context parallelism of size {facts.cp_size} in prefill is not served: start without "
        "--attn-cp-size and --enable-prefill-cp."
    )


def _multiplexing(facts: Facts) -> str | None:
    if not facts.pdmux:
        return None
    return "PD multiplexing runs two streams over one buffer: start without --enable-pdmux."


def _speculation(facts: Facts) -> str | None:
    if facts.topk <= 1:
        return None
    return (
        f"speculative topk {facts.topk} needs a tree mask, which FlashInfer MLA does not take: "
        "use --speculative-eagle-topk 1 (for NGRAM, --speculative-ngram-max-bfs-breadth 1)."
    )


def _planning(facts: Facts) -> str | None:
    if not facts.experimental:
        return None
    # Of those, cuTile takes what sglang plans, where fa2 has too little room for its work items.
    return (
        f"{EXPERIMENTAL_VARIABLE}=1 lets FlashInfer plan with a backend that copies the indices, "
        "which are rewritten after planning: start without this variable."
    )


def _plan_stream(facts: Facts) -> str | None:
    if not facts.plan_stream:
        return None
    return (
        f"{PLAN_STREAM_VARIABLE} plans a step on a stream of its own while the step before may "
        "still read the rows that planning rewrites: start without this variable."
    )


def _glue_graph(facts: Facts) -> str | None:
    if not facts.glue_graph:
        return None
    return (
        f"{GLUE_GRAPH_VARIABLE} records the plan of a step into a graph, which repeats the rows of "
        "that step: start without this variable."
    )


_CHECKS = (
    _head_dims,
    _pool,
    _dsa_rows,
    _dsa_graph,
    _context_parallel,
    _prefill_context_parallel,
    _multiplexing,
    _speculation,
    _planning,
    _plan_stream,
    _glue_graph,
)
