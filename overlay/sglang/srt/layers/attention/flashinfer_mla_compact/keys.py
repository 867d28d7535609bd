"""The KV pool as upstream's forward methods see it: a layer's keys come back ready to attend to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class KeyReader:
    """A KV pool whose `get_key_buffer` reads through the backend; all else is the pool itself.

    The pool is asked anew each time: it may wait for a layer that is still being loaded, map
    layer ids, or have been released and allocated again.

    Args:
        pool: the KV pool.
        read: turns a layer's buffer, [pool rows, 1, 576] FP8, into what attention takes.
    """

    def __init__(self, pool: Any, read: Callable[[torch.Tensor], Any]) -> None:
        self._pool = pool
        self._read = read

    def get_key_buffer(self, layer_id: int) -> Any:
        return self._read(self._pool.get_key_buffer(layer_id))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


class UncastKeys:
    """A layer's FP8 rows on their way to a kernel that reads FP8.

    Upstream casts what the pool returns and slices latent from rope before it calls the wrapper;
    both wait here, since the direct kernel does them itself.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def to(self, dtype: torch.dtype) -> UncastKeys:
        return self

    def __getitem__(self, index: Any) -> UncastKeys:
        return self
