"""The KV pool as upstream's forward methods see it: a layer's keys come back ready to attend to,
and new ones are written in one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.facts import reserved_slot, writes_plainly
from sglang.srt.layers.attention.flashinfer_mla_compact.write import NewKeys, write_rows

RESERVED = reserved_slot()


class KeyReader:
    """A KV pool that reads through the backend and writes in one launch; else the pool itself.

    The pool is asked anew each time: it may wait for a layer that is still being loaded, map
    layer ids, or have been released and allocated again.

    Args:
        pool: the KV pool.
        read: turns a layer's buffer, [pool rows, 1, 576] FP8, into what attention takes; new keys
            that come with it are to be written first, or along the way.
        top: what is to be written for keys that are too large.
        awaited: the slots whose keys wait until their layer is read, or for `write`.
    """

    def __init__(
        self,
        pool: Any,
        read: Callable[[torch.Tensor, NewKeys | None], Any],
        top: int,
        awaited: torch.Tensor | None = None,
    ) -> None:
        self._pool = pool
        self._read = read
        self._top = top
        self._awaited = awaited
        self._waiting: NewKeys | None = None
        self._layer_id = -1

    def get_key_buffer(self, layer_id: int) -> Any:
        if layer_id != self._layer_id:
            self.write()
        waiting, self._waiting = self._waiting, None
        rows = waiting.pool if waiting else self._pool.get_key_buffer(layer_id)
        return self._read(rows, waiting)

    def set_mla_kv_buffer(
        self, layer: Any, location: Any, nope: torch.Tensor, rope: torch.Tensor
    ) -> None:
        """`location`: slots, or what later releases wrap them in."""
        self.write()
        pool = self._pool
        dense = nope.stride(-1) == rope.stride(-1) == 1
        if not (dense and writes_plainly(pool)) or nope.dtype == pool.dtype:
            pool.set_mla_kv_buffer(layer, location, nope, rope)
            return
        slots = getattr(location, "loc", location)
        self._layer_id = layer.layer_id
        rows = pool.get_key_buffer(self._layer_id)
        self._waiting = NewKeys(rows, slots, nope, rope, self._top, RESERVED)
        if slots is not self._awaited:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        if self._waiting:
            write_rows(self._waiting)
            self._waiting = None

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
