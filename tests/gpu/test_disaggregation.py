"""Prefill/decode disaggregation, as far as an attention backend has a part in it.

A transfer reads and writes the rows of the pool itself.
"""

from __future__ import annotations

import torch

from tests.gpu.engine import COMPACT, STOCK, Engine, Shape
from tests.gpu.steps import decode_batch, extend_batch, run_eager


def written_by(name: str) -> tuple[list[torch.Tensor], bool]:
    """A pool after an extend and a decode; whether a transfer finds it where it was before."""
    engine = Engine(Shape())
    registered = engine.pool.get_contiguous_buf_infos()
    backend = engine.make(name)
    requests = engine.place([120, 60])
    run_eager(
        engine, backend, extend_batch(engine, requests, [50, 0], [69, 59]), engine.inputs(128)
    )
    run_eager(engine, backend, decode_batch(engine, requests, [120, 60]), engine.inputs(2))
    in_place = engine.runner.token_to_kv_pool is engine.pool
    return engine.pool.kv_buffer, in_place and engine.pool.get_contiguous_buf_infos() == registered


def test_a_transfer_finds_the_pool_in_place_with_the_rows_that_stock_writes() -> None:
    (rows, in_place), (stock_rows, stock_in_place) = map(written_by, (COMPACT, STOCK))
    assert in_place
    assert stock_in_place
    assert [torch.equal(*layers) for layers in zip(rows, stock_rows, strict=True)] == [True, True]
