"""Verify steps and a draft's extends that are read directly, beside stock and float64."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu.captures import Captured, capture_one, capture_sizes
from tests.gpu.compare import assert_as_close_as_stock, reference
from tests.gpu.engine import Engine, Shape
from tests.gpu.steps import decode_batch, dflash_batch, extend_batch, run_eager, verify_batch

DRAFTS = 4
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "Memcpy DtoH")


@pytest.fixture(params=["1", ""], ids=["bounded", "whole"])
def direct(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "direct")
    if request.param:
        monkeypatch.setenv("SGLANG_MLA_COMPACT_BUFFER_MIB", request.param)


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize(
    "shape",
    [Shape(heads=8), Shape(), Shape(heads=20), Shape(heads=64), Shape(dtype=torch.float8_e5m2)],
    ids=str,
)
def test_verify_is_as_close_as_stock_eager_captured_and_padded(shape: Shape) -> None:
    engine = Engine(shape)
    stock, compact = engine.pair()
    captured = capture_one(engine, compact, 4, DRAFTS)
    for prefixes in ([300], [5, 1700], [64, 1, 129, 300]):
        requests = engine.place([prefix + DRAFTS for prefix in prefixes])
        batch = verify_batch(engine, requests, prefixes, DRAFTS)
        inputs = engine.inputs(DRAFTS * len(prefixes))
        expected = run_eager(engine, stock, batch, inputs)
        exact = reference(engine, batch, inputs)
        eager = run_eager(engine, compact, batch, inputs)
        assert compact._reading.name == "direct"
        assert_as_close_as_stock(eager, expected, exact, f"eager {prefixes}")
        replayed = captured.replay(batch, inputs)
        assert_as_close_as_stock(replayed, expected, exact, f"captured {prefixes}")


@pytest.mark.usefixtures("direct")
def test_a_drafts_extend_is_as_close_as_stock() -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    prefixes, new = [300, 5, 1700], [3, 1, 4]
    lengths = [prefix + count for prefix, count in zip(prefixes, new, strict=True)]
    batch = extend_batch(engine, engine.place(lengths), prefixes, new)
    inputs = engine.inputs(sum(new))
    expected = run_eager(engine, stock, batch, inputs)
    actual = run_eager(engine, compact, batch, inputs)
    assert compact._reading.name == "direct"
    assert_as_close_as_stock(actual, expected, reference(engine, batch, inputs), "draft extend")


@pytest.mark.usefixtures("direct")
def test_any_number_of_captured_sizes_takes_no_memory_and_a_new_capture_leaks_none() -> None:
    engine = Engine(Shape())
    compact = engine.make("flashinfer_mla_compact")
    capture_sizes(engine, compact, [1, 2, 4, 8], DRAFTS)
    held = {name: [one.data_ptr() for one in all_] for name, all_ in held_by(compact).items()}
    for _ in range(2):
        capture_sizes(engine, compact, [1, 3, 5, 8], DRAFTS)
    now = {name: [one.data_ptr() for one in all_] for name, all_ in held_by(compact).items()}
    assert now == held
    gc.collect()


def held_by(compact: Any) -> dict[str, list[torch.Tensor]]:
    held: dict[str, list[torch.Tensor]] = compact.readings.held()
    return held


def waits(step: Callable[[], object]) -> Counter[str]:
    """How often a step waits for the device, or has it copy something to the host."""
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        step()
    names = [event.name for event in profiled.events()]
    return Counter({wait: sum(name.startswith(wait) for name in names) for wait in WAITS})


def prepared(engine: Engine, backend: Any, kind: str) -> Callable[[], object]:
    """A step of that kind, less what only a test does: a replay is planned, not copied out."""
    prefixes = [1100, 3, 640]
    requests = engine.place([prefix + DRAFTS for prefix in prefixes])
    if kind == "draft extend":
        batch = extend_batch(engine, requests, prefixes, [DRAFTS] * 3)
        inputs = engine.inputs(3 * DRAFTS)
        return lambda: run_eager(engine, backend, batch, inputs)
    make = {"verify": verify_batch, "DFLASH verify": dflash_batch}.get(kind)
    drafts = DRAFTS if make else 0
    captured: Captured = (
        capture_one(engine, backend, 3, drafts, make) if make else capture_one(engine, backend, 3)
    )
    batch = (
        make(engine, requests, prefixes, DRAFTS)
        if make
        else decode_batch(engine, requests, [prefix + 1 for prefix in prefixes])
    )
    inputs = engine.inputs(3 * max(1, drafts))

    def replay() -> None:
        captured.load(batch, inputs)
        captured.graph.replay()

    return replay


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("kind", ["decode", "verify", "DFLASH verify", "draft extend"])
def test_a_step_waits_for_the_device_no_more_often_than_stock(kind: str) -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    theirs, ours = (waits(prepared(engine, backend, kind)) for backend in (stock, compact))
    assert {name: ours[name] for name in WAITS if ours[name] > theirs[name]} == {}
