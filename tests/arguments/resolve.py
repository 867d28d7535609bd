"""Resolves server arguments as sglang would on faked GPUs, for one backend name after another.

A backend's name is put for "@" in each list of flags. sglang decides what device it runs on when
it is imported, so each device gets a fork of this process, made before that.

stdin:  JSON {"devices": {label: [major, minor]}, "models": {label: folder},
              "flags": {label: [flag, ...]}, "names": [name, ...]}
stdout: JSON {device: {model: {flags: {name: {field: value}}}}}, values as their repr; of arguments
        that sglang refuses, the one field is "error"
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import library as operator_library

from tests.forked import in_child

# Imported before a device is faked, as these take it for a build of torch with CUDA in it.
REAL = (
    "torch._dynamo.aot_compile",
    "torch._inductor.compile_fx",
    "transformers.models.auto.processing_auto",
    "triton.language",
)
GPU_PACKAGES = ("sgl_kernel", "flashinfer", "deep_gemm")
MEMORY = 141 * 2**30


class StandIns:
    """Finds a package that needs a GPU, and gives a module with whatever is asked of it."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name.split(".")[0] not in GPU_PACKAGES:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        return MagicMock(__path__=[], __spec__=spec, __name__=spec.name, __version__="0.0.0")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the module is made."""


def fake_device(capability: tuple[int, int]) -> None:
    sys.meta_path.insert(0, StandIns())
    properties = SimpleNamespace(
        name="NVIDIA",
        major=capability[0],
        minor=capability[1],
        total_memory=MEMORY,
        multi_processor_count=132,
        warp_size=32,
    )
    torch.version.cuda = "13.0"
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: capability
    cuda.get_device_name = lambda *_: properties.name
    cuda.get_device_properties = lambda *_: properties
    cuda.mem_get_info = lambda *_: (MEMORY, MEMORY)
    operators: Any = operator_library
    register = operators.register_fake
    operators.register_fake = lambda name, *more, **options: (
        (lambda function: function)  # an operator that a stand-in has not defined
        if name.split("::")[0] in GPU_PACKAGES
        else register(name, *more, **options)
    )


def resolve(arguments: list[str]) -> dict[str, str]:
    """Every field of the resolved arguments, and whether the prefix cache stays chunked."""
    server_args: Any = importlib.import_module("sglang.srt.server_args")
    environment = dict(os.environ)  # sglang writes what it resolves there, for its children
    try:
        args = server_args.prepare_server_args(arguments)
        view, backends = _resolved(args)
        fields = {name: getattr(view, name) for name in _names(server_args) if hasattr(view, name)}
        fields["prefill, decode"] = tuple(backends)
        fields["prefill graph"] = _prefill_graph(view)
        fields["chunked prefix cache"] = _keeps_prefix_chunks(view, backends)
        return {name: repr(value) for name, value in fields.items()}
    except (ValueError, AssertionError) as error:
        return {"error": str(error)}
    finally:
        os.environ.clear()
        os.environ.update(environment)


@functools.cache
def _names(server_args: Any) -> tuple[str, ...]:
    """Names of the arguments as the command line knows them."""
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    return tuple(action.dest for action in parser._actions)


def _resolved(args: Any) -> tuple[Any, Any]:
    """The arguments as resolved, and their prefill and decode backends."""
    if not hasattr(args, "resolve_once"):  # up to 0.5.18 the constructor has resolved them in place
        return args, args.get_attention_backends()
    args.resolve_once()
    overrides: Any = importlib.import_module("sglang.srt.arg_groups.overrides")
    view = overrides.resolved_view(args)
    return view, overrides.attention_backends_of(view)


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


def on_device(capability: list[int], request: dict[str, Any]) -> Any:
    fake_device((capability[0], capability[1]))
    # It asks nvidia-smi, in MiB.
    common: Any = importlib.import_module("sglang.srt.utils.common")
    common.get_nvgpu_memory_capacity = lambda: MEMORY / 2**20
    return {
        model: {
            label: {
                name: resolve(["--model-path", folder, *(f.replace("@", name) for f in flags)])
                for name in request["names"]
            }
            for label, flags in request["flags"].items()
        }
        for model, folder in request["models"].items()
    }


def main() -> None:
    for name in REAL:
        importlib.import_module(name)
    request = json.load(sys.stdin)
    devices = request["devices"].items()
    with contextlib.redirect_stdout(sys.stderr):  # sglang logs there
        answers = {
            label: in_child(functools.partial(on_device, c, request)) for label, c in devices
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
