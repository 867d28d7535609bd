"""Stand-ins for the parts of sglang that the overlay leans on, for a machine without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

# What sglang's runtime context answers; tests may change it.
CONTEXT = {
    "get_disagg": SimpleNamespace(enable_pdmux=False),
    "get_exec": SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=SimpleNamespace())),
    "get_memory": SimpleNamespace(enable_unified_memory=False),
    "get_observability": SimpleNamespace(enable_metrics=False),
    "get_parallel": SimpleNamespace(attn_dcp_size=1, attn_cp_size=1, tp_rank=0, pp_rank=0),
    "get_schedule": SimpleNamespace(chunked_prefill_size=64, max_prefill_tokens=64),
    "get_spec": SimpleNamespace(speculative_eagle_topk=None, speculative_num_draft_tokens=None),
}
CONTEXT["get_exec"].graph.cuda_graph_config.prefill = SimpleNamespace(backend="breakable")


class Event:
    """An event of the device, which is reached as soon as it is recorded."""

    def record(self) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


class IndicesUpdater:
    """Plans a step by noting it, or fails to."""

    def __init__(self, runner: Any, attn_backend: Any) -> None:
        self.attn_backend = attn_backend

    def update(self, batch: Any, *arguments: Any, **options: Any) -> None:
        if options.get("fails"):
            raise RuntimeError("the batch is larger than the pool of requests")
        self.attn_backend.calls.append(("plan", len(batch)))


def get_buffer(name: str, allocate: Any, buffers: dict[str, Any] = {}) -> Any:  # noqa: B006
    """The process's buffer of that name."""
    if name not in buffers:
        buffers[name] = allocate()
    return buffers[name]


class MLATokenToKVPool:
    """Upstream's plain MLA pool, as far as it decides how new keys are written; it notes them."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def set_mla_kv_buffer(self, *arguments: Any) -> None:
        self.written.append(arguments)

    def _write_mla_kv_buffer(self, *arguments: Any) -> None: ...


def set_mla_kv_buffer_triton(*tensors: Any, reserved_skip_index: int = 0) -> None:
    """Upstream's scatter of cast keys, of a release that leaves the slot of padded tokens alone."""


MODULES: dict[str, dict[str, Any]] = {
    "sglang.srt.runtime_context": {
        "get_buffer": get_buffer,
        **{name: lambda answer=answer: answer for name, answer in CONTEXT.items()},
    },
    "sglang.srt.layers.attention.flashinfer_mla_backend": {
        "FlashInferMLAIndicesUpdaterDecode": IndicesUpdater,
        "FlashInferMLAIndicesUpdaterPrefill": IndicesUpdater,
    },
    "sglang.srt.mem_cache.memory_pool": {
        "MLATokenToKVPool": MLATokenToKVPool,
        "set_mla_kv_buffer_triton": set_mla_kv_buffer_triton,
    },
}
