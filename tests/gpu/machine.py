"""Prints what the results of a GPU run are named after: the cards and the release of sglang."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path


def release() -> str:
    """The version that the sglang on the path states, without importing it."""
    spec = find_spec("sglang")
    if spec is None or spec.origin is None:
        raise SystemExit("no sglang on the path: put an applied tree on PYTHONPATH")
    text = Path(spec.origin).with_name("_version.py").read_text()
    found = re.search(r"""^__version__ = .*['"]([^'"]+)['"]""", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{spec.origin} states no version")
    return found[1]


def name(card: str, count: int) -> str:
    """Of a machine with `count` cards of one kind."""
    several = f"-x{count}" if count > 1 else ""
    return f"{card.lower().replace(' ', '-')}{several}"


def cards() -> str:
    """The name of this machine; SystemExit with one sentence where there is no card to run on."""
    try:
        import torch
    except ModuleNotFoundError:
        raise SystemExit("no torch here: name a GPU host's interpreter with PYTHON=") from None
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU: run this on a GPU host")
    return name(torch.cuda.get_device_name(), torch.cuda.device_count())


if __name__ == "__main__":
    print(f"{cards()}-sglang-{release()}")
