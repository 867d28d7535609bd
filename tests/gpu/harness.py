"""Stock and compact backends on one runner, with an FP8 pool of any size, layout and page size.

The runner is upstream's own mock of one (it publishes the server arguments that backends read);
its pools are replaced by larger ones. Everything else is real: pool, backend classes, FlashInfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():  # before sglang is imported, which a CPU may not have
    pytest.skip("needs a CUDA device", allow_module_level=True)

from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.test.kits.attention_unittest.attention_methods.mla_attention import (
    MLAAttentionCase,
    MockMLAModelRunner,
    TinyMLAModelConfig,
)

DEVICE = "cuda"
STOCK, COMPACT = "flashinfer", "flashinfer_mla_compact"
NOPE, ROPE = 512, 64
DIM = NOPE + ROPE
MODEL_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Shape:
    """What a test varies; rows counts the pool's slots without the page of padding in front."""

    heads: int = 16
    rows: int = 4096
    page_size: int = 1
    dtype: torch.dtype = torch.float8_e4m3fn
    layers: int = 2
    requests: int = 8
    context: int = 2048

    def __str__(self) -> str:
        return f"{self.heads}-heads-{dtype_name(self.dtype)}-page-{self.page_size}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Engine:
    """A runner with its pool filled at random, and both backends made from it."""

    def __init__(self, shape: Shape, seed: int = 7) -> None:
        self.shape = shape
        self.generator = torch.Generator(device=DEVICE).manual_seed(seed)
        self.runner = mock_runner(shape)
        self.pool = self.runner.token_to_kv_pool
        self.req_to_token = self.runner.req_to_token_pool.req_to_token
        self.layers = [
            RadixAttention(
                num_heads=shape.heads,
                head_dim=DIM,
                scaling=self.runner.model_config.scaling,
                num_kv_heads=1,
                layer_id=layer,
                v_head_dim=NOPE,
            )
            for layer in range(shape.layers)
        ]
        self.fill_pool()

    def make(self, name: str) -> Any:
        """The backend that the registry gives under a name."""
        return ATTENTION_BACKENDS[name](self.runner)

    def pair(self) -> tuple[Any, Any]:
        """Stock, then compact."""
        return self.make(STOCK), self.make(COMPACT)

    def random(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self.generator, device=DEVICE, dtype=MODEL_DTYPE)

    def fill_pool(self) -> None:
        """Random finite keys; a large pool repeats the first rows."""
        part = self.random(min(self.shape.rows, 65536), 1, DIM).to(self.shape.dtype)
        stored = part.view(self.pool.store_dtype)
        for layer, buffer in enumerate(self.pool.kv_buffer):
            for start in range(0, buffer.shape[0], len(stored)):
                rows = buffer[start : start + len(stored)]
                rows.copy_(stored.roll(layer, 0)[: len(rows)])

    def place(
        self, lengths: Sequence[int], shared: int = 0, slots: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Give requests 1, 2, ... random slots for `lengths` tokens; the first `shared` are common.

        Returns the request indices, [requests] int64. Row 0 of req_to_token stays zero: it is
        where padded rows of a captured batch read.
        """
        own = [length - shared for length in lengths]
        if slots is None:
            slots = self.random_slots(shared + sum(own))
        prefix, rest = slots[:shared], slots[shared:]
        for request, tail in enumerate(rest.split(own), start=1):
            row = torch.cat([prefix, tail]).to(torch.int32)
            self.req_to_token[request, : len(row)] = row
        return torch.arange(1, len(lengths) + 1, device=DEVICE)

    def random_slots(self, count: int) -> torch.Tensor:
        """Distinct slots in no order, none of them in the page of padding."""
        first, last = self.shape.page_size, self.shape.page_size + self.shape.rows
        order = torch.randperm(last - first, generator=self.generator, device=DEVICE)
        return order[:count] + first

    def slots_of(self, requests: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
        rows = self.req_to_token[requests].long()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def inputs(self, tokens: int) -> list[Inputs]:
        """One layer's queries and new keys for each layer."""
        heads = self.shape.heads
        return [
            Inputs(
                self.random(tokens, heads * NOPE),
                self.random(tokens, heads * ROPE),
                self.random(tokens, 1, NOPE),
                self.random(tokens, 1, ROPE),
            )
            for _ in self.layers
        ]


@dataclass
class Inputs:
    """q_nope [tokens, heads * 512], q_rope [tokens, heads * 64], keys [tokens, 1, 512 and 64]."""

    q_nope: torch.Tensor
    q_rope: torch.Tensor
    k_nope: torch.Tensor
    k_rope: torch.Tensor


def mock_runner(shape: Shape) -> Any:
    """Upstream's mock runner with pools of the wanted shape, and its server arguments published."""
    case = MLAAttentionCase(
        name="gpu",
        backend=COMPACT,
        forward_mode=ForwardMode.DECODE,
        num_heads=shape.heads,
        page_size=shape.page_size,
        prefix_lens=(1,),
    )
    runner = MockMLAModelRunner(
        case=case,
        model_config=TinyMLAModelConfig(
            num_heads=shape.heads,
            kv_lora_rank=NOPE,
            qk_rope_head_dim=ROPE,
            hidden_size=64,
            context_len=shape.context,
        ),
        dtype=MODEL_DTYPE,
        device=DEVICE,
        max_context_len=8,
        kv_lora_rank=NOPE,
        qk_rope_head_dim=ROPE,
        fp8_kv_cache=True,
    )
    runner.kv_cache_dtype = shape.dtype
    runner.req_to_token_pool = ReqToTokenPool(
        size=shape.requests,
        max_context_len=shape.context,
        device=DEVICE,
        enable_memory_saver=False,
    )
    runner.token_to_kv_pool = make_pool(shape)
    return runner


def make_pool(shape: Shape) -> Any:
    """An empty MLA pool of the shape."""
    return MLATokenToKVPool(
        size=shape.rows,
        page_size=shape.page_size,
        dtype=shape.dtype,
        kv_lora_rank=NOPE,
        qk_rope_head_dim=ROPE,
        layer_num=shape.layers,
        device=DEVICE,
        enable_memory_saver=False,
    )


def on_device(values: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(list(values), dtype=dtype, device=DEVICE)


def decode_batch(engine: Engine, requests: torch.Tensor, lengths: Sequence[int]) -> Any:
    """A decode step: each request attends to `lengths` tokens, the last of them new."""
    seq_lens = on_device(lengths)
    rows = engine.req_to_token[requests]
    return ForwardBatch(
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
            return verify_batch(self.engine, requests, [1] * self.size, self.drafts)
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
    engine: Engine, backend: Any, sizes: Sequence[int], drafts: int = 0
) -> dict[int, Captured]:
    """A graph for each batch size, largest first; drafts > 0 captures target verify."""
    largest = max(sizes)
    backend.init_cuda_graph_state(largest, largest * max(1, drafts))
    return {size: Captured(engine, backend, size, drafts) for size in sorted(sizes, reverse=True)}


def capture_one(engine: Engine, backend: Any, size: int, drafts: int = 0) -> Captured:
    return capture_sizes(engine, backend, [size], drafts)[size]


def assert_same_bits(
    actual: list[torch.Tensor], expected: list[torch.Tensor], what: str = "compact against stock"
) -> None:
    """Equal bit for bit in every layer; on failure the first coordinate that differs."""
    assert len(actual) == len(expected)
    for layer, (got, want) in enumerate(zip(actual, expected, strict=True)):
        assert got.shape == want.shape
        differs = got.view(torch.int16) != want.view(torch.int16)
        if bool(differs.any()):
            token, column = torch.nonzero(differs)[0].tolist()
            raise AssertionError(
                f"{what}: layer {layer}, token {token}, head {column // NOPE}, "
                f"column {column % NOPE}: {got[token, column].item()!r} "
                f"is not {want[token, column].item()!r}; {int(differs.sum())} values differ"
            )


def differs_in_bits(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return any(not torch.equal(got, want) for got, want in zip(actual, expected, strict=True))


def reference(engine: Engine, batch: Any, inputs: list[Inputs]) -> list[torch.Tensor]:
    """The step in float64, from the pool as it is after the step wrote its keys.

    softmax(scaling * (q_nope . latent + q_rope . rope)) . latent over each request's slots,
    causal within the new tokens.
    """
    new = batch.extend_seq_lens_cpu or [1] * batch.batch_size
    verifying = batch.forward_mode.is_target_verify()
    lengths = [
        int(length) + (count if verifying else 0)
        for length, count in zip(batch.seq_lens_cpu, new, strict=True)
    ]
    slots = engine.slots_of(batch.req_pool_indices, lengths)
    outputs = []
    for layer, step in enumerate(inputs):
        keys = engine.pool.get_key_buffer(layer)
        parts = zip(slots, step.q_nope.split(list(new)), step.q_rope.split(list(new)), strict=True)
        outputs.append(torch.cat([attend(engine, keys, *part) for part in parts]))
    return outputs


def attend(
    engine: Engine,
    keys: torch.Tensor,
    slots: torch.Tensor,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
) -> torch.Tensor:
    """One request of `reference`; [new tokens, heads * 512] float64."""
    new, length = len(q_nope), len(slots)
    rows = keys.view(torch.uint8)[slots].view(engine.shape.dtype).to(torch.float64).squeeze(1)
    query = torch.cat([q_nope.view(new, -1, NOPE), q_rope.view(new, -1, ROPE)], -1).double()
    scores = torch.einsum("thd,kd->thk", query, rows) * engine.layers[0].scaling
    visible = (
        torch.arange(length, device=slots.device)[None]
        <= (torch.arange(length - new, length, device=slots.device)[:, None])
    )
    scores = scores.masked_fill(~visible[:, None], float("-inf"))
    return torch.einsum("thk,kd->thd", scores.softmax(-1), rows[:, :NOPE]).reshape(new, -1)


def rms_error(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Root mean square of the difference, over all layers."""
    squares = [
        (got.double() - want).square().mean() for got, want in zip(actual, expected, strict=True)
    ]
    return float(torch.stack(squares).mean().sqrt())
