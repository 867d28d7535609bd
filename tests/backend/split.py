"""Tells which half of the imported sglang's split backend gets each call of a decode's graph.

stdout: JSON {call: [the halves that got it, with these very arguments]}
"""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

HALVES = ("prefill", "decode")
SPLIT = "sglang.srt.layers.attention.hybrid_attn_backend"
MODES = "sglang.srt.model_executor.forward_batch_info"
# Settings that speak of nothing but plain decode.
PLAIN = SimpleNamespace(speculative_algorithm=None, dllm=SimpleNamespace(dllm_algorithm=None))


def main() -> None:
    halves = {name: Mock() for name in HALVES}
    module = importlib.import_module(SPLIT)
    split = object.__new__(module.HybridAttnBackend)
    vars(split).update({f"{name}_backend": half for name, half in halves.items()})
    split.spec_attn_is_decode = split.spec_attn_is_prefill = False
    split.model_runner = SimpleNamespace(server_args=PLAIN)
    for settings in ("get_exec", "get_spec"):  # of later releases
        setattr(module, settings, lambda: PLAIN)
    batch = SimpleNamespace(forward_mode=importlib.import_module(MODES).ForwardMode.DECODE)
    forward = dict.fromkeys(("q", "k", "v", "layer", "save_kv_cache")) | {"forward_batch": batch}
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "init_cuda_graph_state": ((4, 4), {}),
        "get_cuda_graph_seq_len_fill_value": ((), {}),
        "init_forward_metadata_out_graph": ((batch,), {"in_capture": True}),
        "init_forward_metadata_in_graph": ((batch,), {}),
        "forward": ((), forward),
    }
    told = {}
    for name, (arguments, options) in calls.items():
        getattr(split, name)(*arguments, **options)
        got = (getattr(half, name).call_args == (arguments, options) for half in halves.values())
        told[name] = [half for half, yes in zip(HALVES, got, strict=True) if yes]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
