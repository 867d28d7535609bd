"""The settings and buffers of this process, from sglang's runtime context.

A release that has none keeps its settings in the server arguments. It has no unified memory and no
decode context parallelism either, and only a piecewise graph for prefill.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

try:
    from sglang.srt.runtime_context import (
        get_buffer,
        get_disagg,
        get_exec,
        get_memory,
        get_observability,
        get_parallel,
        get_schedule,
        get_spec,
    )
except ModuleNotFoundError as error:
    if error.name != "sglang.srt.runtime_context":
        raise
    from sglang.srt.distributed.parallel_state import get_pp_group, get_tp_group
    from sglang.srt.server_args import get_global_server_args

    get_disagg = get_observability = get_schedule = get_spec = get_global_server_args
    _buffers: dict[str, torch.Tensor] = {}

    def get_memory() -> Any:
        return SimpleNamespace(enable_unified_memory=False)

    def get_exec() -> Any:
        piecewise = get_global_server_args().enable_piecewise_cuda_graph
        prefill = SimpleNamespace(backend="tc_piecewise" if piecewise else "disabled")
        return SimpleNamespace(
            graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(prefill=prefill))
        )

    def get_parallel() -> Any:
        return Parallel()

    def get_buffer(name: str, factory: Callable[[], torch.Tensor]) -> torch.Tensor:
        if name not in _buffers:
            _buffers[name] = factory()
        return _buffers[name]


class Parallel:
    """This process's place, asked of its groups, which are there only once a server has started."""

    attn_dcp_size = 1

    @property
    def attn_cp_size(self) -> int:
        return int(get_global_server_args().attn_cp_size)

    @property
    def tp_rank(self) -> int:
        return int(get_tp_group().rank_in_group)

    @property
    def pp_rank(self) -> int:
        return int(get_pp_group().rank_in_group)


__all__ = [
    "get_buffer",
    "get_disagg",
    "get_exec",
    "get_memory",
    "get_observability",
    "get_parallel",
    "get_schedule",
    "get_spec",
]
