"""The draft model's multi-step decode: one compact backend a step."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAMultiStepDraftBackend

from .backend import FlashInferMLACompactAttnBackend
from .gather.rows import SlotTable
from .upstream.pools import pool_rows


class DraftStep(FlashInferMLACompactAttnBackend):
    """One step of a draft: attends to `drafts` tokens behind the accepted ones, its own the last.

    Upstream plans each step with the accepted tokens alone: an eager step sees no draft, and a
    captured one, whose index row holds them, reads every request but the first out of step.
    """

    def __init__(self, *arguments: Any, drafts: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._drafts = drafts

    def init_forward_metadata(self, forward_batch: Any) -> None:
        super().init_forward_metadata(with_drafts(forward_batch, self._drafts))

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        super().init_forward_metadata_out_graph(
            with_drafts(forward_batch, self._drafts), in_capture
        )


def with_drafts(batch: Any, drafts: int) -> Any:
    """The batch with lengths that count `drafts` more tokens a request; the given one stays."""
    if not hasattr(batch, "seq_lens"):  # loose arguments of an older graph runner: as upstream
        return batch
    longer = copy(batch)
    longer.seq_lens = batch.seq_lens + drafts
    longer.seq_lens_sum = batch.seq_lens_sum + drafts * len(batch.seq_lens)
    if batch.seq_lens_cpu is not None:
        longer.seq_lens_cpu = batch.seq_lens_cpu + drafts
    return longer


class FlashInferMLACompactMultiStepDraftBackend(FlashInferMLAMultiStepDraftBackend):
    """One `DraftStep` for each step; each has its index row, all share one buffer."""

    def __init__(self, model_runner: Any, topk: int, speculative_num_steps: int) -> None:
        super().__init__(model_runner, topk, speculative_num_steps)
        table = SlotTable(
            pool_rows(model_runner.token_to_kv_pool), torch.device(model_runner.device)
        )
        # In place: later releases keep a second name for this list.
        self.attn_backends[:] = [
            DraftStep(
                model_runner,
                skip_prefill=True,
                kv_indptr_buf=step.kv_indptr,
                q_indptr_decode_buf=self.q_indptr_decode,
                table=table,
                drafts=number,
            )
            for number, step in enumerate(self.attn_backends, start=1)
        ]
