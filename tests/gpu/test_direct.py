"""The direct kernels on the GPU, every configuration of this card, against float64.

Hopper's kernel is written in Gluon, which has no interpreter: this is where its numbers are tested.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest
import torch

from bench.overlay import load

direct: Any = load("direct_kernels", "direct_splits", "direct_wgmma", "direct")

SM_SCALE = 192**-0.5
ROWS = 1 << 14
QUIET_NAN = 0x7F
# Errors are root mean squares, measured by what rounding the ideal output once would cost.
TOLERANCE = 1.05
CARD = torch.cuda.get_device_capability()
LENGTHS = [0, 1, 37, 8192, 300, 64]
HOPPER = {
    16: direct.Config(16, 64, 4, 1, None, 2, shortest=64, wgmma=True),
    32: direct.Config(32, 128, 8, 1, None, 1, wgmma=True),
    64: direct.Config(64, 64, 8, 1, None, 1, wgmma=True),
}


@dataclass
class Step:
    """The inputs of one layer of one step."""

    query: torch.Tensor
    pool: torch.Tensor
    slots: torch.Tensor
    lengths: list[int]
    tokens: list[int]


def make_step(
    lengths: list[int], tokens: list[int], heads: int, dtype: torch.dtype = torch.float8_e4m3fn
) -> Step:
    """Random rows, some of them used twice; every other slot, and the list's tail, hold NaN."""
    generator = torch.Generator("cuda").manual_seed(heads + sum(lengths))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    pool = normal(ROWS, 1, 576).to(dtype)
    order = torch.randperm(ROWS, generator=generator, device="cuda").to(torch.int32)
    slots, stale = order[: sum(lengths)].clone(), order[-128:]
    slots[1::7] = slots[0]
    idle = torch.ones(ROWS, dtype=torch.bool, device="cuda")
    idle[slots.long()] = False
    pool.view(torch.uint8)[idle] = QUIET_NAN
    query = normal(sum(tokens), heads, 576).to(torch.bfloat16)
    return Step(query, pool, torch.cat([slots, stale]), lengths, tokens)


def offsets(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device="cuda")


