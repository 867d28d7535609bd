"""Kernels that this Triton can't compile: what remains serves, or the start is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CPU = torch.device("cpu")
POOL = 4096
Fail = Callable[..., None]


@pytest.fixture
def readings(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, as on an H200 but for the kernels, which are the interpreter's."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    module = sys.modules[f"{backend.__package__}.readings"]
    for name in ("KERNELS", "FAULTS"):
        monkeypatch.setattr(module.configs, name, dict(getattr(module.configs, name)))
    return module


@pytest.fixture
def fail(readings: Any, monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Has the first of these kernels that is not given up fail when it is compiled."""

    def fail(*kernels: str) -> None:
        def _compile(*_: Any) -> None:
            for kernel in kernels:
                if kernel in readings.configs.KERNELS:
                    raise readings.attend.CompileError(kernel, ValueError("no such layout"))

        monkeypatch.setattr(readings.Readings, "_compile", _compile)

    return fail


def make(readings: Any, heads: int = 16, buffer_mib: int | None = None) -> Any:
    needs = readings.Needs(
        POOL, torch.float8_e4m3fn, torch.bfloat16, CPU, heads, 1.0, 8, verified=4, new_tokens=64
    )
    settings = readings.policy.Settings(buffer_mib=buffer_mib)
    return readings.make_readings(needs, settings, readings.SlotTable(POOL, CPU))


def test_without_gluon_few_rows_are_read_by_the_plain_kernel_and_one_line_a_kernel_says_so(
    readings: Any, fail: Fail, caplog: pytest.LogCaptureFixture
) -> None:
    fail("wgmma", "mma")
    made = make(readings)
    assert (made.decode_strategy[0], made.verify_strategy[0]) == ("direct", "gather")
    assert list(readings.configs.KERNELS) == ["plain"]
    assert readings.configs.configure((9, 0), 64).kernel == "plain"
    lines = [text for text in caplog.messages if "can't be built" in text]
    assert [("wgmma" in line, "mma" in line) for line in lines] == [(True, True), (False, True)]
    assert all("no such layout" in text and "verify by gather" in text for text in lines)


def test_without_any_kernel_all_is_gathered_where_the_buffer_holds_the_pool(
    readings: Any, fail: Fail
) -> None:
    fail("wgmma", "mma", "plain")
    made = make(readings)
    assert (made.decode_strategy[0], made.verify_strategy[0]) == ("gather", "gather")
    assert made.gathered.rows.capacity == POOL
    assert made.of_extend(10, 3, 1) is made.gathered


def test_a_kernel_that_fails_leaves_no_memory_behind(
    readings: Any, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[torch.Tensor] = []

    def get_buffer(name: str, allocate: Callable[[], torch.Tensor]) -> torch.Tensor:
        held.append(allocate())
        return held[-1]

    monkeypatch.setattr(readings, "get_buffer", get_buffer)
    fail("wgmma", "mma", "plain")
    made = make(readings)
    assert [one.data_ptr() for one in held] == [made.gathered.buffer.data_ptr()]


def test_without_any_kernel_a_smaller_buffer_is_refused_with_the_size_that_would_do(
    readings: Any, fail: Fail
) -> None:
    fail("wgmma", "mma", "plain")
    with pytest.raises(ValueError, match="SGLANG_MLA_COMPACT_BUFFER_MIB=5"):
        make(readings, buffer_mib=1)


@pytest.mark.parametrize("error", [AttributeError("gone"), RuntimeError("ptxas died")], ids=str)
def test_whatever_the_compiler_raises_names_the_kernel(
    readings: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with pytest.raises(readings.attend.CompileError, match=str(error)) as raised:
        warm_up_raising(readings, monkeypatch, error)
    assert raised.value.kernel == "plain"


def test_a_full_device_is_not_taken_for_a_kernel_that_can_not_be_built(
    readings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        warm_up_raising(readings, monkeypatch, torch.OutOfMemoryError("full"))


def warm_up_raising(readings: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            raise error

    attend = readings.attend
    monkeypatch.setitem(attend.KERNELS, "plain", Kernel())
    attend.warm_up(readings.shape_of(16, CPU), 8, CPU, torch.bfloat16, torch.float8_e4m3fn)


def test_the_gathers_kernels_run_before_a_step_and_leave_it_right(readings: Any) -> None:
    """An extend may be the first to gather, in service."""
    gathered = make(readings).gathered
    gathered.buffer.fill_(7)
    gathered.warm_up(torch.float8_e4m3fn)
    assert (gathered.buffer == 7).all()
    assert gathered.rows.count.item() == 0
    indices = torch.tensor([9, 4, 9], dtype=torch.int32)
    gathered.place(indices, torch.tensor([3], dtype=torch.int32))
    assert (indices[0], gathered.rows.count.item()) == (indices[2], 2)


def test_where_triton_builds_nothing_the_start_ends_with_one_sentence(
    readings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = make(readings).gathered

    def claim(*_: Any) -> None:
        raise RuntimeError("ptxas died\nand said much more")

    monkeypatch.setattr(gathered.rows, "claim", claim)
    with pytest.raises(ValueError, match=r"Triton \d.*RuntimeError: ptxas died\): install the one"):
        gathered.warm_up(torch.float8_e4m3fn)
