"""The direct kernels on the GPU, every configuration that fits this card, against float64.

Most are written in Gluon, which has no interpreter: this is where their numbers are tested.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.overlay import load
from tests.kernels import reference
from tests.kernels.reference import Step

direct: Any = load("direct.attend")
configs: Any = load("direct.configs")
make_workspace: Any = load("direct.workspace").make_workspace

ROWS = 1 << 14
# Errors are root mean squares, measured by what rounding the ideal output once would cost.
TOLERANCE = 1.05
CARD = torch.cuda.get_device_capability()
LENGTHS = [0, 1, 37, 8192, 300, 64]


def make_step(
    lengths: list[int], tokens: list[int], heads: int, dtype: torch.dtype = torch.float8_e4m3fn
) -> Step:
    seed = heads + sum(lengths)
    return reference.make_step(lengths, tokens, heads, dtype, rows=ROWS, device="cuda", seed=seed)


def attend(step: Step, workspace: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
    direct.attend(*step.operands, workspace, sm_scale=reference.SM_SCALE, out=out, lse=lse)


def planned(step: Step, q_per_request: int | None = 1, config: Any = None) -> Any:
    total, heads, _ = step.query.shape
    device = torch.device("cuda", 0)
    space = make_workspace(heads, total, device, q_per_request=q_per_request, config=config)
    ragged = step.offsets(step.tokens) if q_per_request is None else None
    direct.plan(space, step.offsets(step.lengths), ragged)
    return space


def results(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.full_like(step.query[..., :512], 7.0)
    return out, torch.full(out.shape[:2], 7.0, device="cuda")


def run(step: Step, q_per_request: int | None = 1, config: Any = None) -> Any:
    out, lse = results(step)
    attend(step, planned(step, q_per_request, config), out, lse)
    return out, lse


def assert_close(result: tuple[torch.Tensor, torch.Tensor], step: Step) -> None:
    out, lse = result
    ideal, ideal_lse = reference.reference(step)
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
def test_plain_kernel_matches_float64(heads: int) -> None:
    step = make_step(LENGTHS, [1] * len(LENGTHS), heads)
    assert_close(run(step, config=configs.configure(None, heads)), step)


def portable(heads: int) -> Any:
    """The kernel of cards without wgmma; any card has the shared memory for one block of it."""
    if "mma" not in configs.KERNELS:
        pytest.skip("needs the Gluon of Triton 3.6")
    return configs.configure((10, 0), heads)


@pytest.mark.parametrize("heads", [8, 16, 20, 32, 64, 128])
def test_portable_kernel_matches_float64_for_any_head_count(heads: int) -> None:
    for lengths in (LENGTHS, [1], [130], [8191]):
        step = make_step(lengths, [1] * len(lengths), heads)
        assert_close(run(step, config=portable(heads)), step)


@pytest.mark.parametrize("heads", [8, 32])
@pytest.mark.parametrize("card", [(8, 0), (12, 0)])
def test_portable_kernel_with_the_decoder_of_other_cards(card: tuple[int, int], heads: int) -> None:
    config = portable(heads)
    step = make_step(LENGTHS, [1] * len(LENGTHS), heads)
    out, lse = results(step)
    space = planned(step, config=config)
    space.shape = replace(space.shape, capability=card)
    attend(step, space, out, lse)
    assert_close((out, lse), step)


@pytest.mark.parametrize("q_per_request", [4, None])
@pytest.mark.parametrize("own", [False, True])
def test_each_token_of_a_group_has_its_own_range(q_per_request: int | None, own: bool) -> None:
    for tokens in ([4] * 3, [4, 1, 7]) if q_per_request is None else ([4] * 3,):
        step = make_step([4, 900, 33], tokens, 16, torch.float8_e5m2)
        config = configs.configure(CARD, 64) if own else portable(64)
        assert_close(run(step, q_per_request, config=config), step)


def test_merge_needs_several_rounds() -> None:
    step = make_step([12_000, 5], [1, 1], 16)
    config = replace(configs.configure(CARD, 16), shortest=64)
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
    expected = step.hold_every_code()
    out, _ = run(step, config=None if own else portable(16))
    assert torch.equal(out[0].float(), expected.expand(16, 512))
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
        direct.plan(space, step.offsets(lengths))
        for _ in range(20):
            graph.replay()
        assert_close(layers[0], step)
        for out, lse in layers[1:]:
            assert torch.equal(out, layers[0][0])
            assert torch.equal(lse, layers[0][1])


@pytest.mark.parametrize(("requests", "heads"), [(70, 64), (140, 16)])
def test_an_extend_of_many_tokens_may_have_its_heads_far_apart(requests: int, heads: int) -> None:
    """Absorbed queries are a transposed product: a head's stride is that of all tokens."""
    new = 1000
    total, device = new * requests, torch.device("cuda", 0)
    pool = torch.randn((ROWS, 1, 576), device=device).to(torch.float8_e4m3fn)
    slots = torch.randint(ROWS, (total,), dtype=torch.int32, device=device)
    nope = torch.randn((heads, total, 512), device=device, dtype=torch.bfloat16).transpose(0, 1)
    rope = torch.randn((total, heads, 64), device=device, dtype=torch.bfloat16)
    assert total > 65_535, "more than a grid has in its second axis"
    assert nope.stride(1) * (heads - 1) >= 2**31 or heads < 64
    space = make_workspace(heads, total, device, q_per_request=None)
    queries = torch.arange(0, total + 1, new, dtype=torch.int32, device=device)
    direct.plan(space, queries, queries)
    out = torch.full_like(nope, 7.0, memory_format=torch.contiguous_format)
    scale = reference.SM_SCALE
    direct.attend(nope, rope, pool, slots, space, sm_scale=scale, out=out)
    for token in (0, new - 1, total - new // 2, total - 1):
        request, place = divmod(token, new)
        seen = slots[request * new : request * new + place + 1].long()
        query = torch.cat([nope[token], rope[token]], -1)[None]
        want, _ = reference.attention(query, pool[seen, 0], scale)
        error = (out[token].double() - want[0]).norm() / want.norm()
        assert error < 4e-3, f"token {token}"
