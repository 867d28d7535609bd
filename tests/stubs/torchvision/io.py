"""The names that sglang and transformers import; none is called without an image."""

from enum import Enum
from typing import Any


class ImageReadMode(Enum):
    UNCHANGED = 0
    RGB = 3


def decode_image(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("torchvision is a stand-in here: it decodes no image")


decode_jpeg = decode_image
