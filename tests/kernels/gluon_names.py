"""The names of Gluon that the direct kernels use, and what is left of the kernels without each.

As a module: `names()` and `without(names)`. `without` starts this file as a script, which takes a
name away and imports the configurations anew in a process of its own for each.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

OVERLAY = Path(__file__).parents[2] / "overlay"
DIRECT = "sglang.srt.layers.attention.flashinfer_mla_compact.direct"
GLUON = "triton.experimental"
Name = tuple[str, str]  # a module, and what it has
CARDS = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
ROWS = (16, 32, 64, 128)


def names() -> list[Name]:
    """From the sources: imported names, the modules they come from, and attributes of modules."""
    folder = OVERLAY.joinpath(*DIRECT.split("."))
    files = [folder / "triton_release.py", *(folder / "kernels").glob("*.py")]
    return sorted({name for file in files for name in _names(ast.parse(file.read_text()))})


def _names(tree: ast.Module) -> Iterator[Name]:
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(GLUON):
            assert node.module is not None
            if node.module != GLUON:
                parent, _, last = node.module.rpartition(".")
                yield parent, last
            for one in node.names:
                yield node.module, one.name
                modules[one.asname or one.name] = f"{node.module}.{one.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and isinstance(_found(module), ModuleType):
                yield module, node.attr


def _found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name, None)


def without(taken: list[Name]) -> list[dict[str, Any]]:
    """For each name, what an import of `configs` gives without it.

    "faults" of kernels; "kernels" that are left; "chosen", the kernels that some card would run.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(taken),
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _left_without(module: str, name: str) -> dict[str, Any]:
    owner = importlib.import_module(module)
    if isinstance(getattr(owner, name, None), ModuleType):
        sys.modules[f"{module}.{name}"] = None  # type: ignore[assignment]
    if hasattr(owner, name):  # else this Triton calls it something else
        delattr(owner, name)
    configs = importlib.import_module(f"{DIRECT}.configs")
    asked = [(card, rows, alone) for card in CARDS for rows in ROWS for alone in (False, True)]
    chosen = {configs.configure(card, rows, alone=alone).kernel for card, rows, alone in asked}
    hopper = configs.configure((9, 0), 64).kernel
    left = {"faults": configs.FAULTS, "kernels": list(configs.KERNELS)}
    return {**left, "chosen": sorted(chosen), "hopper": hopper}


def _apart(module: str, name: str) -> None:
    """Prints what is left, from a process of its own: names stay away in it."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"without {module}.{name}: see above")
        return
    print(json.dumps(_left_without(module, name)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    sys.path.insert(0, str(OVERLAY))
    import torch  # noqa: F401  once, not in each process

    for module in (f"{GLUON}.gluon.language.nvidia.{card}" for card in ("ampere", "hopper")):
        importlib.import_module(module)
    for pair in json.load(sys.stdin):
        _apart(*pair)
