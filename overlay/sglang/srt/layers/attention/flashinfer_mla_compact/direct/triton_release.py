"""What differs by Triton's release, for the kernels in Gluon."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Triton 3.9 knows each under the first name only, Triton 3.6 under the second.
async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_memory = gl.shared_memory_descriptor
reinterpret = getattr(_memory, "reinterpret", None) or _memory._reinterpret
