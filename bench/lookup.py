"""The task that the bench model solves: follow a cycle of tokens, one attention lookup a layer.

Tokens are grouped in cycles of 97. From token t, each layer looks up the row of the token that its
state names and replaces the state by that token's successor; after n layers the state, which is
the next token, has moved n places along the cycle. A prompt holds every token of one cycle exactly
once, at random places, among tokens of other cycles. So the answer is known beforehand, it does not
depend on rounding, and it is lost when a layer reads one wrong row of those that it looks up.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

TASK_FILE = "lookup.json"
CYCLE = 97  # prime, so that generated tokens visit the whole cycle whatever the number of layers


@dataclass(frozen=True)
class Task:
    """What prompts and answers depend on.

    Attributes:
        layers: decoder layers, the places that one generated token advances.
        vocabulary: token ids, a multiple of 97 of which at least two cycles.
        probe_layer: the layer that reads position 0 of the prompt in the first decode step.
    """

    layers: int
    vocabulary: int
    probe_layer: int

    @property
    def cycles(self) -> int:
        return self.vocabulary // CYCLE


def advance(token: int, places: int) -> int:
    """The token `places` further along the cycle of `token`."""
    place = token % CYCLE
    return token - place + (place + places) % CYCLE


def prompt(task: Task, context: int, request: int) -> list[int]:
    """A prompt of `context` tokens for the request of that number, the same at every call."""
    if context < CYCLE:
        raise ValueError(f"A prompt of {context} tokens can't hold a cycle of {CYCLE}: give more.")
    generator = random.Random(f"{context}/{request}")
    cycle = request % task.cycles * CYCLE
    last = cycle + generator.randrange(CYCLE)
    first = advance(last, task.layers + task.probe_layer)
    inner = [token for token in range(cycle, cycle + CYCLE) if token not in (first, last)]
    inner += _other_tokens(task, cycle, context - CYCLE, generator)
    generator.shuffle(inner)
    return [first, *inner, last]


def _other_tokens(task: Task, cycle: int, count: int, generator: random.Random) -> list[int]:
    drawn = (generator.randrange(task.vocabulary - CYCLE) for _ in range(count))
    return [token if token < cycle else token + CYCLE for token in drawn]


def answer(task: Task, last: int, tokens: int) -> list[int]:
    """The tokens that a right computation generates after a prompt that ends with `last`."""
    return [advance(last, task.layers * step) for step in range(1, tokens + 1)]


def read_task(folder: Path) -> Task | None:
    """How to ask a model that `bench.model` made; None for any other model."""
    path = folder / TASK_FILE
    return Task(**json.loads(path.read_text())) if path.exists() else None
