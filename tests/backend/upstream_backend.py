"""A stand-in for sglang's FlashInfer MLA backend: its order of calls, and attention in torch.

What it gives is what the backend under test is compared with, bit for bit where rows are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch

HEADS, SCALE, NOPE = 16, 192**-0.5, 512


def indptr(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)


@dataclass
class Batch:
    """A step: each request's slots, and how many of their tokens are new; None for a decode.

    A ragged extend takes its keys from the forward pass itself. A verify has new tokens alike.
    """

    slots: list[torch.Tensor]
    new: list[int] | None = None
    ragged: bool = False
    verifies: bool = False

    @property
    def input_ids(self) -> range:
        return range(sum(self.new or [1] * len(self.slots)))

    @property
    def lengths(self) -> list[int]:
        return [len(slots) for slots in self.slots]


class Wrapper:
    """FlashInfer's wrapper: planned with lengths, it reads the indices when it runs."""

    def __init__(self) -> None:
        self._use_cuda_graph = False

    def plan(self, batch: Batch) -> None:
        self._kv_indices_buf = torch.cat(batch.slots).to(torch.int32)
        self._kv_indptr_buf = indptr(batch.lengths)
        self._qo_indptr_buf = indptr(batch.new or [1] * len(batch.slots))

    def run(self, query: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        keys = torch.cat([latent, rope], -1).squeeze(1).double()
        requests = zip(self._kv_indptr_buf.diff(), self._qo_indptr_buf.diff(), strict=True)
        named = self._kv_indices_buf.split(self._kv_indptr_buf.diff().tolist())
        queries = query.split(self._qo_indptr_buf.diff().tolist())
        outputs = []
        for (length, tokens), rows, part in zip(requests, named, queries, strict=True):
            scores = part.double() @ keys[rows.long()].T * SCALE
            seen = torch.arange(length)[None] <= torch.arange(tokens)[:, None] + length - tokens
            weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
            outputs.append(weights @ keys[rows.long(), :NOPE])
        return torch.cat(outputs)


class IndicesUpdater:
    """Plans a wrapper for a batch; `update` is called as ours passes its arguments on."""

    num_local_heads, scaling = HEADS, SCALE

    def __init__(self, runner: Any, attn_backend: Any) -> None:
        self.attn_backend = attn_backend

    def update(self, requests: torch.Tensor, *, step: Batch, **options: Any) -> None:
        lengths = indptr(step.lengths)
        self.attn_backend.kv_indptr[: len(lengths)] = lengths
        wrapper = options.get("decode_wrapper") or options["prefill_wrapper_paged"]
        if isinstance(wrapper, Wrapper):
            wrapper.plan(step)
        else:
            wrapper.plan(None, None, torch.cat(step.slots).to(torch.int32))


@dataclass
class DecodeMetadata:
    decode_wrapper: Any


@dataclass
class PrefillMetadata:
    prefill_wrapper: Any


class AttnBackend:
    """Metadata and forward methods in the order of upstream's; it casts all that the pool gives."""

    def __init__(
        self, runner: Any, skip_prefill: bool = False, kv_indptr: Any = None, q_indptr: Any = None
    ) -> None:
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.kv_indptr = torch.zeros(runner.requests + 1, dtype=torch.int32)
        self.decode_wrapper: Any = Wrapper()
        self.prefill_wrapper = Wrapper()
        self.indices_updater_decode = IndicesUpdater(runner, self)
        self.indices_updater_prefill = IndicesUpdater(runner, self)
        self.forward_metadata: Any = None

    def init_forward_metadata(self, batch: Batch) -> None:
        requests = torch.zeros(len(batch.slots))
        if batch.new is None:
            updater, wrapper = self.indices_updater_decode, self.decode_wrapper
            updater.update(requests, decode_wrapper=wrapper, step=batch)
            self.forward_metadata = DecodeMetadata(wrapper)
            return
        self.indices_updater_prefill.update(
            requests,
            prefill_wrapper_paged=self.prefill_wrapper,
            use_ragged=batch.ragged,
            step=batch,
            spec_info=verify_of(batch),
        )
        self.forward_metadata = PrefillMetadata(self.prefill_wrapper)

    def forward_decode(self, query: torch.Tensor, layer: int) -> Any:
        return self._attend(self.forward_metadata.decode_wrapper, query, layer)

    def forward_extend(self, query: torch.Tensor, layer: int) -> Any:
        return self._attend(self.forward_metadata.prefill_wrapper, query, layer)

    def _attend(self, wrapper: Any, query: torch.Tensor, layer: int) -> Any:
        keys = self.token_to_kv_pool.get_key_buffer(layer).to(query.dtype)
        latent, rope = keys[:, :, :NOPE], keys[:, :, NOPE:]
        if isinstance(wrapper, Wrapper):
            return wrapper.run(query, latent, rope)
        out = torch.empty_like(query[..., :NOPE])
        return wrapper.run(query[..., :NOPE], query[..., NOPE:], latent, rope, out=out)


def verify_of(batch: Batch) -> Any:
    return SimpleNamespace(draft_token_num=batch.new[0]) if batch.verifies and batch.new else None


def writes_and_reads(slots: torch.Tensor, *layers: int, key: float = 3) -> Any:
    """A forward method that writes keys of `key`s to `slots`, and reads these layers."""

    def forward(self: Any, query: Any, layer: Any) -> None:
        keys = torch.full((len(slots), 1, 576), key).bfloat16().split([512, 64], -1)
        self.token_to_kv_pool.set_mla_kv_buffer(layer, slots, *keys)
        for number in layers:
            self.token_to_kv_pool.get_key_buffer(number)

    return forward


CONTENTS = {
    "DecodeMetadata": DecodeMetadata,
    "FlashInferMLAAttnBackend": AttnBackend,
    "FlashInferMLAIndicesUpdaterDecode": IndicesUpdater,
    "FlashInferMLAIndicesUpdaterPrefill": IndicesUpdater,
}


def runner(pool: Any, requests: int = 8) -> Any:
    return SimpleNamespace(
        token_to_kv_pool=pool, requests=requests, device="cpu", dtype=torch.bfloat16
    )