def attend(step: Step, workspace: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
    direct.attend(
        step.query[..., :512],
        step.query[..., 512:],
        step.pool,
        step.slots,
        workspace,
        sm_scale=SM_SCALE,
        out=out,
        lse=lse,
    )


def planned(step: Step, q_per_request: int | None = 1, config: Any = None) -> Any:
    total, heads, _ = step.query.shape
    device = torch.device("cuda", 0)
    space = direct.make_workspace(heads, total, device, q_per_request=q_per_request, config=config)
    ragged = offsets(step.tokens) if q_per_request is None else None
    direct.plan(space, offsets(step.lengths), ragged)
    return space


def results(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.full_like(step.query[..., :512], 7.0)
    return out, torch.full(out.shape[:2], 7.0, device="cuda")


def run(step: Step, q_per_request: int | None = 1, config: Any = None) -> Any:
    out, lse = results(step)
    attend(step, planned(step, q_per_request, config), out, lse)
    return out, lse


def reference(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 attention, token by token."""
    outs, lses = [], []
    first_slot = first_token = 0
    for length, tokens in zip(step.lengths, step.tokens, strict=True):
        rows = step.pool[step.slots[first_slot : first_slot + length].long(), 0].double()
        for token in range(tokens):
            seen = rows[: max(length - tokens + token + 1, 0)]
            scores = step.query[first_token + token].double() @ seen.T * SM_SCALE
            outs.append(scores.softmax(-1) @ seen[:, :512])
            lses.append(scores.logsumexp(-1) * direct.LOG2_E)
        first_slot, first_token = first_slot + length, first_token + tokens
    return torch.stack(outs), torch.stack(lses)


def assert_close(result: tuple[torch.Tensor, torch.Tensor], step: Step) -> None:
    out, lse = result
    ideal, ideal_lse = reference(step)
    error = (out.double() - ideal).flatten(1).norm(dim=1)
    rounding = (ideal.to(out.dtype).double() - ideal).flatten(1).norm(dim=1)
    limit = TOLERANCE * rounding + 1e-5 * ideal.flatten(1).norm(dim=1)
    assert bool((error <= limit).all()), f"errors {error.tolist()}, limits {limit.tolist()}"
    torch.testing.assert_close(lse.double(), ideal_lse, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("heads", [8, 16, 20, 32, 64, 128])
def test_decode_matches_float64_for_any_head_count(heads: int) -> None:
    step = make_step(LENGTHS, [1] * len(LENGTHS), heads)
    assert_close(run(step), step)


@pytest.mark.parametrize("heads", [8, 16, 64, 128])
def test_a_single_request_matches_float64(heads: int) -> None:
    for length in (1, 130, 8191):
        step = make_step([length], [1], heads)
        assert_close(run(step), step)


@pytest.mark.parametrize("heads", [16, 64])
def test_kernel_of_other_cards_matches_float64(heads: int) -> None:
    step = make_step(LENGTHS, [1] * len(LENGTHS), heads)
    assert_close(run(step, config=direct.configure((12, 0), heads)), step)


def portable(heads: int) -> Any:
    """The kernel of cards without wgmma."""
    return direct.configure((10, 0), heads)


def hopper(rows: int) -> Any:
    if CARD != (9, 0) or direct.attend_splits_wgmma is None:
        pytest.skip("needs Hopper, and a Triton with Gluon")
    return HOPPER[next((height for height in HOPPER if height >= rows), 64)]


@pytest.mark.parametrize("heads", [8, 16, 20, 32, 64, 128])
def test_hoppers_kernel_matches_float64_for_any_head_count(heads: int) -> None:
    for lengths in (LENGTHS, [1], [130], [8191]):
        step = make_step(lengths, [1] * len(lengths), heads)
        assert_close(run(step, config=hopper(heads)), step)


@pytest.mark.parametrize("q_per_request", [4, None])
def test_hoppers_kernel_gives_each_token_its_own_range(q_per_request: int | None) -> None:
    for tokens in ([4] * 3, [4, 1, 7]) if q_per_request is None else ([4] * 3,):
        step = make_step([4, 900, 33], tokens, 16, torch.float8_e5m2)
        assert_close(run(step, q_per_request, config=hopper(64)), step)


def test_merge_needs_several_rounds() -> None:
    step = make_step([12_000, 5], [1, 1], 16)
    config = replace(direct.configure(CARD, 16), shortest=64)
    assert int(planned(step, config=config).token_splits[0, 1]) > 128
    assert_close(run(step, config=config), step)


def test_e5m2_matches_float64() -> None:
    step = make_step([37, 300], [1, 1], 16, torch.float8_e5m2)
    assert_close(run(step), step)


def test_verify_tokens_see_one_more_row_each() -> None:
    step = make_step([4, 900, 33], [4] * 3, 16)
    assert_close(run(step, q_per_request=4), step)


def test_ragged_extend_matches_float64() -> None:
    step = make_step([150, 9, 40, 700], [5, 9, 1, 7], 16)
    assert_close(run(step, q_per_request=None), step)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_code_is_decoded_as_the_cast_does(dtype: torch.dtype, own: bool) -> None:
    """A request of one row returns that row: 512 codes a request."""
    step = make_step([1, 1], [1, 1], 16, dtype)
    step.slots[1] = (step.slots[0] + 1) % ROWS  # two rows of their own
    codes = torch.arange(256, dtype=torch.uint8, device="cuda")
    used = step.slots[:2].long()
    rows = torch.zeros_like(step.pool.view(torch.uint8)[used, 0])
    rows[0, :256] = torch.where(codes.view(dtype).float().isfinite(), codes, 0)
    rows[1, 17] = QUIET_NAN
    step.pool.view(torch.uint8)[used, 0] = rows
    out, _ = run(step, config=None if own else portable(16))
    assert torch.equal(out[0].float(), rows[0, :512].view(dtype).float().expand(16, 512))
    assert bool(out[1, :, 17].isnan().all()), "NaN in a visible row reaches the output"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("heads", [16, 64])
def test_replays_give_the_same_bits_and_follow_new_lengths(heads: int, own: bool) -> None:
    """Layers in a row share partial results."""
    step = make_step(LENGTHS, [1] * len(LENGTHS), heads)
    space = planned(step, config=None if own else portable(heads))
    layers = [results(step) for _ in range(24)]
    attend(step, space, *layers[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out, lse in layers:
            attend(step, space, out, lse)
    for lengths in (LENGTHS, [5000, 3, 2, 1, 70, 0]):
        step = replace(step, lengths=lengths)
        direct.plan(space, offsets(lengths))
        for _ in range(20):
            graph.replay()
        assert_close(layers[0], step)
        for out, lse in layers[1:]:
            assert torch.equal(out, layers[0][0])
            assert torch.equal(lse, layers[0][1])
