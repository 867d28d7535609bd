from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from overlaytool.cli import main

from tests.tool import toy as toys


class Result(NamedTuple):
    code: int
    out: str
    err: str


Overlay = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)


@pytest.fixture
def toy(tmp_path: Path) -> toys.Toy:
    return toys.make(tmp_path)


@pytest.fixture
def overlay(toy: toys.Toy, capsys: pytest.CaptureFixture[str]) -> Overlay:
    """Runs a verb on the toy: `overlay("apply", "--tree", folder)`."""

    def run(*arguments: object) -> Result:
        code = main([str(a) for a in arguments], toy.repository)
        return Result(code, *capsys.readouterr())

    return run
