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

from . import policy
from .direct.reading import Direct
from .gather.reading import Gathered
from .gather.rows import SlotTable
from .metrics import StepCounter
from .pool.layer_pool import LayerPool
from .readings import Needs, make_readings
from .upstream.older_backend import AttnBackend
from .upstream.pools import pool_format, pool_rows
from .upstream.runner import metric_labels, most_new_tokens, verified_tokens
from .upstream.updaters import CompactDecodeIndices, CompactPrefillIndices, PacedPlans


class FlashInferMLACompactAttnBackend(AttnBackend):
    """FlashInfer MLA for an FP8 pool, reading no row that the step does not attend to.

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
            self._init_readings(model_runner, skip_prefill, table)
            self._init_updaters(model_runner, skip_prefill)

    def _init_readings(
        self, model_runner: Any, skip_prefill: bool, table: SlotTable | None
    ) -> None:
        device = torch.device(model_runner.device)
        rows = pool_rows(model_runner.token_to_kv_pool)
        self._format = pool_format(model_runner)
        needs = Needs(
            pool_rows=rows,
            pool_dtype=self._format.dtype,
            dtype=model_runner.dtype,
            device=device,
            heads=self.indices_updater_decode.num_local_heads,
            sm_scale=self.indices_updater_decode.scaling,
            requests=self.kv_indptr.shape[0] - 1,
            verified=0 if skip_prefill else verified_tokens(),
            new_tokens=0 if skip_prefill else most_new_tokens(model_runner),
        )
        table = table or SlotTable(rows, device)
        self.readings = make_readings(needs, policy.read_settings(), table)
        self._reading: Gathered | Direct | None = None
        self._new_tokens = 0
        if isinstance(self.readings.decode, Direct):
            self.decode_wrapper = self.readings.decode
        self._counter = StepCounter(metric_labels(model_runner), device)

    def _init_updaters(self, model_runner: Any, skip_prefill: bool) -> None:
        self.indices_updater_decode = CompactDecodeIndices(model_runner, self)
        self._planners: list[PacedPlans] = [self.indices_updater_decode]
        if not skip_prefill:
            self.indices_updater_prefill = CompactPrefillIndices(model_runner, self)
            self._planners.append(self.indices_updater_prefill)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self._await_plans()
        self._new_tokens = len(forward_batch.input_ids)
        super().init_forward_metadata(forward_batch)
        self._attend_as_read()

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self._await_plans()
        super().init_forward_metadata_out_graph(forward_batch, in_capture)
        if not in_capture:
            return
        if isinstance(self.forward_metadata, DecodeMetadata) and isinstance(self._reading, Direct):
            self.decode_cuda_graph_metadata[forward_batch.batch_size] = self._reading
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
        reading = self.readings.decode
        if isinstance(reading, Direct):
            # A capture plans a wrapper of its own; all other steps plan the reading itself.
            slots = None if wrapper is reading else wrapper._kv_indices_buf
            reading.place(kv_indptr, slots=slots)
        else:
            reading.place(wrapper._kv_indices_buf, kv_indptr[-1:])
        self._take(reading, kv_indptr[-1:])

    def place_extend(self, wrapper: Any, requests: int, tokens: int | None) -> None:
        """After upstream planned an extend or a verify by `wrapper`: decide how it reads.

        tokens: query tokens of each request of a verify; None where requests may differ.
        """
        indices, kv_indptr = wrapper._kv_indices_buf, wrapper._kv_indptr_buf
        if tokens is not None:
            reading = self.readings.of_verify(tokens)
        elif wrapper._use_cuda_graph:
            reading = self.readings.of_captured_extend()
        else:
            reading = self.readings.of_extend(len(indices), self._new_tokens, requests)
            if isinstance(reading, Direct) and not self.readings.gathered.fits(len(indices)):
                self._counter.fallback(self.readings.gathered.rows.capacity)
        if isinstance(reading, Direct):
            queries = wrapper._qo_indptr_buf if reading.workspace.shape.ragged else None
            reading.place(kv_indptr, queries, slots=indices)
        else:
            reading.place(indices, kv_indptr[-1:])
        self._take(reading, kv_indptr[-1:])

    def place_nothing(self) -> None:
        """After upstream planned an extend that takes its keys from the forward pass itself."""
        self._reading = None

    def _take(self, reading: Gathered | Direct, total: torch.Tensor) -> None:
        self._reading = reading
        rows = total if isinstance(reading, Direct) else reading.rows.count
        self._counter.step(reading.name, total, rows)
