"""The attention backend: sglang's FlashInfer MLA over a compact BF16 copy of the active FP8 rows.

Upstream's backend stays in charge of metadata, plans and kernels. Four things change: the indices
of a planned wrapper are rewritten in place (`rows`), the KV pool hands out gathered and cast rows
instead of itself (`gather`, `keys`), new rows are cast and written in one launch (`write`), which
without a graph gathers as well (`fill`), and what need not or can't go through the compact buffer
reads FP8 rows directly (`direct`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import DecodeMetadata
from sglang.srt.layers.attention.flashinfer_mla_compact import support
from sglang.srt.layers.attention.flashinfer_mla_compact.context import get_buffer
from sglang.srt.layers.attention.flashinfer_mla_compact.direct_configs import builds_gluon
from sglang.srt.layers.attention.flashinfer_mla_compact.direct_wrapper import DirectWrapper
from sglang.srt.layers.attention.flashinfer_mla_compact.facts import (
    metric_labels,
    mla_pool,
    pool_rows,
)
from sglang.srt.layers.attention.flashinfer_mla_compact.fill import Fill
from sglang.srt.layers.attention.flashinfer_mla_compact.gather import gather_rows, grid_programs
from sglang.srt.layers.attention.flashinfer_mla_compact.indices import (
    CompactDecodeIndices,
    CompactPrefillIndices,
    PacedPlans,
)
from sglang.srt.layers.attention.flashinfer_mla_compact.keys import RESERVED, KeyReader, UncastKeys
from sglang.srt.layers.attention.flashinfer_mla_compact.metrics import Watch
from sglang.srt.layers.attention.flashinfer_mla_compact.pool_on_batch import AttnBackend
from sglang.srt.layers.attention.flashinfer_mla_compact.rows import CompactRows, NewRows, SlotTable
from sglang.srt.layers.attention.flashinfer_mla_compact.write import NewKeys, top_code, write_rows


class FlashInferMLACompactAttnBackend(AttnBackend):
    """FlashInfer MLA for an FP8 pool, reading no row that the step does not attend to.

    Where the compact buffer holds fewer rows than the pool (its memory is bounded), a step may
    not fit, and a captured replay can't be vetoed. Captured steps read directly then, whatever
    the load; an eager extend does so only when it does not fit. Direct reading takes any number
    of rows, so no step can overflow and none is refused.

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
        # Warm-up code may run in inference mode; what it allocates can't be written outside of it.
        with torch.inference_mode(False):
            self._init_compact(model_runner, skip_prefill, table)

    def _init_compact(self, model_runner: Any, skip_prefill: bool, table: SlotTable | None) -> None:
        device = torch.device(model_runner.device)
        rows = pool_rows(model_runner.token_to_kv_pool)
        settings = support.read_settings()
        capacity = support.capacity_rows(rows, settings)
        self._bounded = capacity < rows
        card = torch.cuda.get_device_capability(device)
        heads = self.indices_updater_decode.num_local_heads
        self.decode_strategy = support.decode_strategy(
            rows, settings, card, heads, plain=not builds_gluon()
        )
        self._decodes_directly = self.decode_strategy[0] == "direct"
        self._reads_directly = False
        self._written: torch.Tensor | None = None
        self._fill: Fill | None = None
        self._programs = grid_programs(device)
        self._rows = CompactRows(capacity, table or SlotTable(rows, device), self._programs)
        self._buffer = compact_buffer(capacity, model_runner.dtype, device)
        self._dtype = mla_pool(model_runner).dtype
        self._top = top_code(self._dtype, device)
        self._watch = Watch(metric_labels(model_runner), device)
        self._direct_wrappers: dict[Any, DirectWrapper] = {}
        self.indices_updater_decode = CompactDecodeIndices(model_runner, self)
        self._planners: list[PacedPlans] = [self.indices_updater_decode]
        if not skip_prefill:
            self.indices_updater_prefill = CompactPrefillIndices(model_runner, self)
            self._planners.append(self.indices_updater_prefill)
        if self._decodes_directly:
            self.decode_wrapper = self._direct_wrapper(self.kv_indptr.shape[0] - 1, 1)

    def held(self) -> dict[str, list[torch.Tensor]]:
        """What a start adds on the device to what upstream's backend holds; steps may share it."""
        rows = self._rows
        return {
            "buffer": [self._buffer],
            "slots": [rows.slots, rows.count],
            "claims": [rows.table.row_of_slot, rows.table.stamps],
            "splits": self.decode_wrapper.workspace.tensors if self._decodes_directly else [],
        }

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self._await_plans()
        self._written = forward_batch.out_cache_loc
        super().init_forward_metadata(forward_batch)
        self._written = None  # a captured step's launches could not follow what `find` returns
        if self._reads_directly:
            self._run_directly()

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self._await_plans()
        super().init_forward_metadata_out_graph(forward_batch, in_capture)
        if not (in_capture and self._reads_directly):
            return
        if isinstance(self.forward_metadata, DecodeMetadata):
            self.decode_wrapper.slots = self.cuda_graph_kv_indices
            self.decode_cuda_graph_metadata[forward_batch.batch_size] = self.decode_wrapper
        self._run_directly()

    def _await_plans(self) -> None:
        """Later releases fill pinned arrays of their own before they call an updater."""
        for planner in self._planners:
            planner.wait()

    def forward_decode(self, *inputs: Any, **options: Any) -> Any:
        return self._run_with_keys(super().forward_decode, *inputs, **options)

    def forward_extend(self, *inputs: Any, **options: Any) -> Any:
        return self._run_with_keys(super().forward_extend, *inputs, **options)

    def _run_with_keys(self, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """While `forward` runs a layer, the pool hands out keys that are ready to attend to.

        Models reach the pool through the backend, too, and write to what `get_key_buffer` gives
        them: outside of attention it must be the pool itself.
        """
        pool = self.token_to_kv_pool
        awaited = self._fill.new.slots if self._fill else None
        reader = self.token_to_kv_pool = KeyReader(pool, self._read_keys, self._top, awaited)
        try:
            output = forward(*inputs, **options)
        finally:
            self.token_to_kv_pool = pool
        reader.write()
        return output

    def place_decode(self, wrapper: Any, requests: int) -> None:
        """After upstream planned a decode: make its indices fit what decode reads."""
        # The wrapper's own indptr keeps its capture-time value; this one is filled every step.
        kv_indptr = self.kv_indptr[: requests + 1]
        self._reads_directly = self._decodes_directly
        if self._decodes_directly:
            self.decode_wrapper.cut(kv_indptr)
            self._watch.step("direct", kv_indptr[-1:], kv_indptr[-1:])
        else:
            self._compact(wrapper._kv_indices_buf, kv_indptr[-1:])

    def place_extend(self, wrapper: Any, requests: int) -> None:
        """After upstream planned an extend or a verify: make its indices fit what it reads."""
        indices, kv_indptr = wrapper._kv_indices_buf, wrapper._kv_indptr_buf
        captured, total = wrapper._use_cuda_graph, kv_indptr[-1:]
        self._reads_directly = (self._bounded and captured) or not self._compact(indices, total)
        if self._reads_directly:
            direct = self._extend_wrapper(wrapper)
            direct.slots = indices
            direct.cut(kv_indptr, wrapper._qo_indptr_buf)
            self._watch.step("direct", total, total)
            self._watch.fallback("graph" if captured else "rows", self._rows.capacity)

    def place_nothing(self) -> None:
        """After upstream planned an extend that takes its keys from the forward pass itself."""
        self._reads_directly = False

    def _read_keys(self, rows: torch.Tensor, new: NewKeys | None) -> torch.Tensor | UncastKeys:
        """What attention takes of a layer, whose new keys are written first, or along the way."""
        if self._reads_directly:
            if new:  # their slots were an earlier step's
                write_rows(new)
            return UncastKeys(rows)
        if new:
            assert self._fill, "keys wait only where their rows were found"
            self._fill(new)
        else:
            gather_rows(rows, self._rows.slots, self._rows.count, self._buffer, self._programs)
        return self._buffer

    def _compact(self, indices: torch.Tensor, total: torch.Tensor) -> bool:
        """`indices[:total]`, pool slots, become compact rows; False, and they stay, if too many."""
        self._fill = None
        self._rows.claim(indices, total)
        # Waits for the device, as planning did.
        if self._bounded and int(self._rows.count) > self._rows.capacity:
            return False
        self._rows.translate(indices, total)
        if self._written is not None:
            self._fill = self._make_fill(self._rows.find(self._written, RESERVED))
        self._watch.step("gather", total, self._rows.count)
        return True

    def _make_fill(self, new: NewRows) -> Fill:
        return Fill(new, self._rows, self._buffer, self._programs, self._dtype, self._top, RESERVED)

    def _run_directly(self) -> None:
        metadata = self.forward_metadata
        if isinstance(metadata, DecodeMetadata):
            metadata.decode_wrapper = self.decode_wrapper
        else:
            metadata.prefill_wrapper = self._direct_wrappers[metadata.prefill_wrapper]

    def _extend_wrapper(self, wrapper: Any) -> DirectWrapper:
        """The direct stand-in of an extend or verify wrapper, with room for its query tokens."""
        direct = self._direct_wrappers.get(wrapper)
        if direct is None or not wrapper._use_cuda_graph:
            tokens = int(wrapper._qo_indptr_buf[-1])
            if direct is None or direct.max_tokens < tokens:
                direct = self._direct_wrapper(tokens, None)
                self._direct_wrappers[wrapper] = direct
            if not wrapper._use_cuda_graph:
                direct.planned_tokens = tokens
        return direct

    def _direct_wrapper(self, max_tokens: int, q_per_request: int | None) -> DirectWrapper:
        plan = self.indices_updater_decode
        device = self.kv_indptr.device
        return DirectWrapper(plan.num_local_heads, max_tokens, plan.scaling, device, q_per_request)


def compact_buffer(capacity: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The process's one buffer of this shape, [capacity, 1, 576].

    Layers, graph batch sizes, wrappers and draft steps share it: each gathers right before its
    attention, on one stream.
    """

    def allocate() -> torch.Tensor:
        return torch.zeros((capacity, 1, support.HEAD_DIM), dtype=dtype, device=device)

    return get_buffer(f"{support.NAME}_{capacity}_{dtype}", allocate)
