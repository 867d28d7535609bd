"""Imports modules of the overlay over stand-ins for what they take from sglang."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import tests.kernels.conftest  # noqa: F401  Triton's interpreter, and the overlay on the path
from tests.backend import upstream, upstream_backend

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


@pytest.fixture
def backend(overlay: Import, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module under test; its buffer holds the pool unless a test says otherwise."""
    upstream = "sglang.srt.layers.attention.flashinfer_mla_backend"
    for name, value in upstream_backend.CONTENTS.items():
        monkeypatch.setattr(sys.modules[upstream], name, value, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 6))
    for variable in ("SGLANG_MLA_COMPACT_STRATEGY", "SGLANG_MLA_COMPACT_BUFFER_MIB"):
        monkeypatch.delenv(variable, raising=False)
    return overlay("backend")
