"""A compiled kernel is kept for the arguments it was compiled for, and called for no other."""

from __future__ import annotations

import weakref
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


ROWS = BYTES.view(16, 16)


def test_a_bound_launch_puts_each_tensor_and_its_stride_before_what_is_known() -> None:
    kernel = Kernel()
    bound = Launcher(kernel, 2).bind(5, "known", 7)
    later = ROWS[1:]
    for rows in (ROWS, later, ROWS, later):
        bound(rows, BYTES)
    assert kernel.launches == [
        ("ordinary", (5,), ROWS, 16, BYTES, 1, "known", 7, 2),
        ("compiled", (5, 1, 1), later, 16, BYTES, 1, "known", 7),
        ("compiled", (5, 1, 1), ROWS, 16, BYTES, 1, "known", 7),
        ("compiled", (5, 1, 1), later, 16, BYTES, 1, "known", 7),
    ]


@pytest.mark.parametrize(
    "other",
    [BYTES[1:241].view(15, 16), ROWS.view(-1)[8:-8].view(15, 16), ROWS.view(torch.int8), ROWS[::3]],
    ids=["odd start", "half aligned", "dtype", "stride"],
)
@pytest.mark.parametrize("place", range(3))
def test_a_bound_launch_of_another_kind_is_compiled_for_anew(
    other: torch.Tensor, place: int
) -> None:
    kernel = Kernel()
    bound = Launcher(kernel, 2).bind(5)
    tensors = 3 * [ROWS]
    others = [*tensors[:place], other, *tensors[place + 1 :]]
    for layer in (tensors, tensors, others, others, others, tensors):
        bound(*layer)
    assert list(kernel.ways()) == 2 * ["ordinary", "compiled"] + 2 * ["compiled"]


def test_bound_launches_share_what_was_compiled() -> None:
    kernel = Kernel()
    launcher = Launcher(kernel, 2)
    for programs in (5, 7):
        launcher.bind(programs, 3)(ROWS)
    assert kernel.launches[1:] == [("compiled", (7, 1, 1), ROWS, 16, 3)]


@pytest.mark.parametrize("known", [BYTES[1:], BYTES.view(torch.int8), 4])
def test_bound_launches_that_know_other_arguments_are_compiled_for_anew(known: Any) -> None:
    kernel = Kernel()
    launcher = Launcher(kernel, 2)
    for last in 2 * [BYTES, known]:
        launcher.bind(5, last)(ROWS)
    assert list(kernel.ways()) == ["ordinary", "ordinary", "compiled", "compiled"]


def test_what_is_known_is_looked_at_until_it_was_launched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(f"{Launcher.__module__}.specialised", looks.append)
    bound = Launcher(Kernel(), 2).bind(4, "known")
    for _ in range(5):
        bound(ROWS)
    assert looks.count("known") == 2


def test_what_the_device_says_of_a_bound_launch_is_not_hidden_by_another_launch() -> None:
    kernel = Kernel()
    bound = Launcher(kernel, 2).bind(4)
    for _ in range(2):
        bound(ROWS)
    kernel.result.error = RuntimeError("Triton Error [CUDA]: an illegal memory access")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bound(ROWS)
    assert list(kernel.ways()) == ["ordinary", "compiled", "compiled"]


def test_a_bound_launch_keeps_no_tensor_of_a_layer_alive() -> None:
    kernel = Kernel()
    bound = Launcher(kernel, 2).bind(4, BYTES)
    for _ in range(3):
        layer = ROWS.clone()
        bound(layer)
        kernel.launches.clear()
        kept = weakref.ref(layer)
        del layer
        assert kept() is None


def test_a_bound_launch_is_ordinary_where_a_kept_one_is_not_possible() -> None:
    wants_others = Kernel(TypeError("function takes exactly 3 arguments (2 given)"))
    not_by_grid = Kernel()
    not_by_grid.result = object()
    for kernel in (wants_others, not_by_grid, Kernel(interpreted=True)):
        bound = Launcher(kernel, 2).bind(4)
        for _ in range(4):
            bound(ROWS)
        ways = list(kernel.ways())
        assert ways.count("ordinary") == 4
        assert ways.count("compiled") <= 1, "what failed once is not tried each time"


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
