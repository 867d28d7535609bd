"""Kernels of this backend have families of their own in a trace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from diagnosetool.kernels import COMPACT_GATHER, family

OVERLAY = Path(__file__).resolve().parents[2] / "overlay"
KERNELS = sorted(
    name
    for path in OVERLAY.rglob("*.py")
    for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.M)
)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_of_the_overlay_is_known_by_what_it_does(kernel: str) -> None:
    assert family(kernel) != kernel


def test_the_kernel_that_fills_the_buffer_tells_that_compact_is_at_work() -> None:
    names = {kernel for kernel in KERNELS if family(kernel) == COMPACT_GATHER}
    assert names == {"gather_rows_kernel"}
