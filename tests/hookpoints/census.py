"""Finds every place in a wheel of sglang where FlashInfer's name stands as a string.

The same string names an attention backend, a MoE or sampling backend, or the package: which of
them, and what that means for our name, is stated for each place in census.toml, whatever release
has it.

    python -m tests.hookpoints.census RELEASE    prints the places that are not classed yet
"""

from __future__ import annotations

import json
import sys
import tomllib
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from carrytool import mentions
from carrytool.mentions import Place

from tests.trees import wheel

NAMES = {"flashinfer": False, "FlashInferMLAAttnBackend": False}
CENSUS = Path(__file__).with_name("census.toml")
VERDICTS = ("served", "left_out", "other")


def in_wheel(release: str) -> Counter[Place]:
    """Every place in the pinned wheel, and how often a name stands there."""
    with zipfile.ZipFile(wheel(release)) as archive:
        files = [name for name in archive.namelist() if name.endswith(".py")]
        return mentions.in_tree(files, archive.read, NAMES)


def entries() -> list[dict[str, Any]]:
    """The entries of census.toml."""
    return list(tomllib.loads(CENSUS.read_text())["place"])


def place_of(entry: dict[str, Any]) -> Place:
    return Place(entry["file"], entry["function"], entry["code"])


def classed() -> Counter[Place]:
    """The places that have a verdict, and how often."""
    return Counter({place_of(entry): entry.get("count", 1) for entry in entries()})


def unclassed(found: Counter[Place]) -> list[Place]:
    """The places that have none, whatever file they moved to."""
    return [place for mark, place in mentions.changes(classed(), found) if mark == "+"]


def main() -> None:
    for place in unclassed(in_wheel(sys.argv[1])):
        rows = (f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in place._asdict().items())
        print("[[place]]", *rows, "", sep="\n")


if __name__ == "__main__":
    main()
