"""A forked child's answer, or why there is none."""

from __future__ import annotations

import os
from typing import Any

import pytest
from doctortool.fork import in_child


def test_a_child_answers_by_way_of_json() -> None:
    assert in_child(lambda: {"pid": os.getpid()})["pid"] != os.getpid()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: int("x"), "ValueError: invalid literal"),
        (lambda: os._exit(3), "a child process died"),
        (lambda: object, "not JSON serializable"),
    ],
)
def test_a_child_without_an_answer_says_why(answer: Any, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        in_child(answer)
