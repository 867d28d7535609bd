"""Prints what the results of a GPU run are named after: the cards and the release of sglang.

Which overlay ran stands in the results themselves, as `overlay_digest` gives it.
"""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "overlay"


def tree() -> Path | None:
    """The folder on the path that has sglang, which is not imported."""
    spec = find_spec("sglang")
    return None if spec is None or spec.origin is None else Path(spec.origin).parents[1]


def release() -> str:
    """The version that the sglang on the path states."""
    found_in = tree()
    if found_in is None:
        raise SystemExit("no sglang on the path: put an applied tree on PYTHONPATH")
    text = (found_in / "sglang/_version.py").read_text()
    found = re.search(r"""^__version__ = .*['"]([^'"]+)['"]""", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{found_in / 'sglang'} states no version")
    return found[1]


def overlay_digest(tree: Path, release: str) -> str:
    """Twelve hex digits of the overlay's files as they lie in `tree`, and of a release's patches.

    A file that the tree lacks, or has from another checkout, gives other digits.
    """
    overlaid = sorted(file.relative_to(OVERLAY) for file in OVERLAY.rglob("*.py"))
    patches = sorted((ROOT / "patches" / release).glob("*.patch"))
    digest = sha256()
    for file in [*(tree / path for path in overlaid), *patches]:
        data = file.read_bytes() if file.is_file() else b"absent"
        digest.update(f"{file.name} {sha256(data).hexdigest()}\n".encode())
    return digest.hexdigest()[:12]


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
