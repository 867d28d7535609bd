"""Loads: how many requests, how long, and the prompts that make them."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from bench.lookup import Task, answer, prompt, read_task


@dataclass(frozen=True, order=True)
class Load:
    """`batch` requests that start together.

    Attributes:
        batch: requests.
        context: prompt tokens of each that are computed.
        prefix: prompt tokens of each, before those, that the server has cached beforehand.
    """

    batch: int
    context: int
    prefix: int = 0

    @classmethod
    def parse(cls, text: str) -> Load:
        """Read "16x8192" or "1x2048+256"; ValueError with one sentence for anything else."""
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:\+([1-9]\d*))?", text, re.ASCII)
        if not match:
            raise ValueError(f"{text!r} is not a load: write BATCHxTOKENS, such as 16x8192.")
        return cls(*(int(part or 0) for part in match.groups()))

    def __str__(self) -> str:
        return f"{self.batch}x{self.context}" + (f"+{self.prefix}" if self.prefix else "")


@dataclass(frozen=True)
class Requests:
    """What an engine is asked.

    Attributes:
        prompts: token ids of each request.
        tokens: how many to generate.
        prefix: how many of each prompt's tokens to have cached beforehand.
        answers: the right tokens of each request; None if they are not known.
    """

    prompts: list[list[int]]
    tokens: int
    prefix: int
    answers: list[list[int]] | None


def requests(model: Path, load: Load, tokens: int) -> Requests:
    """The requests of a load: lookups for a model of `bench.model`, else random token ids."""
    length = load.context + load.prefix
    task = read_task(model)
    if task is None:
        return Requests(_random_prompts(model, load.batch, length), tokens, load.prefix, None)
    return _lookups(task, load, length, tokens)


def _lookups(task: Task, load: Load, length: int, tokens: int) -> Requests:
    prompts = [prompt(task, length, request) for request in range(load.batch)]
    answers = [answer(task, text[-1], tokens) for text in prompts]
    return Requests(prompts, tokens, load.prefix, answers)


def _random_prompts(model: Path, batch: int, length: int) -> list[list[int]]:
    config = json.loads((model / "config.json").read_text())
    vocabulary = config.get("vocab_size") or config["text_config"]["vocab_size"]
    generator = random.Random(f"{batch}x{length}")
    return [[generator.randrange(vocabulary) for _ in range(length)] for _ in range(batch)]
