"""Whatever name is imported from here; none is called without a GPU."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return None
