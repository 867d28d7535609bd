"""Every configuration of the direct kernel compiles for its card, fits and spills nothing."""

from __future__ import annotations

import pytest
from sglang.srt.layers.attention.flashinfer_mla_compact import direct
from sglang.srt.layers.attention.flashinfer_mla_compact.direct_configs import CONFIGS, Config

from tests.kernels import aot

PACKAGE = "sglang.srt.layers.attention.flashinfer_mla_compact"
SPLITS = f"{PACKAGE}.direct_splits"
POINTERS = {
    "q_nope": "*bf16",
    "q_rope": "*bf16",
    "pool": "*u8",
    "slots": "*i32",
    "items": "*i32",
    "item_count": "*i32",
    "partial": "*fp32",
    "partial_lse": "*fp32",
    "out": "*bf16",
    "lse": "*fp32",
}
STRIDES = (
    "nope_token",
    "nope_head",
    "rope_token",
    "rope_head",
    "pool_row",
    "out_token",
    "out_head",
)
Target = tuple[int, Config]
TARGETS: list[Target] = [
    (card, config) for card, table in CONFIGS.items() for config in table.values()
]
WGMMA_KERNEL = "direct_wgmma:attend_splits_wgmma"
WGMMA = CONFIGS[90][64]


def attend_job(card: int, config: Config, heads: int, group: int = 1, codec: str = "") -> aot.Job:
    kernel = "direct_kernels:attend_splits"
    if config.wgmma:
        wide = config.rows == 64
        kernel = "direct_wgmma_wide:attend_splits_wide" if wide else WGMMA_KERNEL
    return aot.Job(
        kernel=f"{PACKAGE}.{kernel}",
        arch=card,
        types={**POINTERS, **dict.fromkeys(STRIDES, "i32"), "scale": "fp32"},
        constants={
            "HEADS": heads,
            "GROUP": group,
            "ROWS": config.rows,
            "TOKENS": config.tokens,
            "CODEC": codec or ("e4m3" if card >= 89 else "e4m3_bits"),
            "WRITE_LSE": True,
        },
        warps=config.warps,
        stages=config.stages,
        registers=config.registers,
        aligned=STRIDES,
    )


@pytest.fixture(scope="module")
def reports() -> dict[Target, aot.Report]:
    jobs = [attend_job(card, config, heads=config.rows) for card, config in TARGETS]
    return dict(zip(TARGETS, aot.compile_all(jobs), strict=True))


@pytest.mark.parametrize(("card", "config"), TARGETS)
def test_configuration_fits_its_card(
    reports: dict[Target, aot.Report], card: int, config: Config
) -> None:
    report = reports[card, config]
    print(f"sm_{card}, {config}: {report}")
    assert report.spilled == 0
    assert report.shared <= aot.SHARED_LIMIT[card]
    assert report.registers * config.warps * 32 * config.blocks <= 65_536
    if config.wgmma:
        _check_wgmma(report, config)
        return
    assert report.counts["async"], "rows must be copied asynchronously"
    # 4 instructions a warp for each 16 x 8 x 16 product: a tile that is decoded twice, or a
    # product done twice, shows here.
    assert report.counts["wgmma"] or report.counts["mma"] == _products(config)


def _check_wgmma(report: aot.Report, config: Config) -> None:
    """Each byte is decoded once, and no product is done twice."""
    wide = config.rows == 64
    words = config.tokens * 576 // 4 // (config.warps * 32)
    assert report.counts["decode"] == 2 * words
    assert report.counts["mma"] == 0
    scores = 576 // 16
    values = config.tokens // 16 * (1 if wide else 512 // (16 * config.warps))
    assert report.counts["wgmma"] == scores + values


def _products(config: Config) -> int:
    """mma.sync instructions a warp for one tile if no warp repeats another's work."""
    along_tokens = max(config.tokens // 8 // config.warps, 1)
    scores: int = config.rows // 16 * along_tokens * (576 // 16)
    values: int = config.rows // 16 * (512 // 8 // config.warps) * (config.tokens // 16)
    return scores + values


def test_every_decoder_compiles() -> None:
    jobs = [attend_job(card, CONFIGS[card][16], heads=16, codec="e5m2") for card in (80, 89)]
    jobs.append(attend_job(90, WGMMA, heads=64, codec="e5m2"))
    assert [report.spilled for report in aot.compile_all(jobs)] == [0] * 3


def test_groups_of_tokens_spill_no_more_than_their_limits() -> None:
    jobs = [
        attend_job(90, CONFIGS[90][16], heads=8, group=2),
        attend_job(90, CONFIGS[90][64], heads=20, group=4),
        attend_job(100, CONFIGS[100][32], heads=20, group=4),
        attend_job(120, CONFIGS[120][32], heads=16, group=2),
    ]
    assert max(report.spilled for report in aot.compile_all(jobs)) <= 40


def test_plan_and_merge_compile_for_the_oldest_and_the_newest_card() -> None:
    numbers = dict.fromkeys(("requests", "wave", "shortest", "out_token", "out_head"), "i32")
    types = {**POINTERS, **numbers, "token_splits": "*i32", "kv_indptr": "*i32"}
    plan = {"GROUP": 4, "RAGGED": True, "TOKENS": 32, "BLOCK": direct.PLAN_BLOCK}
    merge = {"HEADS": 16, "GROUP": 1, "COLUMNS": 512, "EXPECTED": 16}
    merge |= {"WRITE_LSE": True}
    jobs = [
        job
        for card in (80, 120)
        for job in (
            aot.Job(f"{SPLITS}:plan_splits", card, {**types, "qo_indptr": "*i32"}, plan, 4, 3),
            aot.Job(f"{SPLITS}:merge_splits", card, types, merge, 4, 3),
        )
    ]
    # One request and no qo_indptr are constants to the compiler.
    decode = {**plan, "RAGGED": False, "qo_indptr": None, "requests": 1}
    jobs.append(aot.Job(f"{SPLITS}:plan_splits", 90, types, decode, 4, 3))
    assert [report.spilled for report in aot.compile_all(jobs)] == [0] * 5
