"""Imports modules of the overlay over stand-ins for what they take from sglang."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import tests.kernels.conftest  # noqa: F401  Triton's interpreter, and the overlay on the path
from tests.backend import upstream

PACKAGE = "sglang.srt.layers.attention.flashinfer_mla_compact"

Import = Callable[[str], Any]


@pytest.fixture
def overlay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Gives a module by its name; after the test what it imported is forgotten."""
    for name, contents in upstream.MODULES.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("torch.cuda.Event", upstream.Event)
    known = set(sys.modules)
    yield lambda name: importlib.import_module(f"{PACKAGE}.{name}")
    for name in set(sys.modules) - known:
        if name.startswith(PACKAGE):
            del sys.modules[name]
