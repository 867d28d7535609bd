"""JSON files of results: read, written whole and kept to one host, or refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read(path: Path, *names: str) -> list[Any]:
    """What a file holds under each of `names`; ValueError with one sentence if it is not ours."""
    try:
        content = json.loads(path.read_text())
        return [content[name] for name in names]
    except (OSError, ValueError, LookupError, TypeError) as failure:
        raise ValueError(f"{path} can't be read as results ({failure}): remove it.") from None


def write(path: Path, content: object) -> None:
    """Replace the file at once, so that a reader or a killed run never sees half of it.

    ValueError with one sentence if it can't be written, or is there and no regular file.
    """
    try:
        if path.exists() and not path.is_file():  # it would be replaced, /dev/null too
            raise ValueError(f"{path} is no file: name another file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(content, indent=1) + "\n")
        fresh.replace(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: name another file.") from None


def require_host(path: Path, records: Iterable[dict[str, Any]], host: dict[str, str]) -> None:
    """ValueError with one sentence if records are of another card or of other versions."""
    for other in (record["host"] for record in records):
        if names := [name for name in host if host[name] != other.get(name)]:
            was, now = ([f"{name} {one.get(name)}" for name in names] for one in (other, host))
            raise ValueError(
                f"{path} holds figures of {', '.join(was)}, this is {', '.join(now)}: "
                "name another file."
            )
