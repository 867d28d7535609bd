"""The bench checkpoint: attention decides its tokens, and one wrong row changes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from bench.lookup import answer, prompt, read_task
from bench.model import Shape, write
from tests.bench.reference import Corrupt, generate, load

SHAPE = Shape(layers=5, heads=4, hidden=1024, mlp=64, vocabulary=97 * 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write(SHAPE, path)
    return path


@pytest.fixture(scope="module")
def tensors(folder: Path) -> dict[str, Tensor]:
    return load(folder)


def replace_first_row(layer: int) -> Corrupt:
    def corrupt(number: int, rows: Tensor) -> Tensor:
        if number == layer:
            rows = rows.clone()
            rows[0] = rows[1]
        return rows

    return corrupt


@pytest.mark.parametrize("context", [100, 300])
@pytest.mark.parametrize("request_number", [0, 5])
def test_greedy_tokens_are_the_answer(
    tensors: dict[str, Tensor], context: int, request_number: int
) -> None:
    asked = prompt(SHAPE.task, context, request_number)
    assert generate(tensors, SHAPE.layers, asked, 4) == answer(SHAPE.task, asked[-1], 4)


@pytest.mark.parametrize("request_number", range(3))
def test_one_wrong_row_of_the_probe_layer_changes_the_tokens(
    tensors: dict[str, Tensor], request_number: int
) -> None:
    asked = prompt(SHAPE.task, 200, request_number)
    wrong = generate(tensors, SHAPE.layers, asked, 2, replace_first_row(SHAPE.task.probe_layer))
    right = answer(SHAPE.task, asked[-1], 2)
    assert wrong[0] == right[0]
    assert wrong[1] != right[1]


def test_rows_of_another_layer_change_the_tokens(tensors: dict[str, Tensor]) -> None:
    seen: dict[int, Tensor] = {}

    def corrupt(number: int, rows: Tensor) -> Tensor:
        seen[number] = rows
        return seen[2] if number == 3 else rows

    asked = prompt(SHAPE.task, 100, 1)
    wrong = generate(tensors, SHAPE.layers, asked, 1, corrupt)
    assert wrong != answer(SHAPE.task, asked[-1], 1)


def test_folder_says_how_to_ask(folder: Path, tmp_path: Path) -> None:
    assert read_task(folder) == SHAPE.task
    assert read_task(tmp_path) is None
