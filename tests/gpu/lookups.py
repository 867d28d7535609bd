"""Requests of the bench model's task for served engines, and whether their answers are right."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from bench.lookup import CYCLE, Task, answer, prompt
from bench.model import Shape
from tests.gpu.engine_calls import Answer, Ask

SHAPE = Shape(layers=8)
TASK = SHAPE.task

STEP_REQUESTS = 400
PREFIXES = 12
ABORTED = 0.15  # of the requests


def alone(length: int, number: int, tokens: int, abort_after: int = 0) -> Ask:
    """A request that shares no prefix, except with its like."""
    return Ask(prompt(TASK, length, number), tokens, abort_after)


def behind(prefix: list[int], own: int, random: Random, tokens: int, abort_after: int = 0) -> Ask:
    """A request whose lookups find their rows in `prefix`, the prompt of another request.

    Its `own` tokens are of other cycles, but for the last, which the answer starts from.
    """
    cycle = prefix[-1] // CYCLE * CYCLE
    others = (random.randrange(TASK.vocabulary - CYCLE) for _ in range(own - 1))
    filler = [token if token < cycle else token + CYCLE for token in others]
    return Ask([*prefix, *filler, cycle + random.randrange(CYCLE)], tokens, abort_after)


def mistakes(asked: list[Ask], answers: list[Answer], task: Task = TASK) -> list[str]:
    """A line for each answer that is not what `task` says; none is missing."""
    pairs = zip(asked, answers, strict=True)
    found = (_mistake(ask, got, task) for ask, got in pairs)
    return [f"request {number}: {text}" for number, text in enumerate(found) if text]


def _mistake(asked: Ask, got: Answer, task: Task) -> str:
    right = answer(task, asked.prompt[-1], asked.tokens)
    count = len(got.tokens)
    if got.ended == "abort":
        if not (asked.abort_after and asked.abort_after <= count):
            return f"was aborted after {count} tokens"
    elif count != asked.tokens:
        return f"has {count} tokens of {asked.tokens}"
    wrong = [place for place in range(count) if got.tokens[place] != right[place]]
    return f"token {wrong[0]} of {count} is wrong" if wrong else ""


def differences(answers: list[Answer], others: list[Answer]) -> list[int]:
    """Requests whose tokens differ, as far as both have them: an abort may come at any step."""
    return [
        number
        for number, (one, other) in enumerate(zip(answers, others, strict=True))
        if any(left != right for left, right in zip(one.tokens, other.tokens, strict=False))
    ]


def soak_step(number: int) -> list[Ask]:
    """The requests of a step of the soak: the same at every call, other ones for every step."""
    random = Random(f"soak/{number}")
    # The first prefixes are those of every step, the others are its own.
    seeds = [*range(PREFIXES // 2), *(random.randrange(10**6) for _ in range(PREFIXES // 2))]
    prefixes = [prompt(TASK, 97 + 150 * place, seed) for place, seed in enumerate(seeds)]
    return list(_requests(random, prefixes))


def _requests(random: Random, prefixes: list[list[int]]) -> Iterator[Ask]:
    for _ in range(STEP_REQUESTS):
        tokens = random.randint(1, 64)
        abort_after = random.randint(1, tokens) if random.random() < ABORTED else 0
        if random.random() < 0.6:
            own = random.randint(1, 300)
            yield behind(random.choice(prefixes), own, random, tokens, abort_after)
        else:
            length = int(CYCLE * 2 ** random.uniform(0, 4))
            yield alone(length, random.randrange(10**6), tokens, abort_after)
