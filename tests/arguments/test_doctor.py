"""The doctor on servers of seven models, told in five styles, with sglang and without it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from doctortool import known_flags, server
from doctortool.cli import main
from doctortool.line import FIX, NOTE, WELL, Line

from tests.arguments.command_lines import (
    DENSE,
    MODELS,
    MORE,
    STYLES,
    UNJUDGED,
    command_lines,
    more_runs,
)
from tests.trees import applied_tree

RELEASE = "0.5.23"
CARDS = ("9.0", "10.0", "12.0")
Answers = dict[str, dict[str, Any]]
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
    assert judged(server.answered(answers["9.0"][name]))[0].found.startswith("not judged")
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
