"""What a plan writes and attention reads: a step's work items, and partial results."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from .configs import Config, configure
from .work import ITEM_FIELDS, NOPE, TOKEN_FIELDS


@dataclass(frozen=True)
class Shape:
    """How steps of one kind run on a card.

    Attributes:
        heads: query heads of a rank.
        group: query tokens of a work item.
        ragged: requests differ in their number of query tokens.
        config, alone: for batches, and for a batch of one request.
        processors: of the card.
        capability: of the card; None is Triton's interpreter.
        partial: dtype of the values of partial results.
    """

    heads: int
    group: int
    ragged: bool
    config: Config
    alone: Config
    processors: int
    capability: tuple[int, int] | None
    partial: torch.dtype

    @property
    def rows(self) -> int:
        """Query rows of a work item."""
        return self.group * self.heads

    def of_batch(self, requests: int) -> tuple[Config, int]:
        """How to run a batch of `requests`, and how many work items run at once."""
        config = self.alone if requests == 1 and not self.ragged else self.config
        return config, self._wave(config)

    def groups(self, tokens: int) -> int:
        """Most groups of `tokens` query tokens."""
        return tokens if self.ragged else triton.cdiv(tokens, self.group)

    def items(self, tokens: int) -> int:
        """Most work items of a step of `tokens` query tokens."""
        return max(self._waves()) + self.groups(tokens)

    def parts(self, tokens: int) -> int:
        """Most partial results of a step of `tokens` query tokens."""
        # A range is cut only if it exceeds an even share of the wave, so cut ranges have fewer
        # than two parts for each share.
        return max(min(2 * wave, wave + self.groups(tokens)) for wave in self._waves())

    def scratch_bytes(self, tokens: int) -> int:
        """Bytes of the partial results of a step of `tokens` query tokens."""
        row = NOPE.value * self.partial.itemsize + torch.float32.itemsize
        return self.parts(tokens) * self.rows * row

    def _waves(self) -> tuple[int, int]:
        return self._wave(self.config), self._wave(self.alone)

    def _wave(self, config: Config) -> int:
        return max(1, self.processors * config.blocks // triton.cdiv(self.rows, config.rows))


def shape_of(
    heads: int,
    device: torch.device,
    *,
    q_per_request: int | None = 1,
    config: Config | None = None,
    partial: torch.dtype = torch.float16,
) -> Shape:
    """How a card runs steps of `heads` query heads.

    q_per_request: query tokens of every request (1: decode), or None for requests that differ.
    partial: dtype of partial results, see `partial_dtype`.
    """
    capability, processors = _card(device)
    rows = heads * (q_per_request or 2**16)
    alone = config or configure(capability, rows, alone=True)
    config = config or configure(capability, rows)
    group = q_per_request or max(1, config.rows // heads)
    ragged = q_per_request is None
    return Shape(heads, group, ragged, config, alone, processors, capability, partial)


def partial_dtype(pool_dtype: torch.dtype) -> torch.dtype:
    """The dtype of partial results: float16 halves their bytes, and holds averages of e4m3.

    Averages of e5m2, whose smallest values are 2**-16, would lose bits there.
    """
    return torch.float16 if pool_dtype == torch.float8_e4m3fn else torch.float32


def _card(device: torch.device) -> tuple[tuple[int, int] | None, int]:
    if device.type != "cuda":
        return None, 4
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), properties.multi_processor_count


class Workspace:
    """The tables of one kind of step; shared by all layers and batch sizes.

    Attributes:
        items: int32 [items, 8], see `work`.
        item_count: int32 [1].
        token_splits: int32 [tokens, 4], see `work`.
        scratch: uint8, which holds the next two.
        partial: [parts, rows, 512] in the shape's dtype for it.
        partial_lse: float32 [parts, rows].

    Args:
        shape: of the steps.
        max_tokens: most query tokens of a step.
        device: where the pool lives.
        scratch: uint8, at least `shape.scratch_bytes(max_tokens)`: partial results, which no step
            needs once its layer is done, so that all kinds of steps may share one; by default
            its own.
    """

    def __init__(
        self,
        shape: Shape,
        max_tokens: int,
        device: torch.device,
        scratch: torch.Tensor | None = None,
    ) -> None:
        def zeros(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.shape = shape
        self.max_tokens = max_tokens
        self.items = zeros(shape.items(max_tokens), ITEM_FIELDS.value)
        self.item_count = zeros(1)
        self.token_splits = zeros(max_tokens, TOKEN_FIELDS.value)
        size = shape.scratch_bytes(max_tokens)
        if scratch is None:
            scratch = torch.zeros(size, dtype=torch.uint8, device=device)
        self.scratch = scratch
        parts = shape.parts(max_tokens)
        rows = parts * shape.rows
        values, lse = scratch[:size].split([rows * NOPE.value * shape.partial.itemsize, rows * 4])
        self.partial = values.view(shape.partial).view(parts, shape.rows, NOPE.value)
        self.partial_lse = lse.view(torch.float32).view(parts, shape.rows)

    @property
    def tables(self) -> list[torch.Tensor]:
        """What is held on the device besides the scratch."""
        return [self.items, self.item_count, self.token_splits]


def make_workspace(
    heads: int,
    max_tokens: int,
    device: torch.device,
    *,
    q_per_request: int | None = 1,
    config: Config | None = None,
    partial: torch.dtype = torch.float16,
) -> Workspace:
    """A workspace of its own for steps of one kind; see `shape_of` and `Workspace`."""
    shape = shape_of(heads, device, q_per_request=q_per_request, config=config, partial=partial)
    return Workspace(shape, max_tokens, device)
