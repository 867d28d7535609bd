"""Thousands of requests through stock's and compact's engine at the same time, in steps.

Each step is made from its number alone, so that `-k step-7` repeats one, and a run that was stopped
goes on with those that are left. The right tokens are known. Stock's are told, not judged: where
servers share a device, it plans over a plan that is yet to be copied, and answers with the rows of
a neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.engine_calls import ask, device_memory
from tests.gpu.lookups import mistakes, soak_step
from tests.gpu.served import Served, engine, running

SETUPS = ["stock", "compact"]
CHUNKED: dict[str, object] = {"chunked_prefill_size": 2048}
STEPS = 13  # of 400 requests each, after one that warms up
# What stock's own bookkeeping may differ by, and the allocator's blocks of 2 and 20 MiB.
SLACK = {"allocated": 2 << 20, "reserved": 64 << 20}

Memory = dict[str, list[dict[str, int]]]


@pytest.fixture(scope="module")
def engines(
    small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    wanted = {name: (name, engine(small_model, CHUNKED)) for name in SETUPS}
    with running(tmp_path_factory.mktemp("soak"), wanted) as served:
        yield served


def of_each(engines: dict[str, Served], function: Callable[..., Any], *rest: Any) -> dict[str, Any]:
    """What a function returns in each engine's process, in all of them at the same time."""
    for one in engines.values():
        one.send(function, *rest)
    return {name: one.receive() for name, one in engines.items()}


@pytest.fixture(scope="module")
def memory(engines: dict[str, Served]) -> Memory:
    """What each engine has after a first step; the tests add what it has after theirs."""
    of_each(engines, ask, soak_step(0))
    return {name: [first] for name, first in of_each(engines, device_memory).items()}


@pytest.mark.parametrize("number", range(1, STEPS + 1), ids="step-{:02}".format)
def test_a_step_is_right(engines: dict[str, Served], memory: Memory, number: int) -> None:
    asked = soak_step(number)
    answers = of_each(engines, ask, asked)
    for name, now in of_each(engines, device_memory).items():
        memory[name].append(now)
    print(f"stock: {len(mistakes(asked, answers['stock']))} of {len(asked)} requests are wrong")
    assert mistakes(asked, answers["compact"]) == []


def test_device_memory_does_not_grow_from_step_to_step(memory: Memory) -> None:
    for kind, slack in SLACK.items():
        grown = {name: marks[-1][kind] - marks[0][kind] for name, marks in memory.items()}
        assert grown["compact"] <= max(grown["stock"], 0) + slack, kind
