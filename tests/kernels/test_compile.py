"""Every configuration of the direct kernel compiles for its card, fits and spills nothing."""

from __future__ import annotations

import pytest
from sglang.srt.layers.attention.flashinfer_mla_compact.direct import attend
from sglang.srt.layers.attention.flashinfer_mla_compact.direct.configs import CONFIGS, PLAIN, Config

from tests.kernels import aot
from tests.kernels.conftest import Compiled

PACKAGE = "sglang.srt.layers.attention.flashinfer_mla_compact"
SPLITS = f"{PACKAGE}.direct.splits"
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
] + [(card, PLAIN[blocks][rows]) for card, blocks in ((86, 1), (90, 2)) for rows in (16, 32)]
KERNELS = {
    "plain": "plain:attend_splits_plain",
    "mma": "mma:attend_splits_mma",
    "wgmma": "wgmma:attend_splits_wgmma",
}


def attend_job(card: int, config: Config, heads: int, group: int = 1, codec: str = "") -> aot.Job:
    return aot.Job(
        kernel=f"{PACKAGE}.direct.kernels.{KERNELS[config.kernel]}",
        arch=card,
        types={**POINTERS, **dict.fromkeys(STRIDES, "i32"), "scale": "fp32"},
        constants={
            "HEADS": heads,
            "GROUP": group,
            "ROWS": config.rows,
            "TOKENS": config.tokens,
            "CODEC": codec or ("e4m3" if card >= 89 else "e4m3_bits"),
            "WRITE_LSE": True,
            "EARLY": card >= 90 and config.kernel != "plain",
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
    reports: dict[Target, aot.Report], compiled: Compiled, card: int, config: Config
) -> None:
    report = reports[card, config]
    compiled(card, f"direct, {config.kernel}, {config.rows} x {config.tokens}", report)
    assert report.spilled == 0
    assert report.shared <= aot.SHARED_LIMIT[card]
    shared = config.blocks * (report.shared + aot.SHARED_RESERVED)
    assert shared <= aot.SHARED_LIMIT[card] + aot.SHARED_RESERVED
    warps = config.warps + (4 if config.kernel == "wgmma" else 0)  # that make weights
    assert report.registers * warps * 32 * config.blocks <= 65_536
    # What is decoded twice, or a product that is done twice, shows in these counts.
    counts = {key: report.counts[key] for key in ("mma", "wgmma", "decode")}
    expected = {"plain": _plain, "mma": _mma, "wgmma": _wgmma}[config.kernel](config)
    if config.kernel == "plain" or card < 89:
        del counts["decode"], expected["decode"]
    assert counts == expected
    assert config.kernel == "wgmma" or report.counts["async"], "rows must be copied asynchronously"


def _wgmma(config: Config) -> dict[str, int]:
    """Two conversions a thread for each of its words, before the loop and in it; products once."""
    words = config.tokens * 576 // 4 // (config.warps * 32)
    return {"mma": 0, "wgmma": 576 // 16 + config.tokens // 16, "decode": 2 * 2 * words}


def _mma(config: Config) -> dict[str, int]:
    """Each stands there twice: of the first tile (scores) or the last (values), and in the loop."""
    row_tiles = config.rows // 16
    scores = row_tiles * (config.tokens // 8) * (576 // config.warps // 16)
    values = row_tiles * (512 // 8 // config.warps) * (config.tokens // 16)
    key_words = config.tokens * (576 // 4) // (config.warps * 32)
    value_words = config.tokens * (512 // 4) // (config.warps * 32)
    decoded = 2 * 2 * (key_words + value_words)
    return {"mma": 2 * (scores + values), "wgmma": 0, "decode": decoded}


def _plain(config: Config) -> dict[str, int]:
    """mma.sync instructions a warp for one tile if no warp repeats another's work."""
    along_tokens = max(config.tokens // 8 // config.warps, 1)
    scores = config.rows // 16 * along_tokens * (576 // 16)
    values = config.rows // 16 * (512 // 8 // config.warps) * (config.tokens // 16)
    return {"mma": scores + values, "wgmma": 0, "decode": 0}


def test_every_decoder_compiles() -> None:
    jobs = [attend_job(card, CONFIGS[card][16], heads=16, codec="e5m2") for card in (80, 89)]
    jobs.append(attend_job(90, CONFIGS[90][64], heads=64, codec="e5m2"))
    jobs.append(attend_job(89, PLAIN[1][16], heads=16, codec="e5m2"))
    assert [report.spilled for report in aot.compile_all(jobs)] == [0] * 4


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
    plan = {"GROUP": 4, "RAGGED": True, "TOKENS": 32, "BLOCK": attend.PLAN_BLOCK}
    merge = {"HEADS": 16, "GROUP": 1, "COLUMNS": 512, "EXPECTED": 16}
    merge |= {"WRITE_LSE": True, "EARLY": False}
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
