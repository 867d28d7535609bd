"""Slots whose offsets do not fit in 32 bits, in pools of which only the last row takes memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.gather.gather import gather_rows
from sglang.srt.layers.attention.flashinfer_mla_compact.pool.format import PoolFormat, top_code
from sglang.srt.layers.attention.flashinfer_mla_compact.pool.write import write_rows
from triton.runtime import interpreter

from tests.kernels.reference import make_step
from tests.kernels.test_direct import assert_close, run

# The interpreter itself does what numpy is about to forbid, or warns of.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")

DIM = 576
FP8 = torch.float8_e4m3fn
BYTES, WORDS = DIM, DIM // 4  # of a row: the gather sees the pool as words
MakePool = Callable[[int], torch.Tensor]


def first_high(units: int) -> int:
    """The first slot whose offset, at `units` a row, needs more than 31 bits."""
    return -(-(2**31) // units)


@pytest.fixture
def make_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePool:
    """[rows, 1, 576] in a file with holes, and as much before it: where a wrapped offset leads."""
    # The interpreter would copy the whole of it back, to where it is already.
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)

    def make(rows: int) -> torch.Tensor:
        file = str(tmp_path / "pool")
        whole = torch.from_file(file, shared=True, size=2 * rows * DIM, dtype=torch.uint8)
        return whole.view(2 * rows, 1, DIM).view(FP8)[rows:]

    return make


def random_rows(count: int) -> torch.Tensor:
    return torch.randn(count, 1, DIM, generator=torch.Generator().manual_seed(count)).bfloat16()


def test_rows_are_gathered_from_where_they_are(make_pool: MakePool) -> None:
    high = first_high(WORDS)
    pool, rows = make_pool(high + 2), random_rows(3).to(FP8)
    slots = torch.tensor([high + 1, 1, high], dtype=torch.int32)
    pool[slots.long()] = rows
    out = torch.zeros(3, 1, DIM, dtype=torch.bfloat16)
    gather_rows(pool, slots, torch.tensor([3], dtype=torch.int32), out, 2)
    assert torch.equal(out, rows.bfloat16())


def test_keys_are_written_to_where_they_belong(make_pool: MakePool) -> None:
    high = first_high(BYTES)
    pool, keys = make_pool(high + 2), random_rows(3)
    slots = torch.tensor([high + 1, 1, high])
    form = PoolFormat(FP8, top_code(FP8, pool.device), -1)
    write_rows(pool, slots, keys[..., :512], keys[..., 512:], form)
    assert torch.equal(pool[slots].float(), keys.to(FP8).float())


def test_rows_are_read_directly_from_where_they_are(make_pool: MakePool) -> None:
    step = make_step([40], [1], 16, rows=200)
    pool = make_pool(first_high(BYTES) + 200)
    pool[-200:] = step.pool
    high = replace(step, pool=pool, slots=step.slots + (len(pool) - 200))
    assert_close(run(high), high)
