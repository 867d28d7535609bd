"""Steps of a small batch over a small pool, by the backend under test and by the stand-in."""

from __future__ import annotations

from typing import Any

import torch

from tests.backend import upstream_backend as stock
from tests.backend.upstream import MLATokenToKVPool
from tests.backend.upstream_backend import Batch

ROWS = 150
FEW = Batch([torch.tensor([9, 4, 77]), torch.tensor([4, 9, 30, 31, 2])])
# Entries above the bound, distinct slots above it, too.
MANY = Batch([torch.arange(140, 90, -1), torch.arange(30, 85), torch.tensor([7])])
QUERY = torch.randn((16, stock.HEADS, 576), generator=torch.Generator().manual_seed(1)).bfloat16()


class Pool:
    """Two FP8 layers under the ids 3 and 7, as a hybrid model's pool maps them."""

    size, page_size = ROWS - 1, 1
    dtype = torch.float8_e4m3fn

    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        rows = torch.randn((2, ROWS, 1, 576), generator=random).to(torch.float8_e4m3fn)
        self.layers = dict(zip((3, 7), rows, strict=True))
        self.reads: list[int] = []

    def get_key_buffer(self, layer_id: int) -> Any:
        self.reads.append(layer_id)
        return self.layers[layer_id]


class PlainPool(MLATokenToKVPool, Pool):
    """A pool that writes as upstream's plain one does."""

    def __init__(self) -> None:
        MLATokenToKVPool.__init__(self)
        Pool.__init__(self)


def run(attention: Any, batch: Batch, plan: bool = True) -> list[torch.Tensor]:
    """Both layers of a step."""
    if plan:
        attention.init_forward_metadata(batch)
    query = QUERY[: sum(batch.new or [1] * len(batch.slots))]
    forward = attention.forward_decode if batch.new is None else attention.forward_extend
    return [forward(query, layer) for layer in (7, 3)]


def expected(pool: Pool, batch: Batch) -> list[torch.Tensor]:
    return run(stock.AttnBackend(stock.runner(pool)), batch)


def assert_same(actual: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert all(torch.equal(got, want) for got, want in zip(actual, wanted, strict=True))


def assert_close(actual: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for got, want in zip(actual, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0.02, atol=0.02)
