"""New keys of a step: written to the pool, and among what attention reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backend import upstream_backend as stock
from tests.backend.steps import FEW, PlainPool, assert_close, expected, run

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("key", [3.0, float("inf")])
def test_new_keys_are_written_as_torch_casts_them_to_the_pools_dtype(
    backend: Any, monkeypatch: pytest.MonkeyPatch, key: float, dtype: torch.dtype
) -> None:
    pool, slots = PlainPool(), torch.tensor([77, 2])
    pool.dtype, pool.layers = dtype, {7: pool.layers[7].to(dtype)}
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    attention.init_forward_metadata(FEW)
    monkeypatch.setattr(
        stock.AttnBackend, "forward_decode", stock.writes_and_reads(slots, 7, key=key)
    )
    attention.forward_decode(None, SimpleNamespace(layer_id=7))
    cast = torch.tensor([key]).to(dtype).view(torch.uint8)
    assert (pool.layers[7][slots].view(torch.uint8) == cast).all()


@pytest.mark.parametrize("read", [True, False], ids=["attended to", "as of a fresh prompt"])
@pytest.mark.parametrize("card", [(8, 6), (9, 0)], ids=["gather", "direct"])
def test_new_keys_are_in_the_pool_and_among_what_attention_reads(
    backend: Any,
    monkeypatch: pytest.MonkeyPatch,
    card: tuple[int, int],
    read: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: card)
    pool, layer, slots = PlainPool(), SimpleNamespace(layer_id=7), torch.tensor([77, 2])
    keys = torch.randn((2, 1, 576), generator=torch.Generator().manual_seed(8)).bfloat16()
    reference = PlainPool()
    reference.layers[7][slots] = keys.to(pool.dtype)

    def attend(self: Any, query: torch.Tensor, number: int) -> Any:
        if number == layer.layer_id:
            nope, rope = keys.split([512, 64], -1)
            self.token_to_kv_pool.set_mla_kv_buffer(layer, slots, nope, rope)
        return stock.AttnBackend._attend(self, wrapper(self), query, number) if read else None

    def wrapper(self: Any) -> Any:
        return self.forward_metadata.decode_wrapper

    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    monkeypatch.setattr(stock.AttnBackend, "forward_decode", attend)
    outputs = run(attention, FEW)
    monkeypatch.undo()
    assert torch.equal(pool.layers[7].float(), reference.layers[7].float())
    if read:
        assert_close(outputs, expected(reference, FEW))
