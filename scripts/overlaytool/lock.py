"""The lock of a pin: the sha256 of what it is made from, and of both states of each path.

Next to the locks, `patches/earlier` holds what earlier revisions of all pins left in trees, a line
each: 16 digits of the sha256 of a file that they wrote, the sha256 of upstream's own file or
`absent`, and the path. An upgrade knows its own old files by it.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overlaytool.errors import Refusal
from overlaytool.patch import PATH

ABSENT = "absent"
FORMAT = 1
# 64 bits tell our own earlier files apart; they never prove what is about to be written.
SHORT = 16


@dataclass(frozen=True)
class Entry:
    """One path of the lock.

    `pristine` and `applied` are sha256 in hex, or `absent`. `patches` names the patches that change
    the path, in order; it is empty for a file of the overlay.
    """

    path: str
    pristine: str
    applied: str
    patches: tuple[str, ...] = ()


Earlier = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Lock:
    """A pin's lock; `wheels` and `patches` map file names to sha256 in hex.

    `earlier` maps a path, and the first 16 digits of what earlier revisions left there, to the
    sha256 of upstream's own file, or to `absent`.
    """

    version: str
    wheels: Mapping[str, str]
    patches: Mapping[str, str]
    entries: tuple[Entry, ...]
    earlier: Earlier = field(default_factory=dict)


def digest(data: bytes | None) -> str:
    """sha256 of `data` in hex, or `absent` for `None`."""
    return ABSENT if data is None else hashlib.sha256(data).hexdigest()


def load(file: Path, earlier: Path) -> Lock:
    """Read a lock. Raises `Refusal` where it is missing or not one of this tool's."""
    try:
        table = tomllib.loads(file.read_text())
        if table["lock"] != FORMAT:
            raise ValueError(f"format {table['lock']}")
        entries = tuple(map(_entry, table.get("path", ())))
        past = load_earlier(earlier)
        version = table["upstream"]["version"]
        return Lock(version, table["wheels"], table["patches"], entries, past)
    except FileNotFoundError:
        message = f"{file} is missing: write it with `make lock`"
        raise Refusal(message) from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Refusal(f"{file} is not a lock of this tool: {error}") from None


def load_earlier(file: Path) -> dict[str, dict[str, str]]:
    """Read `patches/earlier`; nothing where there is none yet. Raises `ValueError`."""
    found: dict[str, dict[str, str]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        applied, pristine, path = line.split(" ")
        found.setdefault(_plain(path), {})[applied] = pristine
    return found


def _entry(row: Mapping[str, Any]) -> Entry:
    path = _plain(row["path"])
    return Entry(path, row["pristine"], row["applied"], tuple(row.get("patches", ())))


def _plain(path: str) -> str:
    """A path that cannot lead out of the tree."""
    if not PATH.fullmatch(path):
        raise ValueError(f"{path!r} is no plain path below sglang/")
    return path
