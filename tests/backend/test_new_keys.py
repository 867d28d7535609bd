"""New keys of a step: written to the pool, and among what attention reads."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backend import upstream_backend as stock
from tests.backend.steps import FEW, PlainPool, assert_close, assert_same, expected, run
from tests.backend.upstream_backend import Batch

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("key", [3.0, float("inf")])
def test_new_keys_are_written_as_torch_casts_them_to_the_pools_dtype(
    backend: Any, monkeypatch: pytest.MonkeyPatch, key: float, awaited: bool, dtype: torch.dtype
) -> None:
    pool, slots = PlainPool(), torch.tensor([77, 2])
    pool.dtype, pool.layers = dtype, {7: pool.layers[7].to(dtype)}
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    attention.init_forward_metadata(Batch(FEW.slots, out_cache_loc=slots if awaited else None))
    monkeypatch.setattr(
        stock.AttnBackend, "forward_decode", stock.writes_and_reads(slots, 7, key=key)
    )
    attention.forward_decode(None, SimpleNamespace(layer_id=7))
    cast = torch.tensor([key]).to(dtype).view(torch.uint8)
    assert (pool.layers[7][slots].view(torch.uint8) == cast).all()


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("read", [True, False], ids=["attended to", "as of a fresh prompt"])
@pytest.mark.parametrize("card", [(8, 6), (9, 0)], ids=["gather", "direct"])
def test_new_keys_are_in_the_pool_and_among_what_attention_reads(
    backend: Any,
    monkeypatch: pytest.MonkeyPatch,
    card: tuple[int, int],
    read: bool,
    awaited: bool,
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
    batch = Batch(FEW.slots, out_cache_loc=slots if awaited else slots.clone())
    outputs = run(attention, batch)
    monkeypatch.undo()
    assert torch.equal(pool.layers[7].float(), reference.layers[7].float())
    if read:
        assert_close(outputs, expected(reference, FEW))


def test_awaited_keys_take_no_launch_of_their_own(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    keys = sys.modules[backend.KeyReader.__module__]
    for owner, name in ((backend, "gather_rows"), (backend, "write_rows"), (keys, "write_rows")):
        monkeypatch.setattr(owner, name, noted(launched, name, getattr(owner, name)))
    monkeypatch.setattr(backend.Fill, "__call__", noted(launched, "fill", backend.Fill.__call__))
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(PlainPool()))
    slots = torch.tensor([77, 2])
    attention.init_forward_metadata(Batch(FEW.slots, out_cache_loc=slots))
    monkeypatch.setattr(stock.AttnBackend, "forward_decode", stock.writes_and_reads(slots, 7, 3))
    attention.forward_decode(None, SimpleNamespace(layer_id=7))
    assert launched == ["fill", "gather_rows"]


def noted(calls: list[str], name: str, call: Any) -> Any:
    def wrapped(*arguments: Any) -> Any:
        calls.append(name)
        return call(*arguments)

    return wrapped


def test_what_a_step_without_new_slots_reads_is_gathered_whole(backend: Any) -> None:
    """As captured steps are planned, also after a step whose new tokens had rows of their own."""
    pool = PlainPool()
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    run(attention, Batch(FEW.slots, out_cache_loc=torch.tensor([77, 2])))
    assert attention._fill is not None
    assert_same(run(attention, FEW), expected(pool, FEW))
    assert attention._fill is None


def test_a_step_planned_without_its_batch_awaits_no_keys(backend: Any) -> None:
    """A captured launch would go on reading where rows of the step before were found."""
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(PlainPool()))
    batch = Batch(FEW.slots, out_cache_loc=torch.tensor([77, 2]))
    attention.init_forward_metadata(batch)
    stock.AttnBackend.init_forward_metadata(attention, batch)  # all that a replay calls
    assert attention._fill is None


def test_the_reserved_slot_is_read_as_the_pool_holds_it(backend: Any) -> None:
    pool, slots = PlainPool(), torch.tensor([77, 0])
    held = pool.layers[7][0].float()
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    named = [FEW.slots[0], torch.tensor([0])]
    attention.init_forward_metadata(Batch(named, out_cache_loc=slots))
    keys = torch.full((2, 1, 576), 3.0).bfloat16().split([512, 64], -1)
    reader = backend.KeyReader(pool, attention._read_keys, 0x7F, attention._fill.new.slots)
    reader.set_mla_kv_buffer(SimpleNamespace(layer_id=7), slots, *keys)
    read = reader.get_key_buffer(7)[attention.decode_wrapper._kv_indices_buf.long()]
    assert torch.equal(read, pool.layers[7][torch.cat(named)].bfloat16())
    assert torch.equal(pool.layers[7][0].float(), held)


def test_keys_of_a_direct_step_are_written_though_an_earlier_step_awaited_their_slots(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    pool, slots = PlainPool(), torch.tensor([77, 2])
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    attention.init_forward_metadata(Batch(FEW.slots, [1, 1], out_cache_loc=slots))
    attention.init_forward_metadata(Batch(FEW.slots, out_cache_loc=slots))
    assert attention._reads_directly
    monkeypatch.setattr(stock.AttnBackend, "forward_decode", stock.writes_and_reads(slots, 7))
    attention.forward_decode(None, SimpleNamespace(layer_id=7))
    assert (pool.layers[7][slots].float() == 3).all()
