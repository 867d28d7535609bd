"""The direct kernel in the place where upstream's forward methods expect a FlashInfer wrapper."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_compact import direct
from sglang.srt.layers.attention.flashinfer_mla_compact.keys import UncastKeys


class DirectWrapper:
    """Attention over FP8 rows, called as `BatchMLAPagedAttentionWrapper` is.

    Args:
        heads: query heads of this rank.
        max_tokens: most query tokens of a step.
        sm_scale: softmax scale.
        device: where the pool lives.
        q_per_request: query tokens of every request; None for extends of unequal lengths.
    """

    def __init__(
        self,
        heads: int,
        max_tokens: int,
        sm_scale: float,
        device: torch.device,
        q_per_request: int | None = 1,
    ) -> None:
        self.workspace = direct.make_workspace(
            heads, max_tokens, device, q_per_request=q_per_request
        )
        self.max_tokens = max_tokens
        self.slots = torch.empty(0, dtype=torch.int32, device=device)
        self.planned_tokens: int | None = None
        self._sm_scale = sm_scale

    def plan(self, qo_indptr: Any, kv_indptr: Any, kv_indices: torch.Tensor, *plan: Any) -> None:
        """Keep the slots; FlashInfer's plan, which costs the host a copy, is not needed."""
        self.slots = kv_indices

    def cut(self, kv_indptr: torch.Tensor, qo_indptr: torch.Tensor | None = None) -> None:
        """Cut the step's KV ranges into splits, on the device: once a step."""
        direct.plan(self.workspace, kv_indptr, qo_indptr)

    def run(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        keys: UncastKeys,
        _rope: UncastKeys,
        out: torch.Tensor,
        return_lse: bool = False,
    ) -> torch.Tensor:
        """[tokens, heads, 512] of attention into `out`; `keys` carries latent and rope together.

        Rows past `planned_tokens` pad an eager extend to a multiple of the ranks that share it;
        they belong to no request and stay as they are.
        """
        assert not return_lse, "only decode context parallelism asks for it, and that is refused"
        direct.attend(
            q_nope[: self.planned_tokens],
            q_rope[: self.planned_tokens],
            keys.rows,
            self.slots,
            self.workspace,
            sm_scale=self._sm_scale,
            out=out[: self.planned_tokens],
        )
        return out
