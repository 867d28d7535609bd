"""Applies the overlay to a pinned sglang and takes it off; needs Python 3.11 and nothing else."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the older one is what runs this line
    print(
        f"this needs Python 3.11 or newer; {sys.executable}, which runs it, is "
        f"{sys.version.split()[0]}: put a newer python3 first on PATH, or run it with one by name",
        file=sys.stderr,
    )
    sys.exit(2)
