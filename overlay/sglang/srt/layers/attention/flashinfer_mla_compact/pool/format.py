"""How the rows of an MLA pool are stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PoolFormat:
    """What a kernel has to know to write rows as upstream does.

    Attributes:
        dtype: float8_e4m3fn or float8_e5m2.
        top_code: the code that is written for values that are too large.
        reserved_slot: the slot that keeps what it holds, the sink of padded tokens; -1 for none.
    """

    dtype: torch.dtype
    top_code: int
    reserved_slot: int

    @property
    def is_e4m3(self) -> bool:
        return self.dtype == torch.float8_e4m3fn


def top_code(dtype: torch.dtype, device: torch.device) -> int:
    """The code that this torch's cast to FP8 gives what is too large, on this device.

    e4m3 became saturating in torch: 448 where it used to be NaN.
    """
    return int(torch.full((1,), float("inf"), device=device).to(dtype).view(torch.uint8))
