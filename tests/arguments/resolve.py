"""Asks the doctor's resolver for every field of the resolved arguments, each as its repr.

It adds the prefill graph and whether the prefix cache stays chunked. stdin and stdout are those of
the resolver.
"""

from __future__ import annotations

import argparse
import functools
import importlib
from types import SimpleNamespace
from typing import Any

from doctortool import resolver


def fields(_: argparse.Namespace, __: Any, view: Any, backends: Any) -> resolver.Answer:
    """Every field of the resolved arguments."""
    found = {name: getattr(view, name) for name in _names() if hasattr(view, name)}
    found["prefill, decode"] = tuple(backends)
    found["prefill graph"] = _prefill_graph(view)
    found["chunked prefix cache"] = _keeps_prefix_chunks(view, backends)
    return {name: repr(value) for name, value in found.items()}


@functools.cache
def _names() -> tuple[str, ...]:
    """Names of the arguments as the command line knows them."""
    server_args: Any = importlib.import_module("sglang.srt.server_args")
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    return tuple(action.dest for action in parser._actions)


def _prefill_graph(view: Any) -> str:
    if hasattr(view, "cuda_graph_config"):
        return str(view.cuda_graph_config.prefill.backend)
    return "tc_piecewise" if view.enable_piecewise_cuda_graph else "disabled"


def _keeps_prefix_chunks(view: Any, backends: Any) -> bool:
    try:
        gate: Any = importlib.import_module(
            "sglang.srt.model_executor.model_runner_components.misc_utils"
        )
    except ModuleNotFoundError:  # up to 0.5.9 the gate is a method of the runner
        runner = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
        runner.model_specific_adjustment(
            SimpleNamespace(server_args=view, is_multimodal=False, use_mla_backend=True)
        )
        return not view.disable_chunked_prefix_cache
    switched_off = []
    gate.get_schedule = lambda: SimpleNamespace(
        disable_chunked_prefix_cache=view.disable_chunked_prefix_cache
    )
    gate.get_context = lambda: SimpleNamespace(override=lambda *_, **off: switched_off.append(off))
    gate.get_exec = lambda: SimpleNamespace(
        kernel=SimpleNamespace(attention_backend=view.attention_backend)
    )
    gate.attention_backends = lambda: backends
    gate.maybe_disable_chunked_prefix_cache(use_mla_backend=True, is_draft_worker=False)
    return not switched_off and not view.disable_chunked_prefix_cache


if __name__ == "__main__":
    resolver.main(fields)
