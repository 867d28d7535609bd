"""The kernels that are kept of one device: all of a short trace, parts spread over a long one."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple


class Kernel(NamedTuple):
    """One activity of the GPU; times in microseconds, `threads` 0 where no grid was recorded."""

    start: float
    duration: float
    name: str
    threads: int
    correlation: int
    external: int
    stream: int

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass
class Sample:
    """Blocks of `block` kernels: all, or beyond `limit` every second one, every fourth, and so on.

    Attributes:
        left_out: kernels that were seen and not kept.
    """

    limit: int
    block: int
    blocks: dict[int, list[Kernel]] = field(default_factory=lambda: defaultdict(list))
    stride: int = 1
    seen: int = 0
    left_out: int = 0

    def block_of_next(self) -> int | None:
        """Count one more kernel; the number of the block to keep it in, or None."""
        block, self.seen = self.seen // self.block, self.seen + 1
        if self._is_full() and len(self.blocks) > 1:
            self.stride *= 2
            for number in [number for number in self.blocks if number % self.stride]:
                self.left_out += len(self.blocks.pop(number))
        if block % self.stride or self._is_full():
            self.left_out += 1
            return None
        return block

    def kernels(self) -> list[Kernel]:
        """The kernels that were kept, in order of start."""
        return sorted(chain.from_iterable(self.blocks.values()))

    def windows(self, cut: bool) -> list[tuple[float, float]]:
        """From when to when all kernels were kept, in microseconds; `cut` for a file cut short."""
        if not self.left_out and not cut:
            return [(-math.inf, math.inf)]
        parts = [self.kernels()] if self.stride == 1 else map(sorted, self.blocks.values())
        ends = [(part[0].start, part[-1].start) for part in parts if part]
        return [(-math.inf, ends[0][1]), *ends[1:]] if ends else []

    def _is_full(self) -> bool:
        return sum(map(len, self.blocks.values())) >= self.limit
