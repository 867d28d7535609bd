"""Stock and compact backends on one runner, with an FP8 pool of any size, layout and page size.

The runner is upstream's own mock of one (it publishes the server arguments that backends read);
its pools are replaced by larger ones. Everything else is real: pool, backend classes, FlashInfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel
from sglang.test.kits.attention_unittest.attention_methods.mla_attention import (
    MLAAttentionCase,
    MockMLAModelRunner,
    TinyMLAModelConfig,
)

from tests.gpu import plans

DEVICE = "cuda"
STOCK, COMPACT = "flashinfer", "flashinfer_mla_compact"
NOPE, ROPE = 512, 64
DIM = NOPE + ROPE
MODEL_DTYPE = torch.bfloat16

# The runner's module states the size of one group, and upstream's dense cases its rank; no group
# shares a prefill.
RANK = get_parallel().override(attn_dcp_rank=0, attn_cp_size=1)
RANK.__enter__()


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


class Engine:
    """A runner with its pool filled at random, and both backends made from it."""

    def __init__(
        self, shape: Shape, seed: int = 7, pool: Callable[[Shape], Any] = make_pool
    ) -> None:
        self.shape = shape
        self.generator = torch.Generator(device=DEVICE).manual_seed(seed)
        self.runner = mock_runner(shape)
        self.runner.token_to_kv_pool = pool(shape)
        plans.find_pools(self.runner)
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
            # A hybrid model's pool numbers its attention layers among all layers.
            for layer in getattr(self.pool, "full_attention_layer_id_mapping", range(shape.layers))
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
        pool = getattr(self.pool, "full_kv_pool", self.pool)
        stored = part.view(pool.store_dtype)
        for layer, buffer in enumerate(pool.kv_buffer):
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
    """Upstream's mock runner, which publishes its server arguments; its pool of keys is tiny."""
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
    return runner


def on_device(values: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(list(values), dtype=dtype, device=DEVICE)
