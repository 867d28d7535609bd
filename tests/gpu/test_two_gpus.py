"""Tensor parallelism and data-parallel attention on two GPUs, beside stock on the same two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.engine_calls import Ask
from tests.gpu.lookups import alone, differences, mistakes
from tests.gpu.served import Served, engine, running

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

# All-reduce by NCCL alone: sglang's other ways compile kernels of their own at start.
BOTH: dict[str, object] = {
    "tp_size": 2,
    "disable_custom_all_reduce": True,
    "enforce_disable_flashinfer_allreduce_fusion": True,
    "cuda_graph_bs_decode": [1, 4, 16, 32],
    "decode_log_interval": 4,
}
MODES: dict[str, dict[str, object]] = {
    "tensor-parallel": BOTH,
    "data-parallel": BOTH | {"dp_size": 2, "enable_dp_attention": True},
}
# The data-parallel rank of each request.
RANKS = {
    "one-request": [0],
    "one-on-the-second-rank": [1],
    "three-and-one": [0, 0, 0, 1],
    "all-on-one-rank": [1] * 7,
    "even": [0, 1] * 8,
    "uneven": [0] * 25 + [1] * 5,
}


@pytest.fixture(scope="module")
def engines(
    small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    """Stock's and compact's engine of each mode; they are asked one after the other.

    NVLink multicast stays off: a host may forbid it, and nothing here needs it. A start would fail
    because other engines take memory meanwhile, were the balance of the cards checked.
    """
    wanted = {
        f"{mode}-{name}": (name, engine(small_model, options))
        for mode, options in MODES.items()
        for name in ("stock", "compact")
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_NVLS_ENABLE", "0")
        patch.setenv("SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "0")
        with running(tmp_path_factory.mktemp("two-gpus"), wanted) as served:
            yield served


def asked_of(mode: str, ranks: list[int]) -> list[Ask]:
    """Requests that end one after the other, so that batches shrink and ranks run dry."""
    return [
        Ask(
            alone(150 + 37 * number, number, 1).prompt,
            12 + 5 * number % 30,
            rank=rank if mode == "data-parallel" else None,
        )
        for number, rank in enumerate(ranks)
    ]


def compare(engines: dict[str, Served], mode: str, ranks: list[int]) -> None:
    asked = asked_of(mode, ranks)
    stock, compact = (engines[f"{mode}-{name}"].ask(asked) for name in ("stock", "compact"))
    assert mistakes(asked, compact) == []
    assert mistakes(asked, stock) == []
    assert differences(compact, stock) == []


@pytest.mark.parametrize("requests", [1, 4, 7, 30])
def test_tensor_parallel_tokens_are_right_and_equal_stocks(
    engines: dict[str, Served], requests: int
) -> None:
    compare(engines, "tensor-parallel", [0] * requests)


@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
def test_data_parallel_tokens_are_right_and_equal_stocks(
    engines: dict[str, Served], ranks: list[int]
) -> None:
    compare(engines, "data-parallel", ranks)


@pytest.mark.parametrize("mode", MODES)
def test_decode_runs_in_graphs(engines: dict[str, Served], mode: str) -> None:
    compact = engines[f"{mode}-compact"]
    compact.ask(asked_of(mode, [0, 1, 0, 1]))
    steps = [line for line in compact.log.read_text().splitlines() if "Decode batch" in line]
    assert [line for line in steps if "cuda graph: True" in line]
