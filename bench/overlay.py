"""Load modules of the overlay from this repository, whatever sglang tree is on the path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "sglang.srt.layers.attention.flashinfer_mla_compact"
FOLDER = Path(__file__).resolve().parents[1] / "overlay" / Path(*PACKAGE.split("."))

# The modules of the direct kernel, each after those that it imports.
DIRECT = (
    "direct_codecs",
    "direct_kernels",
    "direct_splits",
    "direct_gluon",
    "direct_mma_tile",
    "direct_mma",
    "direct_wgmma_scores",
    "direct_wgmma_wide",
    "direct_configs",
    "direct",
)


def load(*names: str) -> ModuleType:
    """Import overlay modules in this order under their full names; the last is returned.

    Python looks a full name up before it imports the packages above, so sglang itself, which
    takes many seconds, is not imported.
    """
    for name in names:
        full = f"{PACKAGE}.{name}"
        if full not in sys.modules:
            spec = importlib.util.spec_from_file_location(full, FOLDER / f"{name}.py")
            assert spec is not None and spec.loader is not None
            sys.modules[full] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[full])
    return sys.modules[f"{PACKAGE}.{names[-1]}"]
