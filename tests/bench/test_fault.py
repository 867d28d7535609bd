"""The wrong row: one entry of the slot list, in one layer, and right again afterwards."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, importing the stand-in engine; no other test sees that one."""
    for name in loaded():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fake"))
    yield importlib.import_module("bench.fault")
    for name in loaded():
        del sys.modules[name]


def loaded() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == "sglang" or name == "bench.fault"]


class Gathering:
    """Reads the slots of the planned compact rows."""

    def __init__(self) -> None:
        rows = SimpleNamespace(slots=torch.tensor([70, 71, 72, 73], dtype=torch.int32))
        self.readings = SimpleNamespace(gathered=SimpleNamespace(rows=rows))
        planned = torch.tensor([2, 0, 1, 3], dtype=torch.int32)
        wrapper = SimpleNamespace(_kv_indices_buf=planned)
        self.forward_metadata = SimpleNamespace(decode_wrapper=wrapper)

    def forward_decode(self, q: Any, k: Any, v: Any, layer: Any) -> list[int]:
        planned = self.forward_metadata.decode_wrapper._kv_indices_buf.long()
        slots: list[int] = self.readings.gathered.rows.slots[planned].tolist()
        return slots


class Direct:
    """Reads the planned slots."""

    def __init__(self) -> None:
        wrapper = SimpleNamespace(slots=torch.tensor([72, 70, 71, 73], dtype=torch.int32))
        self.forward_metadata = SimpleNamespace(decode_wrapper=wrapper)

    def forward_decode(self, q: Any, k: Any, v: Any, layer: Any) -> list[int]:
        slots: list[int] = self.forward_metadata.decode_wrapper.slots.tolist()
        return slots


@pytest.mark.parametrize("kind", [Gathering, Direct])
def test_only_the_first_row_of_the_chosen_layer_is_wrong(fault: Any, kind: Any) -> None:
    disturbed = type("Disturbed", (kind,), {})
    fault.disturb(disturbed, 5)
    backend = disturbed()
    read = [
        backend.forward_decode(None, None, None, SimpleNamespace(layer_id=layer))
        for layer in (4, 5, 6)
    ]
    assert read == [[72, 70, 71, 73], [70, 70, 71, 73], [72, 70, 71, 73]]
