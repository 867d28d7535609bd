"""A GPU that is not there, for sglang, which decides what it runs on when it is imported."""

from __future__ import annotations

import gc
import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

# Imported before a device is faked, as these take it for a build of torch with CUDA in it.
REAL = (
    "torch._dynamo.aot_compile",
    "torch._inductor.compile_fx",
    "transformers.models.auto.processing_auto",
    "triton.language",
)
GPU_PACKAGES = ("sgl_kernel", "flashinfer", "deep_gemm")
MEMORY = 141 * 2**30


def import_real() -> None:
    """Import REAL, with Python's garbage collection off for good: it costs a sixth of that time."""
    gc.disable()
    for name in REAL:
        importlib.import_module(name)


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
    torch: Any = importlib.import_module("torch")
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
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: capability
    cuda.get_device_name = lambda *_: properties.name
    cuda.get_device_properties = lambda *_: properties
    cuda.mem_get_info = lambda *_: (MEMORY, MEMORY)
    operators = torch.library
    register = operators.register_fake
    operators.register_fake = lambda name, *more, **options: (
        (lambda function: function)  # an operator that a stand-in has not defined
        if name.split("::")[0] in GPU_PACKAGES
        else register(name, *more, **options)
    )
