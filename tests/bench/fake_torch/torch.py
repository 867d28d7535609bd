"""A stand-in that imports at once; processes of the stand-in engine ask torch for its version."""

from types import SimpleNamespace

__version__ = "0"
version = SimpleNamespace(cuda=None)
cuda = SimpleNamespace(is_available=lambda: False)
