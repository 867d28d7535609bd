"""The requests of the served tests, and what their answers are held against."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bench.lookup import CYCLE, answer
from tests.gpu.engine_calls import Answer, Ask
from tests.gpu.lookups import TASK, alone, behind, differences, mistakes, soak_step
from tests.gpu.test_soak import STEPS

PROMPT = alone(100, 3, 1).prompt
RIGHT = answer(TASK, PROMPT[-1], 8)


def cycles(tokens: list[int]) -> set[int]:
    return {token // CYCLE for token in tokens}


def test_a_request_behind_a_prefix_finds_its_whole_cycle_there() -> None:
    asked = behind(PROMPT, 50, Random(1), 4)
    cycle = asked.prompt[-1] // CYCLE
    assert asked.prompt[:100] == PROMPT
    assert len(asked.prompt) == 150
    assert {token for token in PROMPT if token // CYCLE == cycle} == set(
        range(cycle * CYCLE, (cycle + 1) * CYCLE)
    )
    assert cycle not in cycles(asked.prompt[100:-1])


@pytest.mark.parametrize(
    ("asked", "got", "wanted"),
    [
        (Ask(PROMPT, 8), Answer(RIGHT, "length"), []),
        (Ask(PROMPT, 8), Answer(RIGHT[:7], "length"), ["request 0: has 7 tokens of 8"]),
        (
            Ask(PROMPT, 8),
            Answer([*RIGHT[:6], 1, RIGHT[7]], "length"),
            ["request 0: token 6 of 8 is wrong"],
        ),
        (Ask(PROMPT, 8), Answer(RIGHT[:4], "abort"), ["request 0: was aborted after 4 tokens"]),
        (Ask(PROMPT, 8, 4), Answer(RIGHT[:5], "abort"), []),
        (Ask(PROMPT, 8, 4), Answer(RIGHT, "length"), []),
        (
            Ask(PROMPT, 8, 4),
            Answer([*RIGHT[:4], 1], "abort"),
            ["request 0: token 4 of 5 is wrong"],
        ),
    ],
)
def test_an_answer_is_held_against_the_task(asked: Ask, got: Answer, wanted: list[str]) -> None:
    assert mistakes([asked], [got]) == wanted


def test_another_checkpoint_has_other_answers() -> None:
    asked, got = [Ask(PROMPT, 8)], [Answer(RIGHT, "length")]
    assert mistakes(asked, got, replace(TASK, layers=TASK.layers + 1)) != []


def test_answers_differ_as_far_as_both_have_tokens() -> None:
    whole, part = Answer(RIGHT, "length"), Answer(RIGHT[:3], "abort")
    assert differences([whole, whole], [part, whole]) == []
    assert differences([whole, part], [whole, Answer([RIGHT[0], 1], "length")]) == [1]


def test_the_soak_has_thousands_of_requests_with_aborts_and_shared_prefixes() -> None:
    asked = soak_step(1)
    assert len(asked) * STEPS >= 5000
    assert 20 <= sum(ask.abort_after > 0 for ask in asked) <= len(asked) // 4
    starts = [tuple(ask.prompt[:90]) for ask in asked]
    assert len(starts) - len(set(starts)) > len(asked) / 3
    assert len({ask.tokens for ask in asked}) > 40
    assert max(len(ask.prompt) for ask in asked) < 2500
