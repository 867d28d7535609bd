"""Kept kernels write what ordinary launches write, wherever tensors start and rows lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.gather import gather
from sglang.srt.layers.attention.flashinfer_mla_compact.launch import Launcher
from sglang.srt.layers.attention.flashinfer_mla_compact.pool import write
from sglang.srt.layers.attention.flashinfer_mla_compact.pool.format import PoolFormat

from tests.gpu.engine import DEVICE, DIM, NOPE

ROWS, TOKENS, CAPACITY = 96, 40, 64
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
LAUNCHERS = ((gather, "launch_gather"), (write, "launch_write"))
LAYOUTS = [(start, width) for start in (0, 4, 16) for width in (DIM, 580, 640)]
CASES = [
    (start, width, dtype, model)
    for start, width in LAYOUTS
    for dtype in FP8
    for model in (torch.bfloat16, torch.float16)
]


class Ordinary(Launcher):
    """Keeps nothing."""

    def __call__(self, programs: int, *arguments: Any) -> None:
        self._kernel[(programs,)](*arguments, num_warps=self._num_warps)


def laid_out(rows: int, start: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """[rows, 1, 576] of bytes at random, from `start` elements on and `width` of them apart."""
    size = dtype.itemsize
    whole = torch.randint(0, 256, (size * (start + rows * width),), device=DEVICE)
    flat = whole.to(torch.uint8).view(dtype)[start:]
    return flat.view(rows, 1, width)[..., :DIM]


def steps(capture: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each case the gathered rows and the written pool."""
    torch.manual_seed(5)
    results = []
    slots = torch.randperm(ROWS, device=DEVICE)[:CAPACITY].int()
    count = torch.tensor([CAPACITY - 3], dtype=torch.int32, device=DEVICE)
    for start, width, dtype, model in CASES:
        pool = laid_out(ROWS, start, width, dtype)
        keys = laid_out(TOKENS, start, width, model)
        out = torch.zeros(CAPACITY, 1, DIM, dtype=model, device=DEVICE)
        step = (pool, slots, count, out, keys)
        if capture:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                take(*step)
            graph.replay()
        else:
            take(*step)
        results.append((out.view(torch.int16), pool.view(torch.uint8).clone()))
    return results


def take(pool: Any, slots: Any, count: Any, out: Any, keys: Any) -> None:
    gather.gather_rows(pool, slots, count, out, 8)
    nope, rope = keys[..., :NOPE], keys[..., NOPE:]
    write.write_rows(pool, slots[:TOKENS].long(), nope, rope, PoolFormat(pool.dtype, 0x7E, 3))


@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
def test_kept_kernels_write_what_ordinary_launches_write(
    monkeypatch: pytest.MonkeyPatch, capture: bool
) -> None:
    with monkeypatch.context() as patched:
        for module, name in LAUNCHERS:
            held = getattr(module, name)
            patched.setattr(module, name, Ordinary(held._kernel, held._num_warps))
        expected = steps(capture=False)
    steps(capture=False)  # compiles and keeps
    actual = steps(capture)
    for module, name in LAUNCHERS:
        held = getattr(module, name)
        assert held._compiled and None not in held._compiled.values()
    wrong = [
        case
        for case, got, want in zip(CASES, actual, expected, strict=True)
        if not all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
    ]
    assert wrong == []


def test_what_was_kept_on_one_stream_goes_to_the_one_that_is_current() -> None:
    pool = torch.full((ROWS, 1, DIM), 0x38, dtype=torch.uint8, device=DEVICE)
    fp8 = pool.view(torch.float8_e4m3fn)
    slots = torch.arange(4, 4 + CAPACITY, dtype=torch.int32, device=DEVICE)
    count = torch.tensor([TOKENS], dtype=torch.int32, device=DEVICE)
    out = torch.zeros(CAPACITY, 1, DIM, dtype=torch.bfloat16, device=DEVICE)
    for _ in range(2):
        gather.gather_rows(fp8, slots, count, out, 8)
    out.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gather.gather_rows(fp8, slots, count, out, 8)
    assert not out.any(), "it ran, and was not captured"
    graph.replay()
    assert (out[:TOKENS] == 1).all()
