"""The KV pool as upstream's forward methods see it while they run one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..upstream.pools import writes_plainly
from .format import PoolFormat
from .write import write_rows


class LayerPool:
    """A KV pool whose keys come back ready to attend to, and that writes new ones in one launch.

    The pool is asked anew each time: it may wait for a layer that is still being loaded, map
    layer ids, or have been released and allocated again. All else is the pool's own.

    Args:
        pool: the KV pool.
        keys: turns a layer's buffer, [pool rows, 1, 576] FP8, into what attention takes.
        form: of the pool's rows.
    """

    def __init__(self, pool: Any, keys: Callable[[torch.Tensor], Any], form: PoolFormat) -> None:
        self._pool = pool
        self._keys = keys
        self._form = form

    def get_key_buffer(self, layer_id: int) -> Any:
        return self._keys(self._pool.get_key_buffer(layer_id))

    def set_mla_kv_buffer(
        self, layer: Any, location: Any, nope: torch.Tensor, rope: torch.Tensor
    ) -> None:
        """`location`: slots, or what later releases wrap them in."""
        pool = self._pool
        dense = nope.stride(-1) == rope.stride(-1) == 1
        if not (dense and writes_plainly(pool)) or nope.dtype == pool.dtype:
            pool.set_mla_kv_buffer(layer, location, nope, rope)
            return
        slots = getattr(location, "loc", location)
        write_rows(pool.get_key_buffer(layer.layer_id), slots, nope, rope, self._form)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)
