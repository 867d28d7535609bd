"""The backend over a stand-in of upstream's, on kernels under Triton's interpreter."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backend import upstream_backend as stock
from tests.backend.conftest import Import
from tests.backend.upstream import MLATokenToKVPool
from tests.backend.upstream_backend import Batch

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROWS, BOUND = 150, 64
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


@pytest.fixture
def backend(overlay: Import, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module under test; its buffer holds the pool unless a test says otherwise."""
    upstream = "sglang.srt.layers.attention.flashinfer_mla_backend"
    for name, value in stock.CONTENTS.items():
        monkeypatch.setattr(sys.modules[upstream], name, value, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 6))
    for variable in ("SGLANG_MLA_COMPACT_STRATEGY", "SGLANG_MLA_COMPACT_BUFFER_MIB"):
        monkeypatch.delenv(variable, raising=False)
    return overlay("backend")


@pytest.fixture
def bounded(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(backend.support, "capacity_rows", lambda *_: BOUND)
    return backend


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


EXTEND = Batch(FEW.slots, [2, 5])
ALONE = Batch(FEW.slots[:1])
IDLE = Batch([torch.tensor([0])] * 3)


@pytest.mark.parametrize(
    "batch", [FEW, MANY, ALONE, EXTEND, IDLE], ids=["few", "many", "alone", "extend", "idle"]
)
def test_a_step_equals_stock_and_leaves_the_pool_in_place(backend: Any, batch: Batch) -> None:
    pool = Pool()
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    assert_same(run(attention, batch), expected(pool, batch))
    assert attention._rows.count.item() == len(torch.cat(batch.slots).unique())
    assert attention.token_to_kv_pool is pool


@pytest.mark.parametrize(("gluon", "heads"), [(True, 64), (False, 64), (False, 32)])
def test_many_heads_are_read_directly_where_triton_builds_the_kernel_for_them(
    backend: Any, monkeypatch: pytest.MonkeyPatch, gluon: bool, heads: int
) -> None:
    monkeypatch.setattr(backend, "builds_gluon", lambda: gluon)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (12, 0))
    monkeypatch.setattr(stock.IndicesUpdater, "num_local_heads", heads)
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(Pool()))
    assert attention.decode_strategy[0] == ("direct" if gluon or heads == 32 else "gather")


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


def test_every_layer_of_every_step_asks_the_pool(backend: Any) -> None:
    """A hierarchical cache waits there for a layer, a hybrid one maps its id."""
    pool = Pool()
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    run(attention, FEW)
    run(attention, FEW)
    assert pool.reads == [7, 3, 7, 3]


def test_a_pool_that_was_swapped_is_the_one_that_is_read(backend: Any) -> None:
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(Pool()))
    run(attention, FEW)
    attention.token_to_kv_pool = other = Pool(seed=1)
    assert_same(run(attention, FEW), expected(other, FEW))


def test_a_step_waits_for_the_last_plans_before_upstream_touches_it(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later releases fill pinned arrays of their own first."""
    order: list[str] = []

    class Event:
        def record(self) -> None: ...

        def synchronize(self) -> None:
            order.append("wait")

    monkeypatch.setattr("torch.cuda.Event", Event)
    touch = stock.AttnBackend.init_forward_metadata

    def init_forward_metadata(self: Any, batch: Batch) -> None:
        order.append("touched")
        touch(self, batch)

    monkeypatch.setattr(stock.AttnBackend, "init_forward_metadata", init_forward_metadata)
    backend.FlashInferMLACompactAttnBackend(stock.runner(Pool())).init_forward_metadata(FEW)
    assert order[:3] == ["wait", "wait", "touched"]


@pytest.mark.parametrize("card", [(8, 6), (9, 0)], ids=["gather", "direct"])
def test_steps_that_are_planned_ahead_may_share_buffer_and_table(
    backend: Any, monkeypatch: pytest.MonkeyPatch, card: tuple[int, int]
) -> None:
    """Draft steps: all are planned before the first runs, each with indices of its own."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: card)
    same = assert_same if card == (8, 6) else assert_close
    pool = Pool()
    table = backend.SlotTable(ROWS, torch.device("cpu"))
    steps = [
        backend.FlashInferMLACompactAttnBackend(stock.runner(pool), True, table=table)
        for _ in range(2)
    ]
    batches = [
        Batch([torch.cat([slots, torch.tensor([88 + slots[0]])]) for slots in FEW.slots]),
        FEW,
    ]
    for step, batch in zip(steps, batches, strict=True):
        step.init_forward_metadata(batch)
    for step, batch in zip(steps, batches, strict=True):
        same(run(step, batch, plan=False), expected(pool, batch))


def test_a_bounded_buffer_leaves_every_decode_to_direct_reading(bounded: Any) -> None:
    pool = Pool()
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(pool))
    attention._buffer.fill_(float("nan"))
    for batch in (FEW, MANY):
        assert_close(run(attention, batch), expected(pool, batch))


def test_a_captured_verify_of_a_bounded_buffer_reads_directly_although_it_fits(
    bounded: Any,
) -> None:
    """Its replays may not fit."""
    pool = Pool()
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(pool))
    attention.prefill_wrapper._use_cuda_graph = True
    attention._buffer.fill_(float("nan"))
    assert_close(run(attention, EXTEND), expected(pool, EXTEND))
    assert attention._buffer.isnan().all(), "a gather would be recorded"


def test_a_fresh_prompt_after_a_direct_decode_is_left_to_upstream(bounded: Any) -> None:
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(Pool()))
    run(attention, FEW)
    attention.init_forward_metadata(Batch(EXTEND.slots, EXTEND.new, ragged=True))
    assert attention.forward_metadata.prefill_wrapper is attention.prefill_wrapper


def test_an_extend_reads_directly_only_while_it_does_not_fit(bounded: Any) -> None:
    pool = Pool()
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(pool))
    repeated = Batch([torch.full((BOUND + 6,), 5)], [2])
    alone = Batch([torch.arange(BOUND + 6)], [2])
    for fits in (EXTEND, Batch(FEW.slots[:1], [2]), repeated):
        assert_same(run(attention, fits), expected(pool, fits))
        for overflows in (Batch(MANY.slots, [3, 1, 1]), alone):
            attention._buffer.fill_(float("nan"))
            assert_close(run(attention, overflows), expected(pool, overflows))


def test_a_direct_extend_takes_queries_that_are_padded_past_its_tokens(bounded: Any) -> None:
    """Ranks that share an extend pad it to a multiple of their number."""
    pool = Pool()
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(pool))
    for new in ([3, 1, 1], [4, 3, 1], [1, 1, 1]):
        batch = Batch(MANY.slots, new)
        attention.init_forward_metadata(batch)
        padded = [attention.forward_extend(QUERY, layer)[: sum(new)] for layer in (7, 3)]
        assert_close(padded, expected(pool, batch))


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
