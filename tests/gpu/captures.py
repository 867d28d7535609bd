"""Captured steps, driven as upstream's graph runner drives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from tests.gpu import plans
from tests.gpu.engine import DEVICE, Engine, Inputs
from tests.gpu.steps import decode_batch, forward, verify_batch


def capture(step: Callable[[], list[torch.Tensor]]) -> tuple[Any, list[torch.Tensor]]:
    """A CUDA graph of the step, and the tensors that a replay fills."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return graph, outputs


@dataclass
class Captured:
    """One captured batch size, driven as upstream's graph runner drives it (see `capture_sizes`).

    Capture sees the padding batch: length 1, request 0, slot 0. A replay copies the real batch
    over the first rows and leaves the padding values in the others.
    """

    engine: Engine
    backend: Any
    size: int
    drafts: int = 0
    verify: Callable[..., Any] = verify_batch
    graph: Any = field(init=False)
    outputs: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        tokens = self.size * max(1, self.drafts)
        self.inputs = self.engine.inputs(tokens)
        self.batch = self._padding(tokens)
        with torch.no_grad():
            self.backend.init_forward_metadata_out_graph(self.batch, in_capture=True)
            for _ in range(2):
                self._step()
                self.backend.on_after_cuda_graph_warmup()
            self.graph, self.outputs = capture(self._step)

    def _padding(self, tokens: int) -> Any:
        requests = torch.zeros(self.size, dtype=torch.int64, device=DEVICE)
        if self.drafts:
            return self.verify(self.engine, requests, [1] * self.size, self.drafts)
        return decode_batch(self.engine, requests, [1] * self.size)

    def _step(self) -> list[torch.Tensor]:
        self.backend.init_forward_metadata_in_graph(self.batch)
        return forward(self.engine, self.backend, self.batch, self.inputs)

    def load(self, batch: Any, inputs: list[Inputs]) -> None:
        """Copy a real batch into the static tensors and prepare the replay."""
        static, real = self.batch, batch.batch_size
        tokens = real * max(1, self.drafts)
        padded = self.size - real
        static.req_pool_indices.zero_()[:real] = batch.req_pool_indices
        static.seq_lens.fill_(1)[:real] = batch.seq_lens
        static.out_cache_loc.zero_()[:tokens] = batch.out_cache_loc
        for mine, theirs in zip(self.inputs, inputs, strict=True):
            for name, value in vars(theirs).items():
                getattr(mine, name)[:tokens].copy_(value)
        view = SimpleNamespace(
            batch_size=self.size,
            forward_mode=static.forward_mode,
            actual_forward_mode=static.forward_mode,
            input_ids=static.input_ids,
            positions=static.positions,
            req_pool_indices=static.req_pool_indices,
            seq_lens=static.seq_lens,
            seq_lens_sum=batch.seq_lens_sum + padded,
            seq_lens_cpu=torch.cat([batch.seq_lens_cpu, torch.ones(padded, dtype=torch.int64)]),
            num_padding=padded,
            encoder_lens=None,
            out_cache_loc=static.out_cache_loc,
            spec_info=static.spec_info,
            **plans.carried(batch),
        )
        with torch.no_grad():
            self.backend.init_forward_metadata_out_graph(view)

    def replay(self, batch: Any, inputs: list[Inputs]) -> list[torch.Tensor]:
        """The rows of the real requests, for each layer."""
        self.load(batch, inputs)
        self.graph.replay()
        tokens = batch.batch_size * max(1, self.drafts)
        return [output[:tokens].clone() for output in self.outputs]


def capture_sizes(
    engine: Engine,
    backend: Any,
    sizes: Sequence[int],
    drafts: int = 0,
    verify: Callable[..., Any] = verify_batch,
) -> dict[int, Captured]:
    """A graph for each batch size, largest first; drafts > 0 captures batches of `verify`."""
    largest = max(sizes)
    backend.init_cuda_graph_state(largest, largest * max(1, drafts))
    descending = sorted(sizes, reverse=True)
    return {size: Captured(engine, backend, size, drafts, verify) for size in descending}


def capture_one(
    engine: Engine,
    backend: Any,
    size: int,
    drafts: int = 0,
    verify: Callable[..., Any] = verify_batch,
) -> Captured:
    return capture_sizes(engine, backend, [size], drafts, verify)[size]
