"""The gather, row and write kernels compile for every card that is served, and fit it."""

from __future__ import annotations

import pytest
from sglang.srt.layers.attention.flashinfer_mla_compact.gather import gather, rows
from sglang.srt.layers.attention.flashinfer_mla_compact.pool import write

from tests.kernels import aot
from tests.kernels.conftest import Compiled

PACKAGE = "sglang.srt.layers.attention.flashinfer_mla_compact"
CARDS = (80, 86, 89, 90, 100, 120)
GATHER = {
    "pool": "*i32",
    "pool_stride": "i32",
    "slots": "*i32",
    "count": "*i32",
    "capacity": "i32",
}
TABLE = {"row_of_slot": "*i32", "stamps": "*i32", "stamp": "i32", "capacity": "i32"}
STEP = {"indices": "*i32", "total": "*i32"}
BLOCK = {"BLOCK": rows.BLOCK}
ROWS = {
    "claim_kernel": ({**STEP, "slots": "*i32", "count": "*i32", **TABLE}, BLOCK),
    "translate_kernel": ({**STEP, "row_of_slot": "*i32"}, BLOCK),
}
WRITE = {
    "pool": "*u8",
    "pool_stride": "i32",
    "slots": "*i64",
    "slots_stride": "i32",
    "nope_stride": "i32",
    "rope_stride": "i32",
}
Case = tuple[int, str, bool]
CASES: list[Case] = [
    (card, out, e4m3) for card in CARDS for out in ("*bf16", "*fp16") for e4m3 in (True, False)
]


def gather_job(card: int, out: str, e4m3: bool) -> aot.Job:
    constants = {"IS_E4M3": e4m3, "TILE": gather.ROWS_PER_TILE}
    types = {**GATHER, "out": out}
    kernel = f"{PACKAGE}.gather.gather:gather_rows_kernel"
    return aot.Job(
        kernel, card, types, constants, warps=gather.WARPS, stages=3, aligned=("pool_stride",)
    )


def name_of(e4m3: bool) -> str:
    return "e4m3" if e4m3 else "e5m2"


@pytest.fixture(scope="module")
def reports() -> dict[Case, aot.Report]:
    return dict(zip(CASES, aot.compile_all([gather_job(*case) for case in CASES]), strict=True))


@pytest.mark.parametrize(("card", "out", "e4m3"), CASES)
def test_gather_fits_its_card_and_needs_no_conversion(
    reports: dict[Case, aot.Report], compiled: Compiled, card: int, out: str, e4m3: bool
) -> None:
    report = reports[card, out, e4m3]
    compiled(card, f"gather, {name_of(e4m3)} to {out[1:]}", report)
    assert report.spilled == 0
    assert report.shared <= aot.SHARED_LIMIT[card]
    assert report.counts["decode"] == 0, "cards before sm_89 have no such instruction"


def test_row_kernels_compile_for_every_card() -> None:
    jobs = [
        aot.Job(f"{PACKAGE}.gather.rows:{kernel}", card, types, constants, 4, 3)
        for card in CARDS
        for kernel, (types, constants) in ROWS.items()
    ]
    assert {report.spilled for report in aot.compile_all(jobs)} == {0}


@pytest.mark.parametrize("e4m3", [True, False])
def test_the_write_kernel_needs_no_conversion_and_no_memory_but_its_own(
    compiled: Compiled, e4m3: bool
) -> None:
    types = {**WRITE, "nope": "*bf16", "rope": "*bf16"}
    constants = {"IS_E4M3": e4m3, "TOP": 0x7F, "RESERVED": 0}
    kernel = f"{PACKAGE}.pool.write:write_rows_kernel"
    jobs = [aot.Job(kernel, card, types, constants, write.WARPS, 3) for card in CARDS]
    for card, report in zip(CARDS, aot.compile_all(jobs), strict=True):
        compiled(card, f"write, {name_of(e4m3)}", report)
        assert (report.spilled, report.shared, report.counts["decode"]) == (0, 0, 0)
