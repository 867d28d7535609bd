"""Whatever kernel a step may launch was launched before the server was ready."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.direct import attend as direct
from sglang.srt.layers.attention.flashinfer_mla_compact.direct.configs import KERNELS, configure
from sglang.srt.layers.attention.flashinfer_mla_compact.direct.workspace import Shape, Workspace

CPU = torch.device("cpu")
CARDS = {(8, 0): 108, (8, 6): 82, (9, 0): 132, (10, 0): 148, (12, 0): 170}
MOST = 400  # groups: more than any of these cards runs at once
Launched = set[tuple[object, ...]]


class Noted:
    """A kernel that notes what it would be compiled for, instead of a launch."""

    def __init__(self, name: str, launched: Launched) -> None:
        self._name, self._launched = name, launched

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_, **constants: self._launched.add(
            (self._name, *sorted(constants.items(), key=str))
        )


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    found: Launched = set()
    for name in ("plan_splits", "merge_splits"):
        monkeypatch.setattr(direct, name, Noted(name, found))
    for name in list(KERNELS):
        monkeypatch.setitem(KERNELS, name, Noted(name, found))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return found


@pytest.mark.parametrize("tokens", [1, 4, None], ids=["decode", "verify", "extend"])
@pytest.mark.parametrize("heads", [8, 16, 20, 128])
@pytest.mark.parametrize("card", CARDS, ids=str)
def test_no_batch_size_needs_a_kernel_that_was_not_warmed_up(
    launched: Launched, card: tuple[int, int], heads: int, tokens: int | None
) -> None:
    rows = heads * (tokens or 2**16)
    config, alone = configure(card, rows), configure(card, rows, alone=True)
    group = tokens or max(1, config.rows // heads)
    shape = Shape(heads, group, not tokens, config, alone, CARDS[card], card, torch.float16)
    most = MOST * (tokens or 1)
    direct.warm_up(shape, most, CPU, torch.bfloat16, torch.float8_e4m3fn)
    warm = set(launched)
    space = Workspace(shape, most, CPU)
    pool = torch.zeros((1, 1, 576), dtype=torch.uint8).view(torch.float8_e4m3fn)
    slots = torch.zeros(1, dtype=torch.int32)
    queries = torch.zeros((most, heads, 576), dtype=torch.bfloat16)
    out = torch.zeros_like(queries[..., :512])
    for groups in range(1, MOST + 1):
        count = groups * (tokens or 1)
        nope, rope = queries[:count].split([512, 64], -1)
        starts = torch.zeros(groups + 1, dtype=torch.int32)
        direct.plan(space, starts, None if tokens else starts)
        direct.attend(nope, rope, pool, slots, space, sm_scale=1.0, out=out[:count])
        assert launched <= warm, f"{groups} groups"
