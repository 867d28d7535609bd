"""Paged extend, chunked prefill and target verify are bit-identical to stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAAttnBackend

from tests.gpu.captures import capture_one
from tests.gpu.compare import assert_same_bits
from tests.gpu.engine import Engine, Shape, dtype_name
from tests.gpu.steps import decode_batch, dflash_batch, extend_batch, run_eager, verify_batch

# Cached prefix and new tokens of each request.
EXTENDS = {
    "no prefix": ([0, 0], [33, 200]),
    "one request": ([0], [64]),
    "small prefix": ([16], [200]),
    "large prefix": ([1500, 900], [3, 65]),
    "mixed, some without prefix": ([0, 130, 0, 1, 700], [17, 1, 300, 64, 5]),
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=dtype_name)
def test_extend_equals_stock(dtype: torch.dtype) -> None:
    engine = Engine(Shape(dtype=dtype, page_size=16))
    stock, compact = engine.pair()
    for name, (prefixes, new) in EXTENDS.items():
        lengths = [prefix + count for prefix, count in zip(prefixes, new, strict=True)]
        batch = extend_batch(engine, engine.place(lengths), prefixes, new)
        inputs = engine.inputs(sum(new))
        expected = run_eager(engine, stock, batch, inputs)
        assert_same_bits(run_eager(engine, compact, batch, inputs), expected, name)


def test_extend_behind_a_shared_prefix_equals_stock() -> None:
    engine = Engine(Shape(rows=2048, requests=16))
    stock, compact = engine.pair()
    prefixes, new = [1024] * 16, [5] * 16
    requests = engine.place([1029] * 16, shared=1024)
    batch = extend_batch(engine, requests, prefixes, new)
    inputs = engine.inputs(sum(new))
    expected = run_eager(engine, stock, batch, inputs)
    assert_same_bits(run_eager(engine, compact, batch, inputs), expected)
    assert compact.readings.gathered.rows.count.item() == 1024 + sum(new)


def test_chunked_prefill_equals_stock_chunk_by_chunk() -> None:
    engine = Engine(Shape())
    stock, compact = engine.pair()
    requests = engine.place([520, 300])
    for prefixes, new in (([0, 0], [256, 100]), ([256, 100], [256, 200]), ([512, 300], [8, 0])):
        used = [index for index, count in enumerate(new) if count]
        batch = extend_batch(
            engine, requests[used], [prefixes[i] for i in used], [new[i] for i in used]
        )
        inputs = engine.inputs(sum(new))
        expected = run_eager(engine, stock, batch, inputs)
        assert_same_bits(run_eager(engine, compact, batch, inputs), expected, f"after {prefixes}")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=dtype_name)
def test_target_verify_equals_stock_eager_captured_and_padded(dtype: torch.dtype) -> None:
    engine, drafts = Engine(Shape(dtype=dtype)), 4
    stock, compact = engine.pair()
    captured = capture_one(engine, compact, 4, drafts)
    control = capture_one(engine, stock, 4, drafts)
    for prefixes in ([300], [5, 700], [64, 1, 129, 300]):
        requests = engine.place([prefix + drafts for prefix in prefixes])
        batch = verify_batch(engine, requests, prefixes, drafts)
        inputs = engine.inputs(drafts * len(prefixes))
        expected = run_eager(engine, stock, batch, inputs)
        assert_same_bits(run_eager(engine, compact, batch, inputs), expected, f"eager {prefixes}")
        graphed = control.replay(batch, inputs)
        assert_same_bits(captured.replay(batch, inputs), graphed, f"captured {prefixes}")


def test_dflash_verify_that_is_planned_on_the_host_equals_stock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not hasattr(FlashInferMLAAttnBackend, "_build_fast_verify_plan_kwargs"):
        pytest.skip("this release plans no verify from host arrays")
    engine, drafts = Engine(Shape()), 4
    stock, compact = engine.pair()
    captured = capture_one(engine, compact, 4, drafts, dflash_batch)
    control = capture_one(engine, stock, 4, drafts, dflash_batch)
    planned = host_plans(compact, monkeypatch)
    for turn, prefixes in enumerate(([300], [5, 700], [64, 1, 129, 300]), start=1):
        requests = engine.place([prefix + drafts for prefix in prefixes])
        batch = dflash_batch(engine, requests, prefixes, drafts)
        inputs = engine.inputs(drafts * len(prefixes))
        expected = run_eager(engine, stock, batch, inputs)
        assert_same_bits(run_eager(engine, compact, batch, inputs), expected, f"eager {prefixes}")
        graphed = control.replay(batch, inputs)
        assert_same_bits(captured.replay(batch, inputs), graphed, f"captured {prefixes}")
        assert len(planned) == turn


def host_plans(backend: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that takes the host arrays of each plan that is made from such."""
    updater, planned = backend.indices_updater_prefill, []
    right = updater.update

    def update(*arguments: Any, **options: Any) -> None:
        if options.get("fast_verify_plan_kwargs"):
            planned.append(options["fast_verify_plan_kwargs"])
        right(*arguments, **options)

    monkeypatch.setattr(updater, "update", update)
    return planned


def test_a_decode_in_between_leaves_a_captured_verify_right() -> None:
    engine, drafts = Engine(Shape()), 2
    stock, compact = engine.pair()
    captured = capture_one(engine, compact, 2, drafts)
    control = capture_one(engine, stock, 2, drafts)
    requests, prefixes = engine.place([42, 92]), [40, 90]
    batch = verify_batch(engine, requests, prefixes, drafts)
    inputs = engine.inputs(2 * drafts)
    captured.replay(batch, inputs)
    run_eager(engine, compact, decode_batch(engine, requests, [10, 20]), engine.inputs(2))
    expected = control.replay(batch, inputs)
    assert_same_bits(captured.replay(batch, inputs), expected, "verify after decode")
