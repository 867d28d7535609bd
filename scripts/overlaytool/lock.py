"""The lock of a pin: the sha256 of what it is made from, and of both states of each path."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaytool.errors import Exit, Refusal

ABSENT = "absent"
FORMAT = 1
# 64 bits tell our own earlier files apart; they never prove what is about to be written.
SHORT = 16


@dataclass(frozen=True)
class Entry:
    """One path of the lock.

    `pristine` and `applied` are sha256 in hex, or `absent`. `earlier` holds the first 16 digits of
    what earlier revisions left there. `patches` names the patches that change the path, in order;
    it is empty for a file of the overlay. A path that this revision no longer touches stays, with
    `applied` equal to `pristine`, so that trees of earlier revisions can be upgraded.
    """

    path: str
    pristine: str
    applied: str
    earlier: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lock:
    """A pin's lock; `wheels` and `patches` map file names to sha256 in hex."""

    version: str
    wheels: Mapping[str, str]
    patches: Mapping[str, str]
    entries: tuple[Entry, ...]


def digest(data: bytes | None) -> str:
    """sha256 of `data` in hex, or `absent` for `None`."""
    return ABSENT if data is None else hashlib.sha256(data).hexdigest()


def load(file: Path) -> Lock:
    """Read a lock. Raises `Refusal` where it is missing or not one of this tool's."""
    try:
        table = tomllib.loads(file.read_text())
        if table["lock"] != FORMAT:
            raise ValueError(f"format {table['lock']}")
        entries = tuple(
            Entry(
                row["path"],
                row["pristine"],
                row["applied"],
                tuple(row.get("earlier", ())),
                tuple(row.get("patches", ())),
            )
            for row in table.get("path", ())
        )
        return Lock(table["upstream"]["version"], table["wheels"], table["patches"], entries)
    except FileNotFoundError:
        message = f"{file} is missing: write it with `scripts/overlay lock`"
        raise Refusal(message, Exit.FAILED) from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Refusal(f"{file} is not a lock of this tool: {error}", Exit.FAILED) from None


def dump(lock: Lock) -> str:
    """TOML text of a lock; equal locks give equal bytes."""
    head = [
        "# Written by `scripts/overlay lock`, never by hand.",
        f"lock = {FORMAT}",
        "",
        "[upstream]",
        'name = "sglang"',
        f"version = {_quote(lock.version)}",
    ]
    tables = [*_table("wheels", lock.wheels), *_table("patches", lock.patches)]
    rows = [line for entry in sorted(lock.entries, key=lambda e: e.path) for line in _row(entry)]
    return "\n".join([*head, *tables, *rows, ""])


def _quote(text: str) -> str:
    return json.dumps(text)


def _table(name: str, table: Mapping[str, str]) -> list[str]:
    return ["", f"[{name}]", *(f"{_quote(key)} = {_quote(table[key])}" for key in sorted(table))]


def _row(entry: Entry) -> list[str]:
    lines = ["", "[[path]]"]
    lines += [
        f"{name} = {_quote(getattr(entry, name))}" for name in ("path", "pristine", "applied")
    ]
    for name, values in (("earlier", entry.earlier), ("patches", entry.patches)):
        if values:
            lines.append(f"{name} = [{', '.join(map(_quote, values))}]")
    return lines
