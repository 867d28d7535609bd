"""sglang's FlashInfer MLA backend as ours expects it: with a pool, and planned batch by batch.

In older releases the pool travels on each batch, and a graph is captured with loose arguments.
`PoolOnBatch` gives their backend what later ones have; `AttnBackend` is the one to derive from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAAttnBackend


class PoolOnBatch(FlashInferMLAAttnBackend):
    """An older backend under the later contract."""

    def __init__(self, model_runner: Any, *arguments: Any) -> None:
        super().__init__(model_runner, *arguments)
        self.token_to_kv_pool = model_runner.token_to_kv_pool

    def init_forward_metadata_capture_cuda_graph(self, bs: int, *step: Any, **more: Any) -> None:
        """What an older graph runner calls."""
        batch = SimpleNamespace(batch_size=bs, step=step, more=more)
        self.init_forward_metadata_out_graph(batch, in_capture=True)

    def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool) -> None:
        """`batch`: as made by the method above; a replay needs nothing of ours."""
        super().init_forward_metadata_capture_cuda_graph(
            batch.batch_size, *batch.step, **batch.more
        )

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *more: Any, **options: Any
    ) -> Any:
        with self._pool_on(forward_batch):
            return super().forward_decode(q, k, v, layer, forward_batch, *more, **options)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *more: Any, **options: Any
    ) -> Any:
        with self._pool_on(forward_batch):
            return super().forward_extend(q, k, v, layer, forward_batch, *more, **options)

    @contextmanager
    def _pool_on(self, batch: Any) -> Iterator[None]:
        """While upstream runs a layer, it finds this backend's pool on the batch."""
        pool = batch.token_to_kv_pool
        batch.token_to_kv_pool = self.token_to_kv_pool
        try:
            yield
        finally:
            batch.token_to_kv_pool = pool


_captures_batches = not hasattr(
    FlashInferMLAAttnBackend, "init_forward_metadata_capture_cuda_graph"
)
AttnBackend: Any = FlashInferMLAAttnBackend if _captures_batches else PoolOnBatch
