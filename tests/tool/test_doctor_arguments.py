"""The doctor on the arguments that a server is to be started with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctortool import known_flags, server_arguments

from tests.tool.conftest import NAMED, SERVES, Doctor, Overlay
from tests.tool.toy import Toy, install, uninstall

NAME = "flashinfer_mla_compact"
DRAFTS = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"]
DRAFTS += ["--speculative-num-draft-tokens", "4"]

pytestmark = pytest.mark.usefixtures("no_card")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--dcp-size", "2"], "--dcp-size 1"),
        (["--decode-context-parallel-size=2"], "--dcp-size 1"),
        (["--enable-unified-memory"], "--enable-unified-memory"),
        (["--enable-pdmux"], "--enable-pdmux"),
        (["--kv-cache-dtype", "fp4_e2m1"], "--kv-cache-dtype"),
        ([*DRAFTS, "--speculative-eagle-topk", "4"], "topk 1"),
        (["--speculative-algorithm", "NGRAM"], "bfs-breadth 1"),
    ],
)
def test_refused_arguments_are_named_with_their_remedy(
    doctor: Doctor, arguments: list[str], remedy: str
) -> None:
    line = doctor(*SERVES, *arguments)["server"]
    assert line["mark"] == "fix"
    assert remedy in line["remedy"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--page-size", "64", "--tp", "8", "--mem-fraction-static=0.9", "--trust-remote-code"],
        [*DRAFTS, "--speculative-eagle-topk", "1"],
        ["--speculative-algorithm", "NGRAM", "--speculative-ngram-max-bfs-breadth", "1"],
        ["--kv-cache-dtype", "fp8_e5m2"],
    ],
)
def test_served_arguments_are_well(doctor: Doctor, arguments: list[str]) -> None:
    assert doctor(*SERVES, *arguments)["server"]["mark"] == "ok"


@pytest.mark.parametrize("more", [[], ["--dcp-size", "8"], ["--enable-unified-memory"]])
def test_a_bf16_pool_is_said_to_be_stock_whatever_else_is_asked_for(
    doctor: Doctor, more: list[str]
) -> None:
    line = doctor(*NAMED, "--kv-cache-dtype", "bfloat16", *more)["server"]
    assert line["mark"] == "note" and "stock" in line["found"]


def test_a_cache_dtype_that_is_missing_is_to_be_added(doctor: Doctor) -> None:
    line = doctor(*NAMED)["server"]
    assert line["mark"] == "fix" and "--kv-cache-dtype fp8_e4m3" in line["remedy"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", "server.yaml"],
        ["--config=server.yaml"],
        ["--json-model-override-args", "{}"],
        ["--speculative-algo", "EAGLE", "--speculative-eagle-topk", "4"],
        ["--enable-pdm"],
        ["--dcp-s", "2"],
        ["--model-path", "zai-org/GLM-5"],
        ["--no-such-flag"],
        ["--device", "cpu"],
        ["stray"],
        ["--kv-cache-dtype", "float16"],
        ["--decode-attention-backend", "fa3"],
        ["--cuda-graph-config", "{"],
        ["--enable-piecewise-cuda-graph"],
    ],
)
def test_what_the_table_can_not_judge_is_never_well(doctor: Doctor, arguments: list[str]) -> None:
    line = doctor(*SERVES, *arguments)["server"]
    assert line["mark"] != "ok"


def test_a_file_with_a_text_that_yaml_takes_for_a_boolean_is_left_to_sglang(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("served-model-name: true\nenable-pdmux: true\n")
    options = known_flags.parse(["--config", str(tmp_path / "server.yaml")])
    assert options.passed_over == ["--config"]


def test_a_config_that_is_broken_is_not_judged(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    line = doctor(*SERVES, "--model-path", str(tmp_path))["server"]
    assert (line["mark"], line["found"][:10]) == ("note", "not judged")


def test_what_sglang_picks_by_card_or_checkpoint_is_not_judged(
    doctor: Doctor, tmp_path: Path
) -> None:
    states: list[dict[str, Any]] = [{"index_topk": 2048}, {"quantization_config": {}}]
    for fields in states:
        model = config(tmp_path, kv_lora_rank=512, **fields)
        found = doctor(*NAMED, "--model-path", model)["server"]
        assert found["mark"] == "note" and "give --kv-cache-dtype" in found["found"]


def test_a_prefill_role_has_quantised_rows_whatever_decode_asks_for(
    overlay: Overlay, python: Path, tmp_path: Path
) -> None:
    model = config(tmp_path, kv_lora_rank=512, index_topk=2048)
    arguments = [*SERVES, "--model-path", model, "--disable-prefill-cuda-graph"]
    arguments += ["--dsa-decode-backend", "trtllm", "--disaggregation-mode", "prefill"]
    named = ["--python", python, "--capability", "9.0"]
    assert "656 bytes" in overlay("doctor", *named, "--", *arguments).out


@pytest.mark.parametrize(
    ("fields", "mark"), [({"index_topk": 512}, "fix"), ({"hidden_size": 4096}, "note")]
)
def test_a_model_without_a_latent_is_told_in_one_line(
    overlay: Overlay, python: Path, tmp_path: Path, fields: dict[str, int], mark: str
) -> None:
    arguments = ["--python", python, "--json", "--", *SERVES]
    result = overlay("doctor", *arguments, "--model-path", config(tmp_path, **fields))
    lines = [one for one in json.loads(result.out) if one["subject"] in ("model", "server")]
    assert [line["mark"] for line in lines] == [mark]


def test_a_server_with_another_backend_is_told_the_flag(overlay: Overlay, python: Path) -> None:
    result = overlay("doctor", "--python", python, "--", "--kv-cache-dtype", "fp8_e4m3")
    assert f"add --attention-backend {NAME}" in result.out


def config(folder: Path, **fields: Any) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": "deepseek_v3"} | fields))
    return str(folder)


def test_a_models_config_tells_its_head_dims(doctor: Doctor, tmp_path: Path) -> None:
    model = config(tmp_path, kv_lora_rank=256, qk_rope_head_dim=32)
    line = doctor(*SERVES, "--model-path", model)["server"]
    assert "256 + 32" in line["found"]
    nested = config(tmp_path, text_config={"kv_lora_rank": 512, "qk_rope_head_dim": 0})
    assert "512 + 0" in doctor(*SERVES, "--model", nested)["server"]["found"]


@pytest.mark.parametrize(
    ("arguments", "heads"),
    [
        ([], 64),
        (["--tp-size", "8"], 8),
        (["--tp", "8", "--dp", "8", "--enable-dp-attention"], 64),
    ],
)
def test_the_heads_of_a_rank_follow_the_parallel_sizes(
    tmp_path: Path, arguments: list[str], heads: int
) -> None:
    model = config(tmp_path, num_attention_heads=64)
    assert (
        server_arguments.query_heads(known_flags.parse(["--model-path", model, *arguments]))
        == heads
    )
    assert server_arguments.query_heads(known_flags.parse(arguments)) is None


def test_the_heads_of_a_rank_decide_where_triton_is_too_old_for_the_kernel(
    toy: Toy, doctor: Doctor, card: Callable[[str, str], None], tmp_path: Path
) -> None:
    card("12.0", "13.0")
    arguments = [*SERVES, "--model-path", config(tmp_path, num_attention_heads=64)]
    assert doctor(*arguments)["strategy"]["found"].startswith("direct")
    uninstall(toy, "triton")
    install(toy, "triton", "3.5.1")
    assert doctor(*SERVES)["strategy"]["found"].startswith("gather")
    assert doctor(*arguments)["strategy"]["found"].startswith("gather")
    assert doctor(*arguments, "--tp-size", "8")["strategy"]["found"].startswith("direct")


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["--cuda-graph-backend-prefill", "disabled"], ["656 bytes"]),
        (["--dsa-prefill-backend", "trtllm", "--dsa-decode-backend", "trtllm"], ["breakable"]),
        (["--dsa-decode-backend", "trtllm", "--disable-prefill-cuda-graph"], []),
    ],
)
def test_a_dsa_model_needs_raw_rows_and_no_prefill_graph(
    overlay: Overlay, python: Path, tmp_path: Path, arguments: list[str], refused: list[str]
) -> None:
    dims = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    model = config(tmp_path, index_topk=2048, **dims)
    asked = ["--json", "--python", python, "--capability", "9.0", "--", *SERVES]
    result = overlay("doctor", *asked, "--model-path", model, *arguments)
    server = [line for line in json.loads(result.out) if line["subject"] == "server"]
    mended = [line["found"] for line in server if line["mark"] == "fix"]
    assert len(mended) == len(refused)
    assert all(words in found for words, found in zip(refused, mended, strict=True))
    assert any("sparse attention" in line["found"] for line in server)


@pytest.mark.parametrize(("capability", "raw"), [("9.0", False), ("10.0", True)])
def test_a_dsa_models_default_rows_depend_on_the_card(
    overlay: Overlay,
    python: Path,
    card: Callable[[str, str], None],
    tmp_path: Path,
    capability: str,
    raw: bool,
) -> None:
    card(capability, "13.0")
    model = config(tmp_path, kv_lora_rank=512, index_topk=2048)
    arguments = [*SERVES, "--model-path", model, "--disable-prefill-cuda-graph"]
    result = overlay("doctor", "--python", python, "--", *arguments)
    assert ("656 bytes" not in result.out) is raw


@pytest.mark.parametrize(
    ("release", "arguments", "graph"),
    [
        ("0.5.9", [], "disabled"),
        ("0.5.9", ["--enable-piecewise-cuda-graph"], "tc_piecewise"),
        ("0.5.17", [], "breakable"),
        ("0.5.23", ["--cuda-graph-backend-prefill", "full"], "full"),
        ("0.5.23", ["--disable-prefill-cuda-graph"], "disabled"),
    ],
)
def test_the_prefill_graph_by_default_depends_on_the_release(
    release: str, arguments: list[str], graph: str
) -> None:
    support = server_arguments.load("support")
    facts = server_arguments.facts(known_flags.parse(arguments), support, None, release)
    assert facts.prefill_graph == graph


def test_a_table_that_decides_is_named_with_the_reason(
    toy: Toy, overlay: Overlay, doctor: Doctor
) -> None:
    assert "not applied" in doctor(*SERVES)["arguments"]["found"]
    overlay("apply", "--tree", toy.tree)
    line = doctor(*SERVES)["arguments"]
    assert line["mark"] == "note"
    assert line["found"].startswith("judged by a table, as sglang can't be asked there (")


@pytest.mark.parametrize(
    "arguments", [["--enable-deterministic-inference"], ["--model-path", "zai-org/GLM-5"]]
)
def test_what_sglang_alone_can_tell_is_not_judged(doctor: Doctor, arguments: list[str]) -> None:
    assert doctor(*SERVES, *arguments)["server"]["found"].startswith("not judged")


def test_arguments_without_a_model_are_not_judged(doctor: Doctor) -> None:
    assert doctor("--attention-backend", NAME)["server"]["found"].startswith("not judged")


def test_the_strategy_of_stock_refuses_nothing(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "stock")
    assert doctor(*SERVES, "--enable-pdmux")["server"]["mark"] == "note"


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("enable-pdmux: true\n", "fix"),
        ("# plain\n\nenable-pdmux: false\n", "ok"),
        ("tp: [8]\n", "note"),
    ],
)
def test_a_file_of_plain_lines_is_read_by_the_table(
    doctor: Doctor, tmp_path: Path, text: str, mark: str
) -> None:
    (tmp_path / "server.yaml").write_text(text)
    assert doctor(*SERVES, "--config", f"{tmp_path}/server.yaml")["server"]["mark"] == mark


def test_a_wrong_value_is_a_usage_error(overlay: Overlay, python: Path) -> None:
    result = overlay("doctor", "--python", python, "--", "--dcp-size", "two")
    assert result.code == 2
    assert "--dcp-size" in result.err and len(result.err.splitlines()) == 1


def test_the_backends_own_module_is_asked() -> None:
    support = server_arguments.load("support")
    assert support.NAME == NAME
    assert "torch" not in vars(support)
