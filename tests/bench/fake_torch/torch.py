"""A stand-in that imports at once; processes of the stand-in engine ask torch for its version."""

import os
from types import SimpleNamespace

__version__ = "0"
version = SimpleNamespace(cuda=None)
cuda = SimpleNamespace(
    is_available=lambda: "FAKE_NO_GPU" not in os.environ, get_device_name=lambda: "stand-in"
)
