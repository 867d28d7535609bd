"""The backend over a stand-in of upstream's, on kernels under Triton's interpreter."""

from __future__ import annotations

import sys
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
from tests.backend.upstream import CONTEXT
from tests.backend.upstream_backend import Batch

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BOUND = 64
EXTEND = Batch(FEW.slots, [2, 5])
ALONE = Batch(FEW.slots[:1])
IDLE = Batch([torch.tensor([0])] * 3)


@pytest.fixture
def bounded(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A buffer of BOUND rows, and a budget that holds no more."""
    monkeypatch.setattr(backend.policy, "_buffer_rows", lambda mib: BOUND)
    return backend


@pytest.mark.parametrize(
    "batch", [FEW, MANY, ALONE, EXTEND, IDLE], ids=["few", "many", "alone", "extend", "idle"]
)
def test_a_step_equals_stock_and_leaves_the_pool_in_place(backend: Any, batch: Batch) -> None:
    pool = Pool()
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    assert_same(run(attention, batch), expected(pool, batch))
    assert attention.readings.gathered.rows.count.item() == len(torch.cat(batch.slots).unique())
    assert attention.token_to_kv_pool is pool


@pytest.mark.parametrize(("gluon", "heads"), [(True, 64), (False, 64), (False, 32)])
def test_many_heads_are_read_directly_where_triton_builds_the_kernel_for_them(
    backend: Any, monkeypatch: pytest.MonkeyPatch, gluon: bool, heads: int
) -> None:
    configs = sys.modules[f"{backend.__package__}.direct.configs"]
    if not gluon:
        monkeypatch.delitem(configs.KERNELS, "mma", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (12, 0))
    monkeypatch.setattr(stock.IndicesUpdater, "num_local_heads", heads)
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(Pool()))
    assert attention.readings.decode_strategy[0] == ("direct" if gluon or heads == 32 else "gather")


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

        def query(self) -> bool:
            return False

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
    attention.readings.gathered.buffer.fill_(float("nan"))
    for batch in (FEW, MANY):
        assert_close(run(attention, batch), expected(pool, batch))


def test_a_captured_verify_of_a_bounded_buffer_reads_directly_although_it_fits(
    bounded: Any,
) -> None:
    """Its replays may not fit."""
    pool = Pool()
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(pool))
    attention.prefill_wrapper._use_cuda_graph = True
    attention.readings.gathered.buffer.fill_(float("nan"))
    assert_close(run(attention, EXTEND), expected(pool, EXTEND))
    assert attention.readings.gathered.buffer.isnan().all(), "a gather would be recorded"


def test_a_fresh_prompt_after_a_direct_decode_is_left_to_upstream(bounded: Any) -> None:
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(Pool()))
    run(attention, FEW)
    attention.init_forward_metadata(Batch(EXTEND.slots, EXTEND.new, ragged=True))
    assert attention.forward_metadata.prefill_wrapper is attention.prefill_wrapper


@pytest.mark.parametrize("bound", [True, False], ids=["bounded", "holds the pool"])
def test_an_extend_of_many_tokens_gathers_if_it_surely_fits(
    backend: Any, request: pytest.FixtureRequest, bound: bool
) -> None:
    if bound:
        request.getfixturevalue("bounded")
    pool = Pool()
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    for fits in (EXTEND, Batch(FEW.slots[:1], [2])):
        assert_same(run(attention, fits), expected(pool, fits))
        for overflows in (Batch(MANY.slots, [3, 1, 1]), Batch([torch.arange(BOUND + 6)], [2])):
            attention.readings.gathered.buffer.fill_(float("nan"))
            found = run(attention, overflows)
            assert_close(found, expected(pool, overflows))
            assert attention.readings.gathered.buffer.isnan().all() == bound


def test_whether_an_extend_fits_is_known_without_asking_the_device(bounded: Any) -> None:
    """Entries that name one slot might fit, but nothing on the host says so."""
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(Pool()))
    attention.init_forward_metadata(Batch([torch.full((BOUND + 6,), 5)], [2]))
    assert attention._reading.name == "direct"


@pytest.mark.parametrize("new", [[1, 3], [4, 4]], ids=["draft", "verify"])
@pytest.mark.parametrize("captured", [True, False])
def test_few_tokens_a_request_are_read_directly_where_decode_is(
    backend: Any, monkeypatch: pytest.MonkeyPatch, new: list[int], captured: bool
) -> None:
    """Of a verify, captured or not, and of an eager extend such as a draft's."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(CONTEXT["get_spec"], "speculative_num_draft_tokens", 4)
    pool, verifies = Pool(), new == [4, 4]
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    attention.prefill_wrapper._use_cuda_graph = captured and verifies
    attention.readings.gathered.buffer.fill_(float("nan"))
    batch = Batch([torch.arange(7), FEW.slots[1]], new, verifies=verifies)
    assert_close(run(attention, batch), expected(pool, batch))


def test_who_asks_for_gathering_gets_it_in_every_step(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "gather")
    monkeypatch.setattr(CONTEXT["get_spec"], "speculative_num_draft_tokens", 2)
    pool = Pool()
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(pool))
    for batch in (FEW, EXTEND, Batch(FEW.slots, [2, 2], verifies=True)):
        assert_same(run(attention, batch), expected(pool, batch))


def test_all_kinds_of_steps_share_one_scratch_that_is_there_from_the_start(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(CONTEXT["get_spec"], "speculative_num_draft_tokens", 4)
    attention = backend.FlashInferMLACompactAttnBackend(stock.runner(Pool()))
    before = attention.readings.held()
    scratches = {direct.workspace.scratch.data_ptr() for direct in attention.readings.directs}
    assert len(attention.readings.directs) == 3 and len(scratches) == 1
    for batch in (FEW, Batch(FEW.slots, [1, 3]), Batch([torch.arange(9)], [4], verifies=True)):
        run(attention, batch)
    after = attention.readings.held()
    assert {name: list(map(id, held)) for name, held in after.items()} == {
        name: list(map(id, held)) for name, held in before.items()
    }


def test_a_direct_extend_takes_queries_that_are_padded_past_its_tokens(bounded: Any) -> None:
    """Ranks that share an extend pad it to a multiple of their number."""
    pool = Pool()
    attention = bounded.FlashInferMLACompactAttnBackend(stock.runner(pool))
    for new in ([3, 1, 1], [4, 3, 1], [1, 1, 1]):
        batch = Batch(MANY.slots, new)
        attention.init_forward_metadata(batch)
        padded = [attention.forward_extend(QUERY, layer)[: sum(new)] for layer in (7, 3)]
        assert_close(padded, expected(pool, batch))
