"""The direct kernel in the place of a FlashInfer wrapper, called as upstream calls one."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch

from tests.backend.conftest import Import

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CPU = torch.device("cpu")
HEADS, SCALE = 16, 192**-0.5
LENGTHS = [3, 40]


@pytest.fixture
def pool() -> torch.Tensor:
    rows: torch.Tensor = torch.randn((64, 1, 576), generator=torch.Generator().manual_seed(3))
    fp8: torch.Tensor = rows.to(torch.float8_e4m3fn)
    return fp8


def indptr(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)


def reading(overlay: Import, tokens: int, q_per_request: int | None = 1) -> Any:
    space = overlay("direct.workspace").make_workspace(
        HEADS, tokens, CPU, q_per_request=q_per_request
    )
    return overlay("direct.reading").Direct(space, SCALE)


def attend(wrapper: Any, query: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
    """What upstream's forward methods do with the pool's keys and a wrapper."""
    keys = wrapper.keys(pool).to(query.dtype)
    out = query.new_empty((len(query), HEADS, 512))
    parts = keys[:, :, :512], keys[:, :, 512:]
    result = wrapper.run(query[..., :512], query[..., 512:], *parts, out=out, return_lse=False)
    assert result.data_ptr() == out.data_ptr()
    return out


def exact(query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """One token over all of `rows`, [heads, 512] float64."""
    keys = rows.squeeze(1).double()
    weights: torch.Tensor = (query.double() @ keys.T * SCALE).softmax(-1)
    return weights @ keys[:, :512]


@pytest.mark.parametrize("tokens", [[1, 1], [2, 3]], ids=["decode", "extend"])
def test_it_attends_to_the_planned_slots(
    overlay: Import, pool: torch.Tensor, tokens: list[int]
) -> None:
    decodes = tokens == [1, 1]
    wrapper = reading(overlay, 8, 1 if decodes else None)
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(5)).to(torch.int32)
    wrapper.plan(None, None, slots, None, HEADS, 512, 64, 1, False, SCALE)
    wrapper.place(indptr(LENGTHS), None if decodes else indptr(tokens))
    query = torch.randn((sum(tokens), HEADS, 576)).to(torch.bfloat16)
    out = attend(wrapper, query, pool)
    last = [tokens[0] - 1, sum(tokens) - 1]  # a request's last token sees all of its rows
    for token, named in zip(last, slots[: sum(LENGTHS)].split(LENGTHS), strict=True):
        want = exact(query[token], pool[named.long()])
        torch.testing.assert_close(out[token].double(), want, rtol=0.02, atol=0.02)


def test_a_step_follows_the_lengths_of_its_last_place(overlay: Import, pool: torch.Tensor) -> None:
    wrapper = reading(overlay, 2)
    slots = torch.arange(64, dtype=torch.int32)
    query = torch.randn((2, HEADS, 576)).to(torch.bfloat16)
    wrapper.plan(None, None, slots)
    for lengths in ([30, 20], [1, 5]):
        wrapper.place(indptr(lengths))
        out = attend(wrapper, query, pool)
        want = exact(query[1], pool[lengths[0] : sum(lengths)])
        torch.testing.assert_close(out[1].double(), want, rtol=0.02, atol=0.02)


def test_a_log_sum_is_not_given(overlay: Import) -> None:
    wrapper = reading(overlay, 2)
    with pytest.raises(AssertionError, match="decode context parallelism"):
        wrapper.run(None, None, None, None, out=None, return_lse=True)


def test_keys_that_are_read_directly_are_neither_cast_nor_sliced(overlay: Import) -> None:
    rows = torch.zeros(4, 1, 576, dtype=torch.uint8)
    keys = overlay("direct.reading").UncastKeys(rows).to(torch.bfloat16)
    assert keys[:, :, :512].rows is rows
    assert keys[:, :, 512:].rows is rows
