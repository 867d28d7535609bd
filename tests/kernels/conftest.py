"""Kernel tests run under Triton's interpreter, on modules of the overlay that need no sglang."""

from __future__ import annotations

import os
import sys
from pathlib import Path

OVERLAY = Path(__file__).resolve().parents[2] / "overlay"

# Triton decides for each kernel, its own library included, when it is imported.
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(OVERLAY))
