"""The doctor on servers of seven models, told in five styles, with sglang and without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from doctortool import known_flags, server
from doctortool.cli import main
from doctortool.line import FIX, NOTE, WELL, Line

from tests.trees import applied_tree

NAME = "flashinfer_mla_compact"
RELEASE = "0.5.23"
CARDS = ("9.0", "10.0", "12.0")
FOLDER = Path(__file__).parent / "models"
Answers = dict[str, dict[str, Any]]
DENSE = ("deepseek-r1", "kimi-k2.5", "glm-4.7-flash")
MODELS = (*DENSE, "glm-5", "glm-5.3-flash", "deepseek-v4", "qwen3")
CONFIG = f"attention-backend: {NAME}\nkv-cache-dtype: fp8_e4m3\nenable-pdmux: true\n"
DRAFTS = "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
STYLES = {
    "plain": f"--attention-backend {NAME} --kv-cache-dtype fp8_e4m3",
    "split": f"--prefill-attention-backend={NAME} --decode-attention-backend={NAME} "
    "--kv-cache-dtype=fp8_e5m2 --speculative-algorithm=ngram",
    "short": f"--attention-b {NAME} --kv-cache-d fp8_e4m3 --speculative-algo EAGLE {DRAFTS}",
    "config": "--config CONFIG",
    "json": f"--attention-backend {NAME} --cuda-graph-config GRAPH",
}
GRAPH = '{"prefill":{"backend":"disabled"}}'
# What sglang 0.5.23 says itself, or the backend at its start, read from both; each by some words.
DENSE_ANSWERS = {
    "plain": "nothing in these",
    "split": "topk 10",
    "short": "topk 4",
    "config": "PD multiplexing",
    "json": "needs no cast",
}
ROWS = {"9.0": "656 bytes", "10.0": "breakable prefill graph", "12.0": "656 bytes"}
GLM_5 = {"split": "only supports bf16/bfloat16 or fp8_e4m3", "short": "page_size > 1"}
GLM_5_JSON = {"9.0": "needs no cast", "10.0": "nothing in these", "12.0": "656 bytes"}
V4 = {"split": "fp8_e5m2 is not supported", "short": "topk == 1 is supported for Deepseek"}


def expected(model: str, style: str, card: str) -> str:
    """The first finding, by some of its words."""
    if model in DENSE:
        return DENSE_ANSWERS[style]
    if model == "qwen3":
        return "no MLA model"
    if model == "deepseek-v4":
        return V4.get(style, "sglang runs dsv4")
    if style == "json" and (model == "glm-5" or card == "9.0"):
        return GLM_5_JSON[card]
    return GLM_5.get(style, ROWS[card] if model == "glm-5" else "512 + 0")


def command_lines(folder: Path) -> dict[str, list[str]]:
    config = folder / "server.yaml"
    config.write_text(CONFIG)
    return {
        f"{model} {style}": [
            *("--model-path", str(FOLDER / model)),
            *(text.replace("CONFIG", str(config)).replace("GRAPH", GRAPH).split()),
        ]
        for model in MODELS
        for style, text in STYLES.items()
    }


# Further arguments: the model, a card, what is given, the first mark and some of its words.
FP8 = f"--attention-backend {NAME} --kv-cache-dtype fp8_e4m3"
OWN_DRAFT = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
OWN_DRAFT += "--speculative-num-draft-tokens 4 --speculative-draft-model-path NARROW"
ROLE = "--disaggregation-mode prefill"
SPLIT = "--tp 8 --attn-cp-size 8 --enable-prefill-cp --cp-strategy interleave"
SPLIT += " --enable-dsa-cache-layer-split --cuda-graph-backend-prefill disabled"
RAW = "--dsa-prefill-backend trtllm --dsa-decode-backend trtllm"
MORE = {
    "a file names the model": ("", "9.0", "--config WHOLE", "fix", "PD multiplexing"),
    "short for pdmux": ("deepseek-r1", "9.0", f"{FP8} --enable-pdm", "fix", "PD multiplexing"),
    "short for dcp": ("deepseek-r1", "9.0", f"{FP8} --tp 8 --dcp-s 2", "fix", "size 2"),
    "auto, quantised": ("glm-5", "12.0", f"--attention-backend {NAME}", "fix", "656 bytes"),
    "auto, raw": ("glm-5", "10.0", f"--attention-backend {NAME}", "fix", "breakable"),
    "auto, uncast": ("glm-5", "9.0", f"--attention-backend {NAME}", "fix", "needs no cast"),
    "stated": ("stated", "9.0", f"--attention-backend {NAME}", "ok", "nothing"),
    "prefill role": (
        "glm-5",
        "9.0",
        f"{FP8} --dsa-decode-backend trtllm {ROLE}",
        "fix",
        "656 bytes",
    ),
    "raw prefill role": (
        "glm-5",
        "9.0",
        f"{FP8} {RAW} {ROLE} --cuda-graph-backend-prefill disabled",
        "ok",
        "nothing",
    ),
    "layer split": ("glm-5", "9.0", f"{FP8} {RAW} {ROLE} {SPLIT}", "fix", "LayerSplit"),
    "BF16 asked for": (
        "glm-5",
        "9.0",
        f"--attention-backend {NAME} --kv-cache-dtype bfloat16",
        "note",
        "needs no cast",
    ),
    "BF16 and DCP": (
        "deepseek-r1",
        "9.0",
        f"--attention-backend {NAME} --kv-cache-dtype bfloat16 --tp 8 --dcp-size 8",
        "note",
        "needs no cast",
    ),
    "deterministic": (
        "deepseek-r1",
        "9.0",
        f"{FP8} --enable-deterministic-inference",
        "fix",
        "deterministic inference",
    ),
    "a draft's own rows": (
        "deepseek-r1",
        "9.0",
        f"{FP8} {OWN_DRAFT}",
        "fix",
        "of the draft, kv_lora",
    ),
    "a draft that is not cast": (
        "deepseek-r1",
        "9.0",
        f"{FP8} {OWN_DRAFT} --speculative-draft-kv-cache-dtype bf16",
        "ok",
        "nothing",
    ),
    "a draft alone": (
        "deepseek-r1",
        "9.0",
        f"--speculative-draft-attention-backend {NAME} --kv-cache-dtype fp8_e4m3 {OWN_DRAFT}",
        "fix",
        "kv_lora_rank + qk_rope_head_dim is 256",
    ),
    "stated next to the config": (
        "modelopt",
        "9.0",
        f"--attention-backend {NAME}",
        "ok",
        "nothing",
    ),
    "a flag that is none": ("deepseek-r1", "9.0", f"{FP8} --no-such-flag", "fix", "unrecognized"),
    "no flag": ("deepseek-r1", "9.0", "--kv-cache-dtype fp8_e4m3", "fix", "no attention-backend"),
}
UNJUDGED = {
    "no folder": f"--model-path zai-org/GLM-5 {FP8}",
    "a draft that is no folder": f"--model-path {FOLDER}/deepseek-r1 {FP8} --speculative-algorithm"
    f" EAGLE {DRAFTS} --speculative-draft-model-path zai-org/draft",
    "broken": f"--model-path BROKEN {FP8}",
}


def more_runs(folder: Path) -> dict[str, list[str]]:
    made = more_models(folder)
    whole = folder / "whole.yaml"
    whole.write_text(f"model-path: {FOLDER}/deepseek-r1\n{CONFIG}")
    paths = {model: str(FOLDER / model) for model in MODELS} | made
    more = {
        name: [*(["--model-path", paths[model]] if model else []), *text.split()]
        for name, (model, _, text, *_) in MORE.items()
    }
    more |= {name: text.split() for name, text in UNJUDGED.items()}
    words = {"WHOLE": str(whole), "BROKEN": made["broken"], "NARROW": made["narrow"]}
    return {name: [words.get(part, part) for part in line] for name, line in more.items()}


def more_models(folder: Path) -> dict[str, str]:
    """Folders of checkpoints: one that is broken, one of a small latent, two that state a dtype."""
    config = json.loads((FOLDER / "deepseek-r1" / "config.json").read_text())
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    stated = {**config["quantization_config"], "kv_cache_quant_algo": "FP8"}
    quantised = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    texts = {
        "broken": {"config.json": "{"},
        "narrow": {"config.json": json.dumps(config | {"kv_lora_rank": 256})},
        "stated": {"config.json": json.dumps(config | {"quantization_config": stated})},
        "modelopt": {
            "config.json": json.dumps(plain),
            "hf_quant_config.json": json.dumps(quantised),
        },
    }
    for model, files in texts.items():
        (folder / model).mkdir()
        for name, text in files.items():
            (folder / model / name).write_text(text)
    return {model: str(folder / model) for model in texts}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("arguments")
    return {**command_lines(folder), **more_runs(folder)}


@pytest.fixture(scope="module")
def answers(runs: dict[str, list[str]]) -> Answers:
    """{card: {run: sglang's answer}}"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(applied_tree(RELEASE)))
        return server.ask(sys.executable, runs, CARDS)


def judged(one: server.Server) -> list[Line]:
    return list(server.lines(server.Judged((one,)), stock=False))


def by_table(arguments: list[str], card: str) -> list[Line]:
    return judged(server.tabled(known_flags.parse(arguments), card, RELEASE))


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("model", MODELS)
def test_sglang_decides(answers: Answers, model: str, style: str, card: str) -> None:
    first = str(judged(server.answered(answers[card][f"{model} {style}"]))[0])
    assert expected(model, style, card) in first


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("model", MODELS)
def test_the_table_never_contradicts_sglang(
    answers: Answers, runs: dict[str, list[str]], model: str, style: str, card: str
) -> None:
    run = f"{model} {style}"
    agree(answers[card][run], by_table(runs[run], card))


def agree(answer: dict[str, Any], table: list[Line]) -> None:
    """Assert that what the table judges sglang judges so, and for the same reasons."""
    truth = judged(server.answered(answer))
    if any(line.found.startswith("not judged") for line in table):
        assert WELL not in [line.mark for line in table]
        return
    assert {line.mark for line in table} & {WELL, FIX} == {line.mark for line in truth} & {
        WELL,
        FIX,
    }
    if "error" not in answer and not server.answered(answer).runs:
        assert table == truth


@pytest.mark.parametrize("card", CARDS)
def test_the_table_judges_two_of_three(runs: dict[str, list[str]], card: str) -> None:
    lines = [by_table(runs[f"{model} {style}"], card) for model in MODELS for style in STYLES]
    open_ = [one for one in lines if any(line.found.startswith("not judged") for line in one)]
    assert len(open_) * 3 <= len(lines)


@pytest.mark.parametrize("name", MORE)
def test_what_an_operator_met_is_told(answers: Answers, name: str) -> None:
    _, card, _, mark, words = MORE[name]
    first = judged(server.answered(answers[card][name]))[0]
    assert (first.mark, words in str(first)) == (mark, True), first


@pytest.mark.parametrize("name", MORE)
def test_the_table_does_not_contradict_that(
    answers: Answers, runs: dict[str, list[str]], name: str
) -> None:
    card = MORE[name][1]
    agree(answers[card][name], by_table(runs[name], card))


@pytest.mark.parametrize("name", UNJUDGED)
def test_a_model_that_is_not_here_is_not_judged(
    answers: Answers, runs: dict[str, list[str]], name: str
) -> None:
    with pytest.raises(LookupError):
        server.answered(answers["9.0"][name])
    if name != "a draft that is no folder":
        assert by_table(runs[name], "9.0")[0].found.startswith("not judged")


def test_what_depends_on_a_card_is_not_judged_without_one(answers: Answers) -> None:
    cards = tuple(server.answered(answers[card]["glm-5 json"]) for card in CARDS)
    lines = list(server.lines(server.Judged(cards), stock=False))
    assert [line.mark for line in lines] == [NOTE]
    assert "--capability" in lines[0].found
    same = tuple(server.answered(answers[card]["deepseek-r1 plain"]) for card in CARDS)
    assert [line.mark for line in server.lines(server.Judged(same), stock=False)] == [WELL]


def test_the_doctor_asks_the_sglang_of_an_applied_tree(
    answers: Answers,
    runs: dict[str, list[str]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str | None, dict[str, Any], Any]] = []

    def ask(executable: str | None, each: dict[str, Any], cards: Any) -> Answers:
        asked.append((executable, each, cards))
        return {card: dict.fromkeys(each, answers[card]["short for pdmux"]) for card in cards}

    monkeypatch.setenv("PYTHONPATH", str(applied_tree(RELEASE)))
    monkeypatch.setattr(server, "ask", ask)
    given = ["--python", sys.executable, "--capability", "9.0", "--json", "--"]
    main([*given, *runs["short for pdmux"]])
    [(executable, each, cards)] = asked
    assert (executable, *each.values(), cards) == (
        sys.executable,
        runs["short for pdmux"],
        ("9.0",),
    )
    lines = json.loads(capfd.readouterr().out)
    assert [line["found"] for line in lines if line["subject"] == "server"] == [
        "PD multiplexing runs two streams over one buffer"
    ]
    assert not any(line["subject"] == "arguments" for line in lines)
