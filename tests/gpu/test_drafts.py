"""Multi-step drafts: each step sees the accepted tokens and the drafts up to its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAMultiStepDraftBackend
from sglang.srt.layers.attention.flashinfer_mla_compact.draft import (
    FlashInferMLACompactMultiStepDraftBackend,
)
from sglang.srt.speculative.eagle_info import EagleDraftInput

from tests.gpu.captures import capture
from tests.gpu.compare import assert_same_bits, rms_error
from tests.gpu.engine import DEVICE, STOCK, Engine, Inputs, Shape, dtype_name
from tests.gpu.large_results import pool_sized
from tests.gpu.steps import decode_batch, forward, run_eager

STEPS = 4  # of which the last needs no attention
LENGTHS = [300, 5, 64, 700]
STRATEGIES = ("gather", "direct")


def draft_batch(engine: Engine, requests: torch.Tensor, lengths: Sequence[int]) -> Any:
    """Drafts behind `lengths` accepted tokens; req_to_token names the drafts' slots after them."""
    batch = decode_batch(engine, requests, lengths)
    batch.positions = batch.seq_lens.clone()
    batch.spec_info = EagleDraftInput()
    return batch


def draft_slots(engine: Engine, batch: Any) -> Sequence[torch.Tensor]:
    """Where each step writes, [requests] int64: a column each, as upstream hands them out."""
    rows = engine.req_to_token[batch.req_pool_indices].long()
    places = batch.seq_lens[:, None] + torch.arange(STEPS - 1, device=DEVICE)
    columns: Sequence[torch.Tensor] = rows.gather(1, places).unbind(1)
    return columns


def make_drafts(engine: Engine, kind: Callable[..., Any]) -> Any:
    drafts = kind(engine.runner, 1, STEPS)
    drafts.page_size = engine.shape.page_size  # the mock's server arguments have none
    return drafts


def run_steps(
    engine: Engine,
    drafts: Any,
    batch: Any,
    slots: Sequence[torch.Tensor],
    inputs: list[list[Inputs]],
) -> list[torch.Tensor]:
    """Every layer of the first step, then of the next one."""
    outputs = []
    for backend, written, step in zip(drafts.attn_backends, slots, inputs, strict=True):
        batch.out_cache_loc = written
        outputs += forward(engine, backend, batch, step)
    return outputs


def plan_and_run(
    engine: Engine,
    drafts: Any,
    batch: Any,
    slots: Sequence[torch.Tensor],
    inputs: list[list[Inputs]],
) -> list[torch.Tensor]:
    with torch.no_grad():
        drafts.init_forward_metadata(batch)
        return run_steps(engine, drafts, batch, slots, inputs)


class Captured:
    """The steps in one graph, planned ahead and replayed as upstream's draft runner does."""

    def __init__(self, engine: Engine, drafts: Any, size: int) -> None:
        self.engine, self.drafts, self.size = engine, drafts, size
        nobody = torch.zeros(size, dtype=torch.int64, device=DEVICE)
        self.batch = draft_batch(engine, nobody, [1] * size)
        self.slots = nobody[:, None].repeat(1, STEPS - 1).unbind(1)
        self.inputs = [engine.inputs(size) for _ in self.slots]
        drafts.init_cuda_graph_state(size, size)
        with torch.no_grad():
            drafts.init_forward_metadata_out_graph(self.batch, in_capture=True)
            for _ in range(2):
                self._run()
            self.graph, self.outputs = capture(self._run)

    def _run(self) -> list[torch.Tensor]:
        self.drafts.init_forward_metadata_in_graph(self.batch)
        return run_steps(self.engine, self.drafts, self.batch, self.slots, self.inputs)

    def replay(
        self, batch: Any, slots: Sequence[torch.Tensor], inputs: list[list[Inputs]]
    ) -> list[torch.Tensor]:
        real, static = batch.batch_size, self.batch
        static.req_pool_indices.zero_()[:real] = batch.req_pool_indices
        static.seq_lens.fill_(1)[:real] = batch.seq_lens
        static.positions.zero_()[:real] = batch.positions
        padding = torch.ones(self.size - real, dtype=torch.int64)
        static.seq_lens_cpu = torch.cat([batch.seq_lens_cpu, padding])
        static.seq_lens_sum = batch.seq_lens_sum + len(padding)
        for mine, theirs in zip(self.slots, slots, strict=True):
            mine.zero_()[:real] = theirs
        for my_step, their_step in zip(self.inputs, inputs, strict=True):
            for layer, other in zip(my_step, their_step, strict=True):
                for name, value in vars(other).items():
                    getattr(layer, name)[:real].copy_(value)
        with torch.no_grad():
            self.drafts.init_forward_metadata_out_graph(static)
        self.graph.replay()
        return [output[:real].clone() for output in self.outputs]


def one_by_one(
    engine: Engine, requests: torch.Tensor, lengths: Sequence[int], inputs: list[list[Inputs]]
) -> list[torch.Tensor]:
    """What the steps should give: stock's plain decode, each of one token more."""
    stock, outputs = engine.make(STOCK), []
    for number, step in enumerate(inputs, start=1):
        batch = decode_batch(engine, requests, [length + number for length in lengths])
        outputs += run_eager(engine, stock, batch, step)
    return outputs


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=dtype_name)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drafts_equal_plain_decodes_eager_captured_and_padded(
    strategy: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", strategy)
    engine = Engine(Shape(dtype=dtype))
    drafts = make_drafts(engine, FlashInferMLACompactMultiStepDraftBackend)
    captured = Captured(engine, drafts, len(LENGTHS))
    for lengths in (LENGTHS, LENGTHS[:3], LENGTHS[3:]):
        requests = engine.place([length + STEPS for length in lengths])
        batch = draft_batch(engine, requests, lengths)
        slots, inputs = draft_slots(engine, batch), [engine.inputs(len(lengths)) for _ in range(3)]
        expected = one_by_one(engine, requests, lengths, inputs)
        graphed = captured.replay(batch, slots, inputs)
        eager = plan_and_run(engine, drafts, batch, slots, inputs)
        assert_close(graphed, expected, f"captured {lengths}")
        assert_close(eager, expected, f"eager {lengths}")
        if strategy == "gather":
            assert_same_bits(eager, expected, f"eager {lengths}")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_draft_makes_a_tensor_of_the_pools_length(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", strategy)
    engine = Engine(Shape(rows=65536))
    stock = make_drafts(engine, FlashInferMLAMultiStepDraftBackend)
    drafts = make_drafts(engine, FlashInferMLACompactMultiStepDraftBackend)
    assert pool_sized(engine, lambda: Captured(engine, drafts, len(LENGTHS))) == []
    requests = engine.place([length + STEPS for length in LENGTHS])
    batch = draft_batch(engine, requests, LENGTHS)
    slots, inputs = draft_slots(engine, batch), [engine.inputs(len(LENGTHS)) for _ in range(3)]
    step = (batch, slots, inputs)
    control = pool_sized(engine, lambda: plan_and_run(engine, stock, *step))
    assert len(control) == engine.shape.layers * len(slots), "stock casts in each layer"
    assert pool_sized(engine, lambda: plan_and_run(engine, drafts, *step)) == []


def assert_close(outputs: list[torch.Tensor], expected: list[torch.Tensor], what: str) -> None:
    """Other splits round otherwise, a hundred times less than one row more or less changes."""
    scale = float(torch.cat(expected).double().square().mean().sqrt())
    error = rms_error(outputs, [step.double() for step in expected])
    assert error < 0.01 * scale, f"{what}: error {error:.3e}, outputs {scale:.3e}"
