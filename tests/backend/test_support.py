"""What is served and what is refused: one sentence for each refusal, with its remedy."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.overlay import load

REPOSITORY = Path(__file__).resolve().parents[2]
KERNELS = REPOSITORY / "bench/results/kernels.json"
VERIFY = REPOSITORY / "bench/results/verify.json"


support: Any = load("support")
policy: Any = load("policy")

# What differs from an ordinary FP8 pool, and words that the refusal must hold.
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "latent of another size": (
        {"kv_lora_rank": 256, "kv_cache_dim": 320},
        ["256 + 64", "--attention-backend triton"],
    ),
    "no rope": (
        {"qk_rope_head_dim": 0, "kv_cache_dim": 512},
        ["512 + 0", "--attention-backend triton"],
    ),
    "FP4 pool": (
        {"pool_class": "MLATokenToKVPoolFP4", "pool_dtype": "float4_e2m1fn_x2"},
        ["MLATokenToKVPoolFP4", "--kv-cache-dtype"],
    ),
    "int8 pool": ({"pool_dtype": "int8"}, ["int8", "--kv-cache-dtype"]),
    "unified memory": ({"unified_memory": True}, ["--enable-unified-memory"]),
    "unified pool class": (
        {"pool_class": "UnifiedMLATokenToKVPool"},
        ["UnifiedMLATokenToKVPool", "--enable-unified-memory"],
    ),
    "page-interleaved pool": (
        {"pool_class": "PageInterleaveMLATokenToKVPool"},
        ["PageInterleaveMLATokenToKVPool", "--enable-unified-memory"],
    ),
    "hierarchical sparse pool": (
        {"pool_class": "HiSparseDSATokenToKVPool"},
        ["HiSparseDSATokenToKVPool", "start without"],
    ),
    "656-byte rows": (
        {"kv_cache_dim": 656, "is_dsa": True},
        ["656", "--dsa-prefill-backend trtllm", "--dsa-decode-backend trtllm"],
    ),
    "DSA model under a prefill graph": (
        {"is_dsa": True, "prefill_graph": "breakable"},
        ["breakable", "--cuda-graph-backend-prefill disabled"],
    ),
    "decode context parallelism": ({"dcp_size": 2}, ["2", "--dcp-size 1"]),
    "PD multiplexing": ({"pdmux": True}, ["--enable-pdmux"]),
    "experimental FlashInfer backends": (
        {"experimental": True},
        ["FLASHINFER_ALLOW_EXPERIMENTAL_AUTO_BACKENDS=1", "start without"],
    ),
    "overlap plan stream": (
        {"plan_stream": True},
        ["SGLANG_ENABLE_OVERLAP_PLAN_STREAM", "start without"],
    ),
    "metadata glue graph": (
        {"glue_graph": True},
        ["SGLANG_ENABLE_METADATA_GLUE_GRAPH", "start without"],
    ),
    "prefill context parallelism": (
        {"cp_size": 8},
        ["size 8", "--attn-cp-size", "--enable-prefill-cp"],
    ),
    "topk 2": ({"topk": 2}, ["topk 2", "--speculative-eagle-topk 1"]),
}

SERVED: dict[str, dict[str, Any]] = {
    "e4m3": {},
    "e5m2": {"pool_dtype": "float8_e5m2"},
    "bfloat16": {"pool_dtype": "bfloat16"},
    "float16": {"pool_dtype": "float16"},
    "prefill graph": {"prefill_graph": "breakable"},
    "piecewise prefill graph": {"prefill_graph": "tc_piecewise"},
    "speculation with topk 1": {"topk": 1},
    "raw DSA rows without a prefill graph": {"is_dsa": True, "pool_class": "DSATokenToKVPool"},
    "a pool class of someone else": {"pool_class": "PrivateMLAPool"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_by_name_with_the_remedy(case: str) -> None:
    differs, words = REFUSED[case]
    reasons = support.refusals(support.Facts(**differs))
    assert len(reasons) == 1
    assert reasons[0].endswith(".")
    assert [word for word in words if word not in reasons[0]] == []


@pytest.mark.parametrize(("value", "allows"), [(None, False), ("0", False), ("1", True)])
def test_experimental_backends_are_allowed_as_flashinfer_reads_it(
    value: str | None, allows: bool
) -> None:
    variable = "FLASHINFER_ALLOW_EXPERIMENTAL_AUTO_BACKENDS"
    assert support.allows_experimental({} if value is None else {variable: value}) is allows


@pytest.mark.parametrize(
    ("value", "has"), [(None, False), ("", False), ("0", False), ("1", True), ("True", True)]
)
def test_a_plan_stream_is_there_as_sglang_reads_it(value: str | None, has: bool) -> None:
    variable = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"
    assert support.is_set(variable, {} if value is None else {variable: value}) is has


@pytest.mark.parametrize("case", SERVED)
def test_what_is_served_is_not_refused(case: str) -> None:
    assert support.refusals(support.Facts(**SERVED[case])) == []


def test_every_reason_is_given_at_once() -> None:
    reasons = support.refusals(support.Facts(dcp_size=4, topk=8, pdmux=False))
    assert len(reasons) == 2


@pytest.mark.parametrize(("dtype", "casts"), [("float8_e4m3fn", True), ("float8_e5m2", True),
                                              ("bfloat16", False), ("float16", False)])  # fmt: skip
def test_only_a_pool_that_stock_would_cast_is_read_compactly(dtype: str, casts: bool) -> None:
    assert support.casts_keys(support.Facts(pool_dtype=dtype)) is casts


def test_a_sparse_model_is_told_that_it_attends_densely() -> None:
    assert support.notices(support.Facts()) == []
    (notice,) = support.notices(support.Facts(is_dsa=True))
    assert "index_topk" in notice


def test_settings_have_defaults() -> None:
    settings = policy.read_settings({})
    assert settings == policy.Settings()


@pytest.mark.parametrize(
    ("strategy", "pool_rows", "capability", "heads", "read"),
    [
        ("auto", 1000, (9, 0), 128, "direct"),
        ("auto", 1000, (9, 0), None, "direct"),
        ("auto", 1000, (12, 0), 64, "direct"),
        ("auto", 1000, (12, 0), None, "direct"),
        ("auto", 1000, (8, 9), 16, "direct"),
        ("auto", 1000, (8, 6), 8, "gather"),
        ("auto", 1000, None, 8, "gather"),
        ("auto", 1_000_000, (8, 0), 128, "direct"),
        ("gather", 1000, (9, 0), 8, "gather"),
        ("gather", 1_000_000, (9, 0), 8, "direct"),
        ("direct", 1000, (8, 0), 64, "direct"),
    ],
)
def test_decode_gathers_only_where_the_buffer_holds_the_pool(
    strategy: str, pool_rows: int, capability: tuple[int, int] | None, heads: int | None, read: str
) -> None:
    means = policy.Means(pool_rows, capability)
    chosen, why = policy.strategy_of(means, policy.Settings(strategy), heads)
    assert chosen == read
    assert why and "None" not in why


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (12, 0)])
def test_with_the_plain_kernel_alone_many_rows_are_gathered(capability: tuple[int, int]) -> None:
    means = policy.Means(1000, capability, gluon=False)
    for rows, read in {8: "direct", 32: "direct", 64: "gather", None: "gather"}.items():
        assert policy.strategy_of(means, policy.Settings(), rows)[0] == read
    old = policy.Means(1000, (8, 6), gluon=False)
    assert policy.strategy_of(old, policy.Settings(), 8)[0] == "gather"


def test_without_any_kernel_the_buffer_has_to_hold_the_pool() -> None:
    for strategy in ("auto", "direct"):
        means = policy.Means(1000, (9, 0), gluon=False, plain=False)
        assert policy.strategy_of(means, policy.Settings(strategy), 8)[0] == "gather"
    means = policy.Means(1_000_000, (9, 0), gluon=False, plain=False)
    with pytest.raises(ValueError, match=r"SGLANG_MLA_COMPACT_BUFFER_MIB=1099\.$"):
        policy.strategy_of(means, policy.Settings(), 8)
    enough = policy.Settings(buffer_mib=1099)
    assert policy.strategy_of(means, enough, 8)[0] == "gather"


@pytest.mark.parametrize(
    ("capability", "direct", "gather"),
    [((9, 0), "direct", "gather-fa3"), ((12, 0), "direct-portable", "gather-fa2")],
)
def test_direct_reading_was_faster_wherever_it_is_chosen(
    capability: tuple[int, int], direct: str, gather: str
) -> None:
    files = [file for file in (KERNELS, VERIFY) if file.exists()]
    for point in (point for file in files for point in json.loads(file.read_text())["points"]):
        rows = math.prod(map(int, point["point"].partition(":")[0].split("x")))
        means = policy.Means(1000, capability)
        chosen, _ = policy.strategy_of(means, policy.Settings(), rows)
        times = {name: entry.get("us") for name, entry in point["strategies"].items()}
        if chosen == "direct" and times.get(direct) and times.get(gather):
            faster = statistics.median(times[direct]) < statistics.median(times[gather])
            assert faster, f"{direct} at {point['point']}"


@pytest.mark.parametrize("strategy", ["auto", "gather", "direct", "stock"])
def test_every_strategy_is_read(strategy: str) -> None:
    environment = {policy.STRATEGY_VARIABLE: strategy, policy.BUFFER_VARIABLE: "64"}
    assert policy.read_settings(environment) == policy.Settings(strategy, 64)


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "64MiB", "lots", " 64"])
def test_a_buffer_that_is_no_size_is_refused_in_one_sentence(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        policy.read_settings({policy.BUFFER_VARIABLE: value})
    assert policy.BUFFER_VARIABLE in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["", "fast", "GATHER"])
def test_an_unknown_strategy_is_refused_with_the_known_ones(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        policy.read_settings({policy.STRATEGY_VARIABLE: value})
    assert policy.STRATEGY_VARIABLE in str(caught.value)
    assert [name for name in policy.STRATEGIES if name not in str(caught.value)] == []


def test_the_buffer_never_has_more_rows_than_the_pool_or_the_budget() -> None:
    one = policy.Settings(buffer_mib=1)
    for gathers in (True, False):
        assert policy.capacity_rows(500, one, gathers=gathers) == 500
        rows = policy.capacity_rows(10**9, one, gathers=gathers)
        assert rows == 2**20 // 1152
        assert rows * policy.COMPACT_ROW_BYTES <= 2**20


def test_a_buffer_for_eager_extends_alone_is_smaller_by_default() -> None:
    sizes = {
        gathers: policy.capacity_rows(10**9, policy.Settings(), gathers=gathers) * 1152 >> 20
        for gathers in (True, False)
    }
    assert sizes == {True: 1023, False: 255}


def test_they_import_neither_torch_nor_sglang() -> None:
    """`load` stands in for the packages above, which a tool that runs before a start has not."""
    check = (
        "import sys\n"
        "from bench.overlay import load\n"
        "load('support'), load('policy')\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'sglang', 'triton')))\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, cwd=REPOSITORY)
