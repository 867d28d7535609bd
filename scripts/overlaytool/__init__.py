"""Applies the overlay to a pinned sglang and takes it off; needs Python 3.11 and nothing else."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the older one is what runs this line
    print(
        f"this needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}: "
        "name a newer one",
        file=sys.stderr,
    )
    sys.exit(2)
