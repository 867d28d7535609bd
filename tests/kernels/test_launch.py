"""A compiled kernel is kept for the arguments it was compiled for, and called for no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.layers.attention.flashinfer_mla_compact.launch import Launcher, specialised
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import native_specialize_impl

BYTES = torch.zeros(256, dtype=torch.uint8)
BYTES = BYTES[-BYTES.data_ptr() % 16 :]
BACKEND = make_backend(GPUTarget("cuda", 90, 32))


class Compiled:
    """Notes its launches, as the ordinary ones are noted by `Kernel`."""

    def __init__(self, launches: list[Any], error: Exception | None) -> None:
        self.launches, self.error = launches, error

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            self.launches.append(("compiled", grid, *arguments))
            if self.error is not None:
                raise self.error

        return launch


class Kernel:
    """What `triton.jit` makes of a function; `result` is what its launches return."""

    def __init__(self, error: Exception | None = None, interpreted: bool = False) -> None:
        self.launches: list[Any] = []
        self.result: Any = None if interpreted else Compiled(self.launches, error)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, num_warps: int) -> Any:
            self.launches.append(("ordinary", grid, *arguments, num_warps))
            return self.result

        return launch

    def ways(self) -> Iterator[str]:
        return (launch[0] for launch in self.launches)


def test_the_second_launch_is_of_the_compiled_kernel_with_the_same_arguments() -> None:
    kernel = Kernel()
    launch = Launcher(kernel, 2)
    launch(5, BYTES, 576, True)
    launch(7, BYTES, 576, True)
    assert kernel.launches == [
        ("ordinary", (5,), BYTES, 576, True, 2),
        ("compiled", (7, 1, 1), BYTES, 576, True),
    ]


@pytest.mark.parametrize(
    ("tensor", "stride"),
    [
        (BYTES[1:], 576),
        (BYTES[8:], 576),
        (BYTES.view(torch.int8), 576),
        (BYTES, 1),
        (BYTES, 577),
        (BYTES, 2**31),
    ],
    ids=["odd start", "half aligned", "dtype", "one", "odd stride", "wide stride"],
)
def test_other_arguments_are_compiled_for_anew(tensor: torch.Tensor, stride: int) -> None:
    kernel = Kernel()
    launch = Launcher(kernel, 2)
    for arguments in 2 * [(BYTES, 576), (tensor, stride)]:
        launch(1, *arguments)
    assert list(kernel.ways()) == ["ordinary", "ordinary", "compiled", "compiled"]


def test_each_device_has_a_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    launch = Launcher(kernel, 2)
    for device in (0, 1, 0, 1):
        monkeypatch.setattr(torch.Tensor, "get_device", lambda _, device=device: device)
        launch(1, BYTES)
    assert list(kernel.ways()) == ["ordinary", "ordinary", "compiled", "compiled"]


def test_another_start_that_is_aligned_as_well_needs_no_other_kernel() -> None:
    kernel = Kernel()
    launch = Launcher(kernel, 2)
    for tensor in (BYTES, BYTES[16:], BYTES[1:], BYTES[3:]):
        launch(1, tensor)
    assert list(kernel.ways()) == ["ordinary", "compiled", "ordinary", "compiled"]


def test_where_nothing_is_compiled_every_launch_is_ordinary() -> None:
    kernel = Kernel(interpreted=True)
    launch = Launcher(kernel, 2)
    for _ in range(3):
        launch(4, BYTES)
    assert kernel.launches == 3 * [("ordinary", (4,), BYTES, 2)]


def test_a_compiled_kernel_that_wants_other_arguments_is_tried_once() -> None:
    kernel = Kernel(TypeError("function takes exactly 3 arguments (2 given)"))
    launch = Launcher(kernel, 2)
    for _ in range(3):
        launch(4, BYTES)
    assert list(kernel.ways()) == ["ordinary", "compiled", "ordinary", "ordinary"]


def test_what_the_device_says_of_a_launch_is_not_hidden_by_another_launch() -> None:
    kernel = Kernel(RuntimeError("Triton Error [CUDA]: an illegal memory access"))
    launch = Launcher(kernel, 2)
    launch(4, BYTES)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        launch(4, BYTES)
    assert list(kernel.ways()) == ["ordinary", "compiled"]


arguments = st.one_of(
    st.integers(0, 40),
    st.integers(-(2**40), 2**40),
    st.tuples(st.integers(0, 48), st.sampled_from([torch.uint8, torch.float8_e4m3fn])).map(
        lambda start: BYTES[start[0] :].view(start[1])
    ),
)


@settings(deadline=None)
@given(arguments, arguments)
def test_triton_specialises_arguments_of_one_kind_alike(one: Any, other: Any) -> None:
    """So the kernel kept for the first is the one that Triton would launch for the second."""
    by_triton = [native_specialize_impl(BACKEND, a, False, True, True) for a in (one, other)]
    assert specialised(one) != specialised(other) or by_triton[0] == by_triton[1]
