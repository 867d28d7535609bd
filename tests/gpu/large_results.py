"""Which operations of a step make or fill a tensor as long as the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gpu.engine import DIM, Engine


class LargeResults(TorchDispatchMode):
    """Counts the operations that make or fill a tensor of at least `elements` elements."""

    def __init__(self, elements: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = elements
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        large = isinstance(result, torch.Tensor) and result.numel() >= self.elements
        if large and not function.is_view:
            self.seen.append(str(function))
        return result


def pool_sized(engine: Engine, step: Callable[[], Any]) -> list[str]:
    """The operations of a step whose result has as many elements as a layer of the pool."""
    with LargeResults(engine.shape.rows * DIM) as mode:
        step()
    return list(mode.seen)
