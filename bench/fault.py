"""Read one row wrongly on purpose: the proof that equal tokens mean right reads.

The scheduler process is told, before it starts, to exchange one entry of the compact backend's slot
list around the decode attention of one layer: the first request's first row is then taken from the
slot of its second row. All other rows and layers stay right. The product knows nothing of it.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from sglang.srt.entrypoints.engine import Engine as RightEngine
from sglang.srt.managers.scheduler import run_scheduler_process

from bench.setups import WRONG_ROW_VARIABLE


def disturb(backend_class: Any, layer_number: int) -> None:
    """Wrap `backend_class.forward_decode` so that layer `layer_number` reads one wrong row."""
    right = backend_class.forward_decode

    def forward_decode(self: Any, q: Any, k: Any, v: Any, layer: Any, *rest: Any, **kw: Any) -> Any:
        if layer.layer_id != layer_number:
            return right(self, q, k, v, layer, *rest, **kw)
        slots, rows = _slots_read(self)
        first, second = rows[:1], rows[1:]
        kept = slots.index_select(0, first)
        slots.index_copy_(0, first, slots.index_select(0, second))
        output = right(self, q, k, v, layer, *rest, **kw)
        slots.index_copy_(0, first, kept)
        return output

    backend_class.forward_decode = forward_decode


def _slots_read(backend: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The list of pool slots that a decode reads, and where the first request's first two stand.

    Both are on the device, so that a captured graph repeats the exchange.
    """
    wrapper = backend.forward_metadata.decode_wrapper
    if hasattr(wrapper, "slots"):  # attention over the pool itself
        return wrapper.slots, torch.arange(2, device=wrapper.slots.device)
    return backend.readings.gathered.rows.slots, wrapper._kv_indices_buf[:2].long()


def run_disturbed_scheduler(*arguments: Any) -> None:
    """Process entry in place of sglang's own."""
    from sglang.srt.layers.attention.flashinfer_mla_compact.backend import (
        FlashInferMLACompactAttnBackend,
    )

    disturb(FlashInferMLACompactAttnBackend, int(os.environ[WRONG_ROW_VARIABLE]))
    run_scheduler_process(*arguments)


class Engine(RightEngine):
    """An engine whose scheduler runs disturbed."""

    run_scheduler_process_func = staticmethod(run_disturbed_scheduler)
