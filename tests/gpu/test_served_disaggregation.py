"""Prefill on one GPU and decode on another: a request's rows go from pool to pool by NIXL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random

import pytest
import torch

from tests.gpu.engine_calls import LOCAL, Answer, Ask, ask
from tests.gpu.lookups import alone, behind, mistakes
from tests.gpu.served import PORTS, Served, engine, running

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
    pytest.mark.skipif(find_spec("nixl") is None, reason="needs the package nixl"),
]

MEETING = next(PORTS)
ROOMS = count(1)
STRATEGIES = ("direct", "gather")


def options(mode: str, gpu: int) -> dict[str, object]:
    return {
        "disaggregation_mode": mode,
        "disaggregation_transfer_backend": "nixl",
        "disaggregation_bootstrap_port": MEETING,
        "base_gpu_id": gpu,
        "chunked_prefill_size": 768,
        "decode_log_interval": 4,
    }


@pytest.fixture(scope="module")
def engines(
    small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    """A prefill engine, and two that decode what it has prefilled."""
    wanted = {"prefill": ("compact", engine(small_model, options("prefill", 0)))}
    for strategy in STRATEGIES:
        wanted[strategy] = (f"compact-{strategy}", engine(small_model, options("decode", 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_HOST_IP", LOCAL)
        with running(tmp_path_factory.mktemp("disaggregation"), wanted) as served:
            yield served


def asked_of_both(engines: dict[str, Served], decode: str, asked: list[Ask]) -> list[Answer]:
    """What the decode engine answers; prefill gets the same requests, and keeps the first token."""
    meeting = [replace(one, room=(MEETING, next(ROOMS))) for one in asked]
    both = [engines["prefill"], engines[decode]]
    for one in both:
        one.send(ask, meeting)
    _, answers = [one.receive() for one in both]
    return list(answers)


@pytest.mark.parametrize("requests", [1, 7, 20])
@pytest.mark.parametrize("decode", STRATEGIES)
def test_tokens_are_right_when_another_gpu_has_prefilled(
    engines: dict[str, Served], decode: str, requests: int
) -> None:
    """Prompts of one chunk and of two."""
    asked = [alone(150 + 67 * number, 50 * requests + number, 60) for number in range(requests)]
    assert mistakes(asked, asked_of_both(engines, decode, asked)) == []


@pytest.mark.parametrize("decode", STRATEGIES)
def test_tokens_are_right_behind_a_prefix_that_prefill_had_cached(
    engines: dict[str, Served], decode: str
) -> None:
    prefix = alone(1000, 900 + STRATEGIES.index(decode), 1).prompt
    asked = [behind(prefix, own, Random(own), 40) for own in range(40, 48)]
    assert mistakes(asked[:1], asked_of_both(engines, decode, asked[:1])) == []
    assert mistakes(asked[1:], asked_of_both(engines, decode, asked[1:])) == []


@pytest.mark.parametrize("decode", STRATEGIES)
def test_each_engine_does_its_half_with_our_backend(
    engines: dict[str, Served], decode: str
) -> None:
    asked_of_both(engines, decode, [alone(300, 700, 60)])
    prefills, decodes = (engines[name].log.read_text() for name in ("prefill", decode))
    for log, mine, others in ((prefills, "Prefill", "Decode"), (decodes, "Decode", "Prefill")):
        assert "compact buffer of" in log
        assert "NIXL KVManager initialized with backend: UCX" in log
        assert f"{mine} batch" in log
        assert f"{others} batch" not in log
    assert "cuda graph: True" in decodes
