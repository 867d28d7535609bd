"""Inputs of the direct kernels, and the attention that they stand for in float64."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

SM_SCALE = 192**-0.5
QUIET_NAN = 0x7F


@dataclass
class Step:
    """The inputs of one layer of one step; `slots` holds more than the requests have."""

    query: torch.Tensor
    pool: torch.Tensor
    slots: torch.Tensor
    lengths: list[int]
    tokens: list[int]

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The kernels' first arguments: q_nope, q_rope, pool, slots."""
        return self.query[..., :512], self.query[..., 512:], self.pool, self.slots

    def offsets(self, counts: list[int]) -> torch.Tensor:
        return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=self.query.device)

    def hold_every_code(self) -> torch.Tensor:
        """Put every finite code in the first slot's row and one NaN in the second's.

        Returns the first row's latent, [512] float32.
        """
        dtype, used = self.pool.dtype, self.slots[:2].long()
        codes = torch.arange(256, dtype=torch.uint8, device=self.pool.device)
        rows = torch.zeros_like(self.pool.view(torch.uint8)[used, 0])
        rows[0, :256] = torch.where(codes.view(dtype).float().isfinite(), codes, 0)
        rows[1, 17] = QUIET_NAN
        self.pool.view(torch.uint8)[used, 0] = rows
        return rows[0, :512].view(dtype).float()


def make_step(
    lengths: list[int],
    tokens: list[int],
    heads: int,
    dtype: torch.dtype = torch.float8_e4m3fn,
    *,
    rows: int = 1024,
    device: str = "cpu",
    seed: int = 0,
) -> Step:
    """Random rows, some of them used twice; every other slot, and the list's tail, hold NaN."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    pool = normal(rows, 1, 576).to(dtype)
    order = torch.randperm(rows, generator=generator, device=device).to(torch.int32)
    slots = order[: sum(lengths)].clone()
    slots[2::7] = slots[:1]
    idle = torch.ones(rows, dtype=torch.bool, device=device)
    idle[slots.long()] = False
    pool.view(torch.uint8)[idle] = QUIET_NAN
    stale = torch.nonzero(idle)[:128, 0].to(torch.int32)
    query = normal(sum(tokens), heads, 576).to(torch.bfloat16)
    return Step(query, pool, torch.cat([slots, stale]), lengths, tokens)


def attention(
    query: torch.Tensor, rows: torch.Tensor, sm_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(sm_scale * query . row) . latent for one request, causal within its new tokens.

    `query` is [tokens, heads, 576], `rows` [length, 576]. Returns [tokens, heads, 512] and the
    base-2 logarithm of the softmax's sum, [tokens, heads]; of no rows, zeros and -inf. Float64.
    """
    outs, lses = [], []
    query, rows = query.double(), rows.double()
    for token, q in enumerate(query):
        seen = rows[: max(len(rows) - len(query) + token + 1, 0)]
        scores = q @ seen.T * sm_scale
        outs.append(scores.softmax(-1) @ seen[:, :512])
        lses.append(scores.logsumexp(-1) / torch.log(scores.new_tensor(2)))
    return torch.stack(outs), torch.stack(lses)


def reference(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """`attention` of every request, one behind the other."""
    slots = step.slots[: sum(step.lengths)].long().split(step.lengths)
    parts = zip(step.query.split(step.tokens), slots, strict=True)
    outs, lses = zip(*(attention(q, step.pool[s, 0], SM_SCALE) for q, s in parts), strict=True)
    return torch.cat(outs), torch.cat(lses)
