"""A reading by gathering: the step's rows are cast into a buffer, which attention takes as keys."""

from __future__ import annotations

import torch
import triton

from .gather import gather_rows, grid_programs
from .rows import CompactRows, SlotTable


class Gathered:
    """Reads a step through a buffer that holds each of its distinct rows once, cast.

    Addresses never change, so that captured launches stay valid.

    Args:
        buffer: [capacity, 1, 576], contiguous, bfloat16 or float16; may be shared by readings
            whose layers run one after another on one stream.
        table: of the pool's slots; may be shared by readings that are placed one after another.
    """

    name = "gather"

    def __init__(self, buffer: torch.Tensor, table: SlotTable) -> None:
        self.buffer = buffer
        self._programs = grid_programs(buffer.device)
        self.rows = CompactRows(buffer.shape[0], table, self._programs)

    @property
    def bounded(self) -> bool:
        """Whether a step may need more rows than the buffer has."""
        return self.rows.capacity < self.rows.table.stamps.shape[0]

    def fits(self, entries: int) -> bool:
        """Whether the buffer surely holds the rows that so many entries name."""
        return not self.bounded or entries <= self.rows.capacity

    def warm_up(self, pool_dtype: torch.dtype) -> None:
        """Compile and load every kernel that a step may need; no row is read or written.

        Raises:
            ValueError: one can't be built. None of ours can then, as these ask the least of Triton.
        """
        device = self.buffer.device
        nothing = torch.zeros(1, dtype=torch.int32, device=device)
        row = torch.zeros((1, 1, self.buffer.shape[-1]), dtype=torch.uint8, device=device)
        try:
            self.place(nothing, nothing)
            self.keys(row.view(pool_dtype))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler raises what it likes
            first = next(iter(str(error).splitlines()), "")
            raise ValueError(
                f"the kernels that gather rows can't be built with Triton {triton.__version__} "
                f"({type(error).__name__}: {first}): install the one that this sglang requires"
            ) from error

    def place(self, indices: torch.Tensor, total: torch.Tensor) -> None:
        """Make of the pool slots `indices[:total]` (int32) the rows of the buffer they will be in.

        They must fit: rows past the end of the buffer would be lost.
        """
        self.rows.claim(indices, total)
        self.rows.translate(indices, total)

    def keys(self, rows: torch.Tensor) -> torch.Tensor:
        """The buffer, filled from a layer's rows, [pool rows, 1, 576] FP8."""
        gather_rows(rows, self.rows.slots, self.rows.count, self.buffer, self._programs)
        return self.buffer
