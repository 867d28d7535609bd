"""Batches of each mode (decode, extend, target verify), and running one eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from tests.gpu import plans
from tests.gpu.engine import DEVICE, Engine, Inputs, on_device


def decode_batch(engine: Engine, requests: torch.Tensor, lengths: Sequence[int]) -> Any:
    """A decode step: each request attends to `lengths` tokens, the last of them new."""
    seq_lens = on_device(lengths)
    rows = engine.req_to_token[requests]
    batch = ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        batch_size=len(lengths),
        input_ids=torch.zeros(len(lengths), dtype=torch.int64, device=DEVICE),
        req_pool_indices=requests,
        seq_lens=seq_lens,
        seq_lens_cpu=torch.tensor(list(lengths)),
        seq_lens_sum=sum(lengths),
        out_cache_loc=rows.gather(1, seq_lens[:, None] - 1).squeeze(1).long(),
        positions=seq_lens - 1,
    )
    plans.bind(engine.runner, batch)
    return batch


def extend_batch(
    engine: Engine, requests: torch.Tensor, prefixes: Sequence[int], new: Sequence[int]
) -> Any:
    """An extend: `new` tokens for each request behind `prefixes` cached ones."""
    lengths = [prefix + count for prefix, count in zip(prefixes, new, strict=True)]
    slots = engine.slots_of(requests, lengths)
    tails = [row[prefix:] for row, prefix in zip(slots, prefixes, strict=True)]
    positions = [
        torch.arange(prefix, length, device=DEVICE)
        for prefix, length in zip(prefixes, lengths, strict=True)
    ]
    batch = ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=len(new),
        input_ids=torch.zeros(sum(new), dtype=torch.int64, device=DEVICE),
        req_pool_indices=requests,
        seq_lens=on_device(lengths),
        seq_lens_cpu=torch.tensor(lengths),
        seq_lens_sum=sum(lengths),
        out_cache_loc=torch.cat(tails),
        positions=torch.cat(positions),
    )
    batch.extend_prefix_lens = on_device(prefixes, torch.int32)
    batch.extend_prefix_lens_cpu = list(prefixes)
    batch.extend_seq_lens = on_device(new, torch.int32)
    batch.extend_seq_lens_cpu = list(new)
    batch.extend_start_loc = torch.cumsum(batch.extend_seq_lens, 0) - batch.extend_seq_lens
    batch.extend_num_tokens = sum(new)
    plans.bind(engine.runner, batch)
    return batch


def verify_batch(
    engine: Engine, requests: torch.Tensor, prefixes: Sequence[int], drafts: int
) -> Any:
    """A target verify: `drafts` tokens for each request behind `prefixes` accepted ones."""
    batch = extend_batch(engine, requests, prefixes, [drafts] * len(prefixes))
    batch.forward_mode = ForwardMode.TARGET_VERIFY
    batch.seq_lens = on_device(prefixes)
    batch.seq_lens_cpu = torch.tensor(list(prefixes))
    batch.seq_lens_sum = sum(prefixes)
    mask = torch.ones(1, dtype=torch.bool, device=DEVICE)
    batch.spec_info = EagleVerifyInput(
        draft_token=batch.input_ids,
        custom_mask=mask,
        positions=batch.positions,
        retrieve_index=None,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        retrieve_cum_len=None,
        spec_steps=drafts - 1,
        topk=1,
        draft_token_num=drafts,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=batch.seq_lens_sum,
        seq_lens_cpu=batch.seq_lens_cpu,
    )
    plans.bind(engine.runner, batch)
    return batch


def dflash_batch(
    engine: Engine, requests: torch.Tensor, prefixes: Sequence[int], drafts: int
) -> Any:
    """A target verify of DFLASH, whose host lengths count the drafts and device lengths do not."""
    batch = verify_batch(engine, requests, prefixes, drafts)
    batch.seq_lens_cpu = batch.seq_lens_cpu + drafts
    batch.spec_info = DFlashVerifyInput(batch.input_ids, batch.positions, drafts)
    plans.bind(engine.runner, batch)
    return batch


def forward(engine: Engine, backend: Any, batch: Any, inputs: list[Inputs]) -> list[torch.Tensor]:
    """One layer after the other: write the new keys, attend; [tokens, heads * 512] for each."""
    return [
        backend.forward(
            step.q_nope,
            step.k_nope,
            step.k_nope,
            layer,
            batch,
            save_kv_cache=True,
            q_rope=step.q_rope,
            k_rope=step.k_rope,
        )
        for layer, step in zip(engine.layers, inputs, strict=True)
    ]


def run_eager(engine: Engine, backend: Any, batch: Any, inputs: list[Inputs]) -> list[torch.Tensor]:
    with torch.no_grad():
        backend.init_forward_metadata(batch)
        return forward(engine, backend, batch, inputs)
