"""Asks several sglangs for every field of resolved arguments, each in forks of one process.

A field is given as its repr. Added are the prefill graph and whether the prefix cache stays
chunked. "doctor" is what the doctor reads of the arguments.

stdin:  JSON {folder of a sglang: {"devices": {label: [major, minor]},
        "runs": {label: [argument, ...]}}}
stdout: JSON {folder: {device: {run: {"fields": ..., "doctor": ...} or {"error": ...}}}}
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

from doctortool import resolver, runner_facts
from doctortool.fake_device import import_real
from doctortool.fork import in_child


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


def read(raw: argparse.Namespace, args: Any, view: Any, backends: Any) -> resolver.Answer:
    """What the tests compare, and what the doctor reads."""
    doctor = runner_facts.answer(raw, args, view, backends)
    return {"fields": fields(raw, args, view, backends), "doctor": doctor}


def on_devices(tree: str, devices: Mapping[str, list[int]], runs: Mapping[str, list[str]]) -> Any:
    """What the sglang in `tree` makes of `runs` on each device."""
    sys.path.insert(0, tree)
    return {
        label: in_child(functools.partial(resolver.on_device, capability, runs, read))
        for label, capability in devices.items()
    }


def main() -> None:
    with redirect_stdout(sys.stderr):  # sglang logs there
        import_real()
        answers = {
            tree: in_child(functools.partial(on_devices, tree, **asked))
            for tree, asked in json.load(sys.stdin).items()
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
