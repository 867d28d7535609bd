"""The direct kernel under Triton's interpreter, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
from sglang.srt.layers.attention.flashinfer_mla_compact import policy
from sglang.srt.layers.attention.flashinfer_mla_compact.direct import attend as direct
from sglang.srt.layers.attention.flashinfer_mla_compact.direct import configs
from sglang.srt.layers.attention.flashinfer_mla_compact.direct import workspace as workspace_module
from sglang.srt.layers.attention.flashinfer_mla_compact.direct.configs import Config, codec_of
from sglang.srt.layers.attention.flashinfer_mla_compact.direct.workspace import make_workspace

from tests.kernels.reference import QUIET_NAN, SM_SCALE, Step, make_step, reference

# numpy warns where the hardware would not: log2(0), 1 / 0 in a branch not taken.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")

# Root mean square, relative. Results are float32 here, as the interpreter truncates to bfloat16:
# what remains is the rounding of probabilities to float16. Probabilities in bfloat16 fail this.
TOLERANCE = 2e-4


def test_only_hopper_has_a_kernel_for_more_than_32_rows() -> None:
    cards = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)]
    chosen = {card: configs.configure(card, 64) for card in cards}
    assert {card for card, config in chosen.items() if config.rows == 64} == {(9, 0)}
    assert chosen[9, 0].kernel == "wgmma"
    assert {configs.configure(card, 20).kernel for card in cards} == {"mma"}
    assert configs.configure((9, 0), 64, alone=True).rows == 32
    assert configs.configure((9, 0), 65, alone=True).rows == 64


def test_cards_without_the_conversion_decode_e4m3_by_its_bits() -> None:
    for codec, cards in {"e4m3_bits": [(8, 0), (8, 7)], "e4m3": [(8, 9), (12, 1)]}.items():
        assert {codec_of(torch.float8_e4m3fn, card) for card in cards} == {codec}
        assert {codec_of(torch.float8_e5m2, card) for card in cards} == {"e5m2"}


def test_a_triton_without_gluon_runs_the_plain_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mma", "wgmma"):
        monkeypatch.delitem(configs.KERNELS, name)
    for rows in (8, 32, 128):
        small, large = (configs.configure(card, rows) for card in ((8, 9), (9, 0)))
        assert (small.kernel, large.kernel) == ("plain", "plain")
        assert small.blocks < large.blocks


def test_support_names_a_triton_that_builds_the_kernels() -> None:
    installed = tuple(map(int, triton.__version__.split(".")[:2]))
    assert ("mma" in configs.KERNELS) == (installed >= policy.GLUON_TRITON)


def run(
    step: Step,
    q_per_request: int | None = 1,
    config: Config | None = None,
    out: torch.Tensor | None = None,
    partial: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    total, heads, _ = step.query.shape
    workspace = make_workspace(
        heads,
        total,
        torch.device("cpu"),
        q_per_request=q_per_request,
        config=config,
        partial=partial,
    )
    ragged = step.offsets(step.tokens) if q_per_request is None else None
    direct.plan(workspace, step.offsets(step.lengths), ragged)
    out = torch.full((total, heads, 512), 7.0) if out is None else out
    lse = torch.full((total, heads), 7.0)
    direct.attend(*step.operands, workspace, sm_scale=SM_SCALE, out=out, lse=lse)
    return out, lse


def assert_close(result: tuple[torch.Tensor, torch.Tensor], step: Step) -> None:
    out, lse = result
    ideal, ideal_lse = reference(step)
    error = (out.double() - ideal).norm() / ideal.norm()
    assert error < TOLERANCE, f"relative error {error:.2e}"
    torch.testing.assert_close(lse.double(), ideal_lse, atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize("heads", [8, 16, 20, 64])
def test_decode_matches_float64_for_any_head_count(heads: int) -> None:
    step = make_step([1, 37, 300, 32], [1] * 4, heads)
    assert_close(run(step), step)


def test_128_heads_take_more_than_one_tile() -> None:
    step = make_step([70, 3], [1, 1], 128)
    assert_close(run(step), step)


def test_split_ranges_are_merged_with_their_weights() -> None:
    step = make_step([640, 129, 128, 5], [1] * 4, 16)
    config = Config(16, 32, 4, 3, None, 4, shortest=64)
    workspace = make_workspace(16, 4, torch.device("cpu"), config=config)
    direct.plan(workspace, step.offsets(step.lengths))
    splits = workspace.token_splits[:, 1].tolist()
    assert splits[0] >= 8 and splits[-1] == 1
    assert int(workspace.item_count) == sum(splits) <= workspace.items.shape[0]
    assert_close(run(step, config=config), step)


def test_splits_are_no_more_than_run_at_once_where_even_shares_would_be() -> None:
    lengths = torch.tensor([3200] * 5)
    config = Config(16, 32, 4, 3, None, 4, shortest=32)
    workspace = make_workspace(16, 5, torch.device("cpu"), config=config)
    _, wave = workspace.shape.of_batch(5)
    even = -(-int(lengths.sum()) // wave // 32) * 32
    assert int((-(-lengths // even)).sum()) > wave
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    direct.plan(workspace, offsets)
    assert workspace.token_splits[:, 1].tolist() == [3] * 5
    assert int(workspace.item_count) == 15 <= wave


def test_a_single_request_runs_its_own_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [Config(16, 32, 4, 5, None, 1), Config(16, 32, 4, 3, None, 4, shortest=32)]
    monkeypatch.setattr(
        workspace_module, "configure", lambda card, rows, alone=False: chosen[alone]
    )
    step = make_step([300, 40], [1, 1], 16)
    workspace = make_workspace(16, 2, torch.device("cpu"), partial=torch.float32)
    direct.plan(workspace, step.offsets([300]))
    assert int(workspace.item_count) == 10 <= workspace.items.shape[0]
    one = replace(step, query=step.query[:1], lengths=[300], tokens=[1])
    assert_close(run(one), one)
    assert_close(run(step), step)


def test_merge_needs_several_rounds() -> None:
    """The long request has more splits than one round takes where two share the card."""
    step = make_step([800, 5], [1, 1], 8)
    config = Config(16, 16, 4, 3, None, 16, shortest=16)
    workspace = make_workspace(8, 2, torch.device("cpu"), config=config)
    direct.plan(workspace, step.offsets(step.lengths))
    _, in_one_round = direct._merge_shape(workspace.shape.of_batch(2)[1], 2)
    assert int(workspace.token_splits[0, 1]) > in_one_round
    assert_close(run(step, config=config), step)


def test_partial_results_in_float16_lose_less_than_the_output_does() -> None:
    step = make_step([640, 129, 128, 5], [1] * 4, 16)
    config = Config(16, 32, 4, 3, None, 4, shortest=64)
    (exact, _), (half, _) = (
        run(step, config=config, partial=dtype) for dtype in (torch.float32, torch.float16)
    )
    assert not torch.equal(exact, half)
    assert (half - exact).norm() / exact.norm() < 2**-11


def test_slots_may_repeat_within_and_across_requests() -> None:
    step = make_step([200, 200], [1, 1], 16)
    step.slots[200:400] = step.slots[:200].flip(0)
    step.slots[50:60] = step.slots[0]
    assert_close(run(step), step)


def test_an_empty_request_gives_zeros_and_minus_infinity() -> None:
    step = make_step([0, 40, 0], [1, 1, 1], 16)
    out, lse = run(step)
    assert not out[0].any() and not out[2].any()
    assert bool((lse[[0, 2]] == -torch.inf).all())
    middle = Step(step.query[1:2], step.pool, step.slots, [40], [1])
    assert_close((out[1:2], lse[1:2]), middle)


def test_padded_requests_of_a_captured_batch_do_no_harm() -> None:
    step = make_step([90, 1, 1], [1, 1, 1], 16)
    step.slots[90:92] = 0
    step.pool[0] = 1.0
    assert_close(run(step), step)


def test_a_replay_may_have_other_lengths() -> None:
    workspace = make_workspace(16, 2, torch.device("cpu"), partial=torch.float32)
    for lengths in ([300, 200], [7, 420], [1, 1]):
        step = make_step(lengths, [1, 1], 16, seed=lengths[0])
        direct.plan(workspace, step.offsets(lengths))
        out, lse = torch.empty(2, 16, 512), torch.empty(2, 16)
        direct.attend(*step.operands, workspace, sm_scale=SM_SCALE, out=out, lse=lse)
        assert_close((out, lse), step)


def test_rows_of_the_pool_and_of_the_output_may_be_strided() -> None:
    step = make_step([70, 130], [1, 1], 16)
    wide = torch.full((len(step.pool), 3, 576), QUIET_NAN, dtype=torch.uint8).view(step.pool.dtype)
    wide[:, 1:2].copy_(step.pool)
    step.pool = wide[:, 1:2]
    out = torch.zeros(2, 16, 600)[..., :512]
    assert_close(run(step, out=out), step)


def test_e5m2_and_float16_queries_match_float64() -> None:
    step = make_step([37, 300], [1, 1], 16, torch.float8_e5m2)
    step.query = step.query.to(torch.float16)
    assert_close(run(step), step)


def test_output_is_rounded_to_its_own_dtype() -> None:
    step = make_step([300], [1], 16)
    exact, _ = run(step)
    rounded, _ = run(step, out=torch.zeros(1, 16, 512, dtype=torch.bfloat16))
    torch.testing.assert_close(rounded.float(), exact, atol=0.0, rtol=2**-7)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 3e4, 1e8])
def test_queries_beyond_float16_keep_their_precision(magnitude: float) -> None:
    step = make_step([64], [1], 16)
    step.query[0, 3] = (step.query[0, 3].float() * magnitude).to(torch.bfloat16)
    assert_close(run(step), step)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_code_is_decoded_as_the_cast_does(dtype: torch.dtype) -> None:
    """A request of one row returns that row: 512 codes a request."""
    step = make_step([1, 1], [1, 1], 8, dtype)
    expected = step.hold_every_code()
    out, _ = run(step)
    assert torch.equal(out[0].float(), expected.expand(8, 512))
    assert bool(out[1].isnan().all()), "NaN in a visible row reaches the output"


def test_infinities_of_e5m2_reach_the_output() -> None:
    step = make_step([1], [1], 8, torch.float8_e5m2)
    step.pool[int(step.slots[0]), 0, 5] = torch.inf
    out, _ = run(step)
    assert not bool(out[..., 5].isfinite().any())


@pytest.mark.parametrize("heads", [8, 20])
@pytest.mark.parametrize("tokens", [4, 8])
def test_verify_tokens_see_one_more_row_each(tokens: int, heads: int) -> None:
    step = make_step([tokens, 90, 33], [tokens] * 3, heads)
    assert_close(run(step, q_per_request=tokens), step)


def test_verify_across_splits() -> None:
    step = make_step([258, 66], [4] * 2, 16)
    config = Config(32, 32, 4, 3, None, 4, shortest=32)
    assert_close(run(step, q_per_request=4, config=config), step)


def test_ragged_extend_matches_float64() -> None:
    step = make_step([150, 9, 40, 70], [5, 9, 1, 7], 8)
    config = Config(32, 32, 4, 3, None, 2, shortest=32)
    assert_close(run(step, q_per_request=None, config=config), step)


def test_wrong_shapes_are_refused_in_one_sentence() -> None:
    step = make_step([4], [1], 8)
    workspace = make_workspace(16, 1, torch.device("cpu"))
    out = torch.empty(1, 8, 512, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="8 heads exceed a workspace for 1 tokens of 16"):
        direct.attend(*step.operands, workspace, sm_scale=1.0, out=out)
    narrow = torch.zeros(8, 1, 584, dtype=torch.float8_e4m3fn)[..., :576]
    with pytest.raises(ValueError, match="584 bytes apart"):
        direct.attend(
            *step.operands[:2],
            narrow,
            step.slots,
            make_workspace(8, 1, torch.device("cpu")),
            sm_scale=1.0,
            out=out,
        )
    with pytest.raises(ValueError, match="qo_indptr is given"):
        direct.plan(workspace, step.offsets([4]), step.offsets([1]))
    with pytest.raises(ValueError, match=r"the pool holds torch\.uint8"):
        codec_of(torch.uint8, (9, 0))
