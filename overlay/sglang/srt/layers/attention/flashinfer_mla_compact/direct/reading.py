"""A reading of FP8 rows where they lie, called where upstream expects a FlashInfer wrapper."""

from __future__ import annotations

from typing import Any

import torch

from . import attend
from .workspace import Workspace


class UncastKeys:
    """A layer's FP8 rows on their way to a kernel that reads FP8.

    Upstream casts what the pool returns and slices latent from rope before it calls the wrapper;
    both do nothing here, since the direct kernel does them itself.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def to(self, dtype: torch.dtype) -> UncastKeys:
        return self

    def __getitem__(self, index: Any) -> UncastKeys:
        return self


class Direct:
    """Reads a step's FP8 rows in the attention kernel; called as a FlashInfer wrapper is.

    Args:
        workspace: of steps of this kind.
        sm_scale: softmax scale.
    """

    name = "direct"

    def __init__(self, workspace: Workspace, sm_scale: float) -> None:
        self.workspace = workspace
        self.slots = workspace.item_count  # until a step is planned
        self._sm_scale = sm_scale

    def plan(self, qo_indptr: Any, kv_indptr: Any, kv_indices: torch.Tensor, *plan: Any) -> None:
        """Keep the slots; FlashInfer's plan, which costs the host a copy, is not needed."""
        self.slots = kv_indices

    def place(
        self,
        kv_indptr: torch.Tensor,
        qo_indptr: torch.Tensor | None = None,
        *,
        slots: torch.Tensor | None = None,
    ) -> None:
        """Cut the step's KV ranges into splits, on the device: once a step.

        Args:
            kv_indptr: [requests + 1] int32, on the device.
            qo_indptr: the same for query tokens, where requests differ in them.
            slots: int32 in the order of `kv_indptr`; None for those that `plan` has kept.
        """
        if slots is not None:
            self.slots = slots
        attend.plan(self.workspace, kv_indptr, qo_indptr)

    def keys(self, rows: torch.Tensor) -> UncastKeys:
        """What `run` takes of a layer's rows, [pool rows, 1, 576] FP8."""
        return UncastKeys(rows)

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

        Tokens that pad an extend belong to no request: their rows hold anything.
        """
        assert not return_lse, "only decode context parallelism asks for it, and that is refused"
        attend.attend(
            q_nope,
            q_rope,
            keys.rows,
            self.slots,
            self.workspace,
            sm_scale=self._sm_scale,
            out=out,
        )
        return out
