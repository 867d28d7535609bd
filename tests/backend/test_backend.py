"""The backend over a stand-in of upstream's, on kernels under Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.backend import upstream_backend as stock
from tests.backend.steps import (
    FEW,
    MANY,
    QUERY,
    ROWS,
    Pool,
    assert_close,
    assert_same,
    expected,
    run,
)
from tests.backend.upstream_backend import Batch

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BOUND = 64
EXTEND = Batch(FEW.slots, [2, 5])
ALONE = Batch(FEW.slots[:1])
IDLE = Batch([torch.tensor([0])] * 3)


@pytest.fixture
def bounded(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(backend.policy, "capacity_rows", lambda *_: BOUND)
    return backend


@pytest.mark.parametrize(
    "batch", [FEW, MANY, ALONE, EXTEND, IDLE], ids=["few", "many", "alone", "extend", "idle"]
)
def test_a_step_equals_stock_and_leaves_the_pool_in_place(backend: Any, batch: Batch) -> None:
    pool = Pool()
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    assert_same(run(attention, batch), expected(pool, batch))
    assert attention._gathered.rows.count.item() == len(torch.cat(batch.slots).unique())
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
    attention._gathered.buffer.fill_(float("nan"))
    for batch in (FEW, MANY):
        assert_close(run(attention, batch), expected(pool, batch))


def test_a_captured_verify_of_a_bounded_buffer_reads_directly_although_it_fits(
    bounded: Any,
) -> None:
    """Its replays may not fit."""
    pool = Pool()
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(pool))
    attention.prefill_wrapper._use_cuda_graph = True
    attention._gathered.buffer.fill_(float("nan"))
    assert_close(run(attention, EXTEND), expected(pool, EXTEND))
    assert attention._gathered.buffer.isnan().all(), "a gather would be recorded"


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
            attention._gathered.buffer.fill_(float("nan"))
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
