"""What is served: back ends with their KV dtype, and the options that all share."""

from __future__ import annotations

from dataclasses import dataclass, field

COMPACT = "flashinfer_mla_compact"
WRONG_ROW_VARIABLE = "BENCH_WRONG_ROW_LAYER"
DRAFT_STEPS = 3


@dataclass(frozen=True)
class Setup:
    """One way to serve.

    Attributes:
        name: what results call it.
        options: `sglang.Engine` arguments beyond the common ones.
        environment: variables set for the engine's processes.
        wrong_row: read one row of one layer wrongly on purpose; the tokens must then differ.
    """

    name: str
    options: dict[str, object]
    environment: dict[str, str] = field(default_factory=dict)
    wrong_row: bool = False


def _compact(name: str, strategy: str, wrong_row: bool = False, pool: int | None = None) -> Setup:
    options: dict[str, object] = {"attention_backend": COMPACT, "kv_cache_dtype": "fp8_e4m3"}
    if pool:
        options["max_total_tokens"] = pool
    return Setup(name, options, {"SGLANG_MLA_COMPACT_STRATEGY": strategy}, wrong_row)


SETUPS = {
    setup.name: setup
    for setup in (
        Setup("stock", {"attention_backend": "flashinfer", "kv_cache_dtype": "fp8_e4m3"}),
        _compact("compact", "auto"),
        _compact("compact-gather", "gather"),
        _compact("compact-direct", "direct"),
        _compact("wrong-row", "auto", wrong_row=True),
        _compact("pool-131072", "auto", pool=131_072),
        _compact("pool-2000000", "auto", pool=2_000_000),
        Setup("bf16", {"attention_backend": "flashinfer", "kv_cache_dtype": "bfloat16"}),
        Setup(
            "flashmla",
            {"attention_backend": "flashmla", "kv_cache_dtype": "fp8_e4m3", "page_size": 64},
        ),
        Setup("triton", {"attention_backend": "triton", "kv_cache_dtype": "fp8_e4m3"}),
    )
}


@dataclass(frozen=True)
class Engine:
    """What every engine of a run has in common.

    Attributes:
        model: checkpoint folder.
        pool: KV pool in tokens; None lets sglang fill the memory.
        fraction: share of the free device memory for weights and pool.
        cached_prefix: keep the radix cache on, for loads that start on a cached prefix.
        options: further `sglang.Engine` arguments, for example {"tp_size": 8}.
        accepted: tokens that sglang is made to accept in each verify step, of DRAFT_STEPS drafts
            and its own; 0 to serve without drafts.
    """

    model: str
    pool: int | None = None
    fraction: float = 0.85
    cached_prefix: bool = False
    options: dict[str, object] = field(default_factory=dict)
    accepted: int = 0

    @property
    def draft(self) -> str:
        """The folder of the model's draft."""
        return f"{self.model}-draft"

    def environment(self) -> dict[str, str]:
        """Variables of the engine's processes."""
        if not self.accepted:
            return {}
        return {
            "SGLANG_SIMULATE_ACC_LEN": str(self.accepted),
            # 0.5.9 draws a number around it unless it is told not to.
            "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        }

    def arguments(self, setup: Setup) -> dict[str, object]:
        """All `sglang.Engine` arguments to serve `setup`."""
        return {
            "model_path": self.model,
            "skip_tokenizer_init": True,
            "grammar_backend": "none",
            "disable_radix_cache": not self.cached_prefix,
            "disable_prefill_cuda_graph": True,
            "cuda_graph_bs_decode": [1, 16, 64],
            "max_running_requests": 64,
            "chunked_prefill_size": 8192,
            "mem_fraction_static": self.fraction,
            "max_total_tokens": self.pool,
            "random_seed": 0,
            "log_level": "info",
            **self._drafting(),
            **self.options,
            **setup.options,
        }

    def _drafting(self) -> dict[str, object]:
        if not self.accepted:
            return {}
        return {
            "speculative_algorithm": "EAGLE",
            "speculative_draft_model_path": self.draft,
            "speculative_num_steps": DRAFT_STEPS,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": DRAFT_STEPS + 1,
        }
