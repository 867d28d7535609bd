"""The draft model's multi-step decode: one compact backend a step."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAMultiStepDraftBackend
from sglang.srt.layers.attention.flashinfer_mla_compact.backend import (
    FlashInferMLACompactAttnBackend,
)
from sglang.srt.layers.attention.flashinfer_mla_compact.facts import pool_rows
from sglang.srt.layers.attention.flashinfer_mla_compact.rows import SlotTable


class FlashInferMLACompactMultiStepDraftBackend(FlashInferMLAMultiStepDraftBackend):
    """One compact backend for each draft step; each has its index row, all share one buffer."""

    def __init__(self, model_runner: Any, topk: int, speculative_num_steps: int) -> None:
        super().__init__(model_runner, topk, speculative_num_steps)
        table = SlotTable(
            pool_rows(model_runner.token_to_kv_pool), torch.device(model_runner.device)
        )
        # In place: later releases keep a second name for this list.
        self.attn_backends[:] = [
            FlashInferMLACompactAttnBackend(
                model_runner,
                skip_prefill=True,
                kv_indptr_buf=step.kv_indptr,
                q_indptr_decode_buf=self.q_indptr_decode,
                table=table,
            )
            for step in self.attn_backends
        ]
