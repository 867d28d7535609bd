"""Stand-in for torchvision, whose wheel would bring a CUDA build of torch along.

sglang and transformers import names from it, and use them for images alone.
"""

__version__ = "0.28.0"
