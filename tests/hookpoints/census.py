"""Finds every place in a wheel of sglang where FlashInfer's name stands as a string.

The same string names an attention backend, a MoE or sampling backend, or the package: which of
them, and what that means for our name, is stated for each place in census.toml.

    python -m tests.hookpoints.census RELEASE    prints the places that are not classed yet
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.trees import wheel

NAMES = ("flashinfer", "FlashInferMLAAttnBackend")
QUOTED = tuple(f"{quote}{name}{quote}".encode() for name in NAMES for quote in "'\"")
CENSUS = Path(__file__).with_name("census.toml")
VERDICTS = ("served", "left_out", "other")


class Place(NamedTuple):
    """Where a name stands: no line numbers, so that a place outlives changes around it.

    `line` is the first line of the innermost statement, and after an ellipsis the line of the name
    itself where that is another one.
    """

    file: str
    function: str
    line: str


def places(file: str, source: str) -> Iterator[Place]:
    """Each place in one file, once for every time that a name stands there."""
    lines = source.splitlines()
    for statement, function, name in _names(ast.parse(source), "", None):
        texts = [lines[row - 1].split("  # ")[0].strip() for row in (statement.lineno, name.lineno)]
        yield Place(file, function, " … ".join(dict.fromkeys(texts)))


def _names(
    node: ast.AST, function: str, statement: ast.stmt | None
) -> Iterator[tuple[ast.stmt, str, ast.Constant]]:
    if isinstance(node, ast.stmt):
        statement = node
    if isinstance(node, ast.Constant) and node.value in NAMES and statement is not None:
        yield statement, function, node
    inner = function
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inner = f"{function}.{node.name}".lstrip(".")
    for child in ast.iter_child_nodes(node):
        # A decorator stands outside of what it decorates.
        outside = child in getattr(node, "decorator_list", ())
        yield from _names(child, function if outside else inner, statement)


def in_wheel(release: str) -> Counter[Place]:
    """Every place in the pinned wheel, and how often a name stands there."""
    found: Counter[Place] = Counter()
    with zipfile.ZipFile(wheel(release)) as archive:
        for file in (name for name in archive.namelist() if name.endswith(".py")):
            data = archive.read(file)
            if any(quoted in data for quoted in QUOTED):
                found.update(places(file, data.decode()))
    return found


def classed() -> list[dict[str, Any]]:
    """The entries of census.toml."""
    return list(tomllib.loads(CENSUS.read_text())["place"])


def place_of(entry: dict[str, Any]) -> Place:
    return Place(entry["file"], entry["function"], entry["line"])


def main() -> None:
    release = sys.argv[1]
    known = {place_of(entry) for entry in classed() if release in entry["releases"]}
    for place, count in in_wheel(release).items():
        if place not in known:
            fields = {"releases": [release], **place._asdict(), "count": count}
            print("[[place]]")
            print(
                "\n".join(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items())
            )
            print()


if __name__ == "__main__":
    main()
