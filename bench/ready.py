"""Whether this Python, on this host, can measure: one sentence before anything is made if not.

  python -m bench.ready

exit status: 0 it can; 2 torch or sglang is missing, or there is no GPU.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec


def require_host() -> None:
    """ValueError with one sentence where no engine could start."""
    missing = [name for name in ("torch", "sglang") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"{sys.executable} has no {' and no '.join(missing)}: run this with the Python that "
            "has sglang and this backend (make ... PYTHON=...)."
        )
    import torch

    if not torch.cuda.is_available():
        raise ValueError("torch sees no GPU: run this on the host of the card to be measured.")


def main() -> int:
    try:
        require_host()
    except ValueError as problem:
        print(f"python -m bench.ready: error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
