"""sglang's index updaters, followed by the placement of what they planned.

FlashInfer's planner reads lengths, never index values, and a planned wrapper reads the indices
from `_kv_indices_buf` when it runs. So upstream plans as ever, and the values are changed after.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import (
    FlashInferMLAIndicesUpdaterDecode,
    FlashInferMLAIndicesUpdaterPrefill,
)


class PacedPlans:
    """Plans a step once the device has its copy of the plan before.

    FlashInfer plans in pinned host memory and does not wait for the copy. A host that runs a step
    ahead would write over a plan that is still to be copied, which happens where processes share a
    device in time slices: every request but the first then reads rows of its neighbour.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._copied = torch.cuda.Event()

    def wait(self) -> None:
        """Until the device has its copy of the last plan, which it mostly has by now."""
        if not self._copied.query():
            self._copied.synchronize()

    def update(self, *arguments: Any, **options: Any) -> None:
        self.wait()
        super().update(*arguments, **options)  # type: ignore[misc]
        self._copied.record()


class CompactDecodeIndices(PacedPlans, FlashInferMLAIndicesUpdaterDecode):
    """Plans decode steps for `backend.FlashInferMLACompactAttnBackend`."""

    def update(self, batch: torch.Tensor, *args: Any, decode_wrapper: Any, **kwargs: Any) -> None:
        """`batch`: upstream's first argument, [requests], whatever it means in this release."""
        super().update(batch, *args, decode_wrapper=decode_wrapper, **kwargs)
        self.attn_backend.place_decode(decode_wrapper, len(batch))


class CompactPrefillIndices(PacedPlans, FlashInferMLAIndicesUpdaterPrefill):
    """Plans extends and verifies for `backend.FlashInferMLACompactAttnBackend`."""

    def update(
        self,
        batch: torch.Tensor,
        *args: Any,
        prefill_wrapper_paged: Any,
        use_ragged: bool,
        **kwargs: Any,
    ) -> None:
        """`batch`: upstream's first argument, [requests]."""
        super().update(
            batch,
            *args,
            prefill_wrapper_paged=prefill_wrapper_paged,
            use_ragged=use_ragged,
            **kwargs,
        )
        if use_ragged:
            self.attn_backend.place_nothing()
            return
        host_plan = kwargs.get("fast_verify_plan_kwargs")
        if host_plan is not None:  # a plan from host arrays leaves the wrapper's indptr as it was
            self._copy_lengths(host_plan["kv_indptr_cpu"], prefill_wrapper_paged._kv_indptr_buf)
        tokens = uniform_tokens(kwargs.get("spec_info"))
        self.attn_backend.place_extend(prefill_wrapper_paged, len(batch), tokens)

    def _copy_lengths(self, kv_indptr: torch.Tensor, target: torch.Tensor) -> None:
        """From pinned memory, as a copy of other memory waits for the device."""
        staged = torch.empty_like(kv_indptr, pin_memory=target.is_cuda)
        target.copy_(staged.copy_(kv_indptr), non_blocking=True)


def uniform_tokens(spec_info: Any) -> int | None:
    """Query tokens of each request of a verify; None of other steps, and where requests differ."""
    if getattr(spec_info, "ragged_verify_layout", None) is not None:
        return None
    return getattr(spec_info, "draft_token_num", None)
