"""Load modules of the overlay from this repository, whatever sglang tree is on the path."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "sglang.srt.layers.attention.flashinfer_mla_compact"
FOLDER = Path(__file__).resolve().parents[1] / "overlay" / Path(*PACKAGE.split("."))


def load(name: str) -> ModuleType:
    """Import the overlay's module `name`, for example "direct.attend", without sglang.

    Python looks a full name up before it imports the packages above it, so sglang itself, which
    takes many seconds, is not imported as long as the module needs nothing of it.
    """
    if PACKAGE not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            PACKAGE, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKAGE])
    return importlib.import_module(f"{PACKAGE}.{name}")
