"""Pools of other models: hybrid ones that map layer ids, and raw rows of sparse attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, HybridLinearKVPool

from tests.gpu.captures import capture_one
from tests.gpu.compare import assert_as_close_as_stock, assert_same_bits, reference
from tests.gpu.engine import COMPACT, DEVICE, DIM, NOPE, ROPE, Engine, Inputs, Shape, make_pool
from tests.gpu.steps import decode_batch, extend_batch, run_eager, verify_batch

ATTENTION_LAYERS = [1, 3]  # of a model with linear attention in layers 0 and 2
PREFIXES, NEW = [270, 0, 600, 60], [30, 1, 100, 4]
LENGTHS = [300, 1, 700, 64]  # together more rows than a buffer of 1 MiB holds
# How many drafts a mode verifies; no graph is made of an extend.
DRAFTS = {"decode": 0, "extend": None, "verify": 4}

Step = tuple[Any, list[Inputs]]


def hybrid_pool(shape: Shape) -> Any:
    """That of a hybrid model; nothing here reads the states of its linear-attention layers."""
    return HybridLinearKVPool(
        size=shape.rows,
        dtype=shape.dtype,
        page_size=shape.page_size,
        head_num=1,
        head_dim=DIM,
        full_attention_layer_ids=ATTENTION_LAYERS,
        device=DEVICE,
        mamba_pool=None,
        use_mla=True,
        full_kv_pool=make_pool(shape),
    )


def raw_sparse_pool(shape: Shape) -> Any:
    """That of GLM-5 and DeepSeek-V3.2, its rows not in the layout with scales."""
    return DSATokenToKVPool(
        size=shape.rows,
        page_size=shape.page_size,
        kv_lora_rank=NOPE,
        dtype=shape.dtype,
        qk_rope_head_dim=ROPE,
        layer_num=shape.layers,
        device=DEVICE,
        index_head_dim=128,
        enable_memory_saver=False,
        kv_cache_dim=DIM,
    )


POOLS = {"hybrid": (hybrid_pool, 1), "raw-sparse": (raw_sparse_pool, 64)}


@pytest.fixture(params=POOLS)
def engine(request: pytest.FixtureRequest) -> Engine:
    pool, page_size = POOLS[request.param]
    return Engine(Shape(page_size=page_size), pool=pool)


def make_step(engine: Engine, mode: str) -> Step:
    requests = engine.place([length + 4 for length in LENGTHS])
    if mode == "decode":
        return decode_batch(engine, requests, LENGTHS), engine.inputs(len(LENGTHS))
    if mode == "extend":
        return extend_batch(engine, requests, PREFIXES, NEW), engine.inputs(sum(NEW))
    batch = verify_batch(engine, requests, LENGTHS, 4)
    return batch, engine.inputs(4 * len(LENGTHS))


def outputs(engine: Engine, backend: Any, mode: str, step: Step) -> dict[str, list[torch.Tensor]]:
    """Of an eager step and, where upstream captures the mode, of a replay with a padded row."""
    results = {"eager": run_eager(engine, backend, *step)}
    drafts = DRAFTS[mode]
    if drafts is not None:
        results["captured"] = capture_one(engine, backend, 5, drafts).replay(*step)
    return results


@pytest.mark.parametrize("mode", DRAFTS)
def test_a_step_equals_stock(engine: Engine, mode: str) -> None:
    """Stock comes last: its new keys are not there for ours to find."""
    step = make_step(engine, mode)
    stock, compact = engine.pair()
    actual = outputs(engine, compact, mode, step)
    for how, wanted in outputs(engine, stock, mode, step).items():
        assert_same_bits(actual[how], wanted, how)


@pytest.mark.parametrize("mode", DRAFTS)
def test_a_step_that_is_read_directly_is_as_close_to_float64_as_stock(
    engine: Engine, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_BUFFER_MIB", "1")
    stock, compact = engine.pair()
    step = make_step(engine, mode)
    actual = outputs(engine, compact, mode, step)
    assert compact._reading.name == "direct"
    expected = outputs(engine, stock, mode, step)
    exact = reference(engine, *step)
    for how, ours in actual.items():
        assert_as_close_as_stock(ours, expected[how], exact, how)


def test_rows_of_another_layer_are_seen() -> None:
    engine = Engine(Shape(), pool=hybrid_pool)
    stock, compact = engine.pair()
    step = make_step(engine, "decode")
    expected = run_eager(engine, stock, *step)
    engine.pool.full_attention_layer_id_mapping = dict(zip(ATTENTION_LAYERS, [1, 0], strict=True))
    actual = run_eager(engine, compact, *step)
    assert [torch.equal(*layers) for layers in zip(actual, expected, strict=True)] == [False] * 2


def test_the_pool_is_not_left_to_stock(engine: Engine) -> None:
    assert type(engine.make(COMPACT)).__name__ == "FlashInferMLACompactAttnBackend"
