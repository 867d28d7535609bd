"""Engines in processes of their own, started, asked and ended with a stand-in for sglang's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.engine_calls import Ask, ask, device_memory, flush
from tests.gpu.lookups import alone, mistakes
from tests.gpu.served import EngineFailed, Served, engine, running

FAKE = Path(__file__).parent / "fake"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE))


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[dict[str, Served]]:
    wanted = {name: (name, engine(tmp_path)) for name in ("stock", "compact")}
    with running(tmp_path, wanted) as served:
        yield served


def ends_soon(pid: int) -> bool:
    """Whether the process ends within some seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_engines_answer_at_the_same_time_and_aborted_requests_early(
    engines: dict[str, Served],
) -> None:
    asked = [alone(100, number, 50, 7 * (number % 3)) for number in range(9)]
    for one in engines.values():
        one.send(ask, asked, 4)
    for one in engines.values():
        answers = one.receive()
        assert mistakes(asked, answers) == []
        assert [answer.ended for answer in answers] == ["length", "abort", "abort"] * 3
        assert max(answer.cached for answer in answers) == 4, "at most so many at once"


def test_an_engine_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    wanted = {
        "bad": ("stock", engine(tmp_path, {"fails": True})),
        "good": ("stock", engine(tmp_path)),
    }
    with running(tmp_path, wanted) as served:
        for _ in range(2):
            with pytest.raises(EngineFailed, match="no kernel for this device"):
                served["bad"].call(flush)
        served["good"].call(flush)


def test_an_engine_that_is_late_is_ended(tmp_path: Path) -> None:
    with running(tmp_path, {"one": ("stock", engine(tmp_path, {"late": 3.0}))}) as served:
        served["one"].ask([Ask([5], 3)])
        served["one"].send(flush)
        with pytest.raises(EngineFailed, match="no answer in 0 s"):
            served["one"].receive(0.1)
        with pytest.raises((EngineFailed, OSError)):
            served["one"].call(flush)


def test_nothing_stays_behind(tmp_path: Path) -> None:
    with running(tmp_path, {"one": ("stock", engine(tmp_path))}) as served:
        scheduler = served["one"].call(device_memory)["scheduler"]
    assert ends_soon(scheduler)
