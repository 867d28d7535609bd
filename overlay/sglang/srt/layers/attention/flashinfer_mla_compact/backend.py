"""The attention backend: sglang's FlashInfer MLA, whose layers take their keys from a reading.

Upstream stays in charge of metadata, plans and kernels. After each plan, `place_decode`,
`place_extend` or `place_nothing` decides how the step reads: through the compact buffer
(`Gathered`), FP8 rows where they lie (`Direct`), or not at all. While a layer runs, the pool that
upstream sees is a `LayerPool`, which returns what the reading makes of a layer's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import DecodeMetadata

from . import policy, support
from .direct.configs import builds_gluon
from .direct.reading import Direct
from .gather.reading import Gathered
from .gather.rows import SlotTable
from .metrics import StepCounter
from .pool.layer_pool import LayerPool
from .upstream.older_backend import AttnBackend
from .upstream.pools import pool_format, pool_rows
from .upstream.runner import metric_labels
from .upstream.settings import get_buffer
from .upstream.updaters import CompactDecodeIndices, CompactPrefillIndices, PacedPlans


class FlashInferMLACompactAttnBackend(AttnBackend):
    """FlashInfer MLA for an FP8 pool, reading no row that the step does not attend to.

    Where the compact buffer holds fewer rows than the pool (its memory is bounded), a step may
    not fit, and a captured replay can't be vetoed. Captured steps read directly then, whatever
    the load; an eager extend does so only when it does not fit. Direct reading takes any number
    of rows, so no step can overflow and none is refused.

    Args:
        model_runner: a runner of an MLA model whose FP8 pool is allocated.
        skip_prefill, kv_indptr_buf, q_indptr_decode_buf: as upstream.
        table: scratch shared with backends that are planned one after another; by default its own.
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
            self._init_readings(model_runner, table)
            self._init_updaters(model_runner, skip_prefill)

    def _init_readings(self, model_runner: Any, table: SlotTable | None) -> None:
        device = torch.device(model_runner.device)
        rows = pool_rows(model_runner.token_to_kv_pool)
        settings = policy.read_settings()
        self.decode_strategy = policy.decode_strategy(
            rows,
            settings,
            torch.cuda.get_device_capability(device),
            self.indices_updater_decode.num_local_heads,
            plain=not builds_gluon(),
        )
        capacity = policy.capacity_rows(rows, settings)
        buffer = compact_buffer(capacity, model_runner.dtype, device)
        self._gathered = Gathered(buffer, table or SlotTable(rows, device))
        self._decodes: Direct | None = None
        if self.decode_strategy[0] == Direct.name:
            self._decodes = self._direct(self.kv_indptr.shape[0] - 1, 1)
            self.decode_wrapper = self._decodes
        self._extends: dict[Any, Direct] = {}
        self._reading: Gathered | Direct | None = None
        self._format = pool_format(model_runner)
        self._counter = StepCounter(metric_labels(model_runner), device)

    def _init_updaters(self, model_runner: Any, skip_prefill: bool) -> None:
        self.indices_updater_decode = CompactDecodeIndices(model_runner, self)
        self._planners: list[PacedPlans] = [self.indices_updater_decode]
        if not skip_prefill:
            self.indices_updater_prefill = CompactPrefillIndices(model_runner, self)
            self._planners.append(self.indices_updater_prefill)

    def held(self) -> dict[str, list[torch.Tensor]]:
        """What a start adds on the device to what upstream's backend holds; steps may share it."""
        rows = self._gathered.rows
        return {
            "buffer": [self._gathered.buffer],
            "slots": [rows.slots, rows.count],
            "claims": [rows.table.row_of_slot, rows.table.stamps],
            "splits": self._decodes.workspace.tensors if self._decodes else [],
        }

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self._await_plans()
        super().init_forward_metadata(forward_batch)
        self._attend_as_read()

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self._await_plans()
        super().init_forward_metadata_out_graph(forward_batch, in_capture)
        if not in_capture:
            return
        if self._reading is self._decodes and self._decodes:
            self.decode_cuda_graph_metadata[forward_batch.batch_size] = self._decodes
        self._attend_as_read()

    def _await_plans(self) -> None:
        """Later releases fill pinned arrays of their own before they call an updater."""
        for planner in self._planners:
            planner.wait()

    def _attend_as_read(self) -> None:
        """A step that reads directly attends by its reading, not by the wrapper of its plan."""
        if not isinstance(self._reading, Direct):
            return
        metadata = self.forward_metadata
        if isinstance(metadata, DecodeMetadata):
            metadata.decode_wrapper = self._reading
        else:
            metadata.prefill_wrapper = self._reading

    def forward_decode(self, *inputs: Any, **options: Any) -> Any:
        return self._run_layer(super().forward_decode, *inputs, **options)

    def forward_extend(self, *inputs: Any, **options: Any) -> Any:
        return self._run_layer(super().forward_extend, *inputs, **options)

    def _run_layer(self, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """While `forward` runs a layer, the pool hands out keys that are ready to attend to.

        Models reach the pool through the backend, too, and write to what `get_key_buffer` gives
        them: outside of attention it must be the pool itself.
        """
        pool = self.token_to_kv_pool
        if self._reading is not None:
            self.token_to_kv_pool = LayerPool(pool, self._reading.keys, self._format)
        try:
            return forward(*inputs, **options)
        finally:
            self.token_to_kv_pool = pool

    def place_decode(self, wrapper: Any, requests: int) -> None:
        """After upstream planned a decode of `requests` by `wrapper`: decide how it reads."""
        # The wrapper's own indptr keeps its capture-time value; this one is filled every step.
        kv_indptr = self.kv_indptr[: requests + 1]
        total = kv_indptr[-1:]
        if self._decodes:
            # A capture plans a wrapper of its own; all other steps plan the reading itself.
            slots = None if wrapper is self._decodes else wrapper._kv_indices_buf
            self._decodes.place(kv_indptr, slots=slots)
            self._read(self._decodes, total, total)
        else:
            fits = self._gathered.place(wrapper._kv_indices_buf, total)
            assert fits, "a bounded buffer decodes directly"
            self._read(self._gathered, total, self._gathered.rows.count)

    def place_extend(self, wrapper: Any, requests: int) -> None:
        """After upstream planned an extend or a verify by `wrapper`: decide how it reads."""
        indices, kv_indptr = wrapper._kv_indices_buf, wrapper._kv_indptr_buf
        captured, total = wrapper._use_cuda_graph, kv_indptr[-1:]
        if not (captured and self._gathered.bounded) and self._gathered.place(indices, total):
            self._read(self._gathered, total, self._gathered.rows.count)
            return
        qo_indptr = wrapper._qo_indptr_buf
        tokens = None if captured and wrapper in self._extends else int(qo_indptr[-1])
        direct = self._extend_reading(wrapper, tokens)
        direct.place(kv_indptr, qo_indptr, slots=indices, tokens=None if captured else tokens)
        self._read(direct, total, total)
        self._counter.fallback("graph" if captured else "rows", self._gathered.rows.capacity)

    def place_nothing(self) -> None:
        """After upstream planned an extend that takes its keys from the forward pass itself."""
        self._reading = None

    def _read(self, reading: Gathered | Direct, total: torch.Tensor, rows: torch.Tensor) -> None:
        self._reading = reading
        self._counter.step(reading.name, total, rows)

    def _extend_reading(self, wrapper: Any, tokens: int | None) -> Direct:
        """The reading of an extend or verify wrapper, with room for `tokens` query tokens."""
        direct = self._extends.get(wrapper)
        if direct is None or (tokens is not None and direct.max_tokens < tokens):
            assert tokens is not None
            direct = self._extends[wrapper] = self._direct(tokens, None)
        return direct

    def _direct(self, max_tokens: int, q_per_request: int | None) -> Direct:
        plan = self.indices_updater_decode
        device = self.kv_indptr.device
        return Direct(plan.num_local_heads, max_tokens, plan.scaling, device, q_per_request)


def compact_buffer(capacity: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The process's one buffer of this shape, [capacity, 1, 576].

    Layers, graph batch sizes, wrappers and draft steps share it: each gathers right before its
    attention, on one stream.
    """

    def allocate() -> torch.Tensor:
        return torch.zeros((capacity, 1, support.HEAD_DIM), dtype=dtype, device=device)

    return get_buffer(f"{support.NAME}_{capacity}_{dtype}", allocate)
