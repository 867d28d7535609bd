"""The attention backend: sglang's FlashInfer MLA over a compact BF16 copy of the active FP8 rows.

Upstream's backend stays in charge of metadata, plans, KV writes and kernels. Three things change:
index buffers are rewritten in place after each plan (`rows`), the KV pool hands out gathered and
cast rows instead of itself (`gather`, `keys`), and where the compact buffer can't hold the whole
pool, attention reads FP8 rows directly (`direct`).
"""

from __future__ import annotations

from typing import Any

import torch

from sglang.srt.layers.attention.flashinfer_mla_backend import (
    FlashInferMLAAttnBackend,
    FlashInferMLAIndicesUpdaterDecode,
    FlashInferMLAIndicesUpdaterPrefill,
    FlashInferMLAMultiStepDraftBackend,
)
from sglang.srt.layers.attention.flashinfer_mla_compact import support
from sglang.srt.layers.attention.flashinfer_mla_compact.facts import pool_rows
from sglang.srt.layers.attention.flashinfer_mla_compact.gather import gather_rows, grid_programs
from sglang.srt.layers.attention.flashinfer_mla_compact.keys import KeyReader
from sglang.srt.layers.attention.flashinfer_mla_compact.rows import CompactRows, SlotTable
from sglang.srt.runtime_context import get_buffer


class FlashInferMLACompactAttnBackend(FlashInferMLAAttnBackend):
    """FlashInfer MLA for an FP8 pool, reading no row that the step does not attend to.

    Args:
        model_runner: a runner of an MLA model whose FP8 pool is allocated.
        skip_prefill, kv_indptr_buf, q_indptr_decode_buf: as upstream.
        table: scratch shared with backends that are planned one after another; by default an own.
    """

    def __init__(
        self,
        model_runner: Any,
        skip_prefill: bool = False,
        kv_indptr_buf: torch.Tensor | None = None,
        q_indptr_decode_buf: torch.Tensor | None = None,
        table: SlotTable | None = None,
    ) -> None:
        super().__init__(model_runner, skip_prefill, kv_indptr_buf, q_indptr_decode_buf)
        device = torch.device(model_runner.device)
        rows = pool_rows(model_runner.token_to_kv_pool)
        capacity = support.capacity_rows(rows, support.read_settings())
        self._programs = grid_programs(device)
        self._rows = CompactRows(capacity, table or SlotTable(rows, device), self._programs)
        self._buffer = compact_buffer(capacity, model_runner.dtype, device)
        self.indices_updater_decode = CompactDecodeIndices(model_runner, self)
        if not skip_prefill:
            self.indices_updater_prefill = CompactPrefillIndices(model_runner, self)

    @property
    def token_to_kv_pool(self) -> KeyReader:
        """The pool with compact keys; assigning a pool (speculative workers swap theirs) wraps it."""
        return self._keys

    @token_to_kv_pool.setter
    def token_to_kv_pool(self, pool: Any) -> None:
        self._keys = KeyReader(pool, self._read_keys)

    def _read_keys(self, rows: torch.Tensor) -> torch.Tensor:
        gather_rows(rows, self._rows.slots, self._rows.count, self._buffer, self._programs)
        return self._buffer

    def compact_indices(self, indices: torch.Tensor, total: torch.Tensor, requests: int) -> None:
        """Rewrite planned indices in place: `indices[:total]`, pool slots, become compact rows.

        Args:
            indices: int32, the buffer that the planned wrapper reads.
            total: [1] int32 on the device, entries in use.
            requests: batch size; only several requests can name one slot twice.
        """
        if requests == 1:
            self._rows.assign_alone(indices, total)
        else:
            self._rows.claim(indices, total)
            self._rows.translate(indices, total)


class CompactDecodeIndices(FlashInferMLAIndicesUpdaterDecode):
    """Upstream's decode plan, then compact indices in the wrapper's buffer."""

    def update(self, batch: torch.Tensor, *args: Any, decode_wrapper: Any, **kwargs: Any) -> None:
        """`batch` is upstream's first argument, a per-request tensor whichever the release."""
        super().update(batch, *args, decode_wrapper=decode_wrapper, **kwargs)
        requests = len(batch)
        # The wrapper's own indptr keeps its capture-time value; this one is filled every step.
        total = self.kv_indptr[requests : requests + 1]
        self.attn_backend.compact_indices(decode_wrapper._kv_indices_buf, total, requests)


class CompactPrefillIndices(FlashInferMLAIndicesUpdaterPrefill):
    """Upstream's paged plan (extend, verify), then compact indices in the wrapper's buffer."""

    def update(
        self,
        batch: torch.Tensor,
        *args: Any,
        prefill_wrapper_paged: Any,
        use_ragged: bool,
        **kwargs: Any,
    ) -> None:
        super().update(
            batch,
            *args,
            prefill_wrapper_paged=prefill_wrapper_paged,
            use_ragged=use_ragged,
            **kwargs,
        )
        if use_ragged:
            return  # the keys come from the forward pass itself
        total = prefill_wrapper_paged._kv_indptr_buf[-1:]
        host_plan = kwargs.get("fast_verify_plan_kwargs")
        if host_plan is not None:  # planned from host arrays, which leave the device's as they were
            total = torch.full_like(total, int(host_plan["kv_indptr_cpu"][-1]))
        self.attn_backend.compact_indices(prefill_wrapper_paged._kv_indices_buf, total, len(batch))


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


def compact_buffer(capacity: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The process's one buffer of this shape, [capacity, 1, 576], outside of inference mode.

    Layers, graph batch sizes, wrappers and draft steps share it: each gathers right before its
    attention, on one stream.
    """

    def allocate() -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.zeros((capacity, 1, support.HEAD_DIM), dtype=dtype, device=device)

    return get_buffer(f"{support.NAME}_{capacity}_{dtype}", allocate)
