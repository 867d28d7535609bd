"""What the overlay depends on upstream: the definitions that it was read and tested with.

`patches/<release>/contract.toml` holds, for each file of upstream, the names that the overlay
subclasses, calls, replaces or imitates, with a digest of each definition and the file of ours that
depends on it. `make lock` writes it. A digest leaves out what does not run: comments, docstrings,
annotations, positions. A name that a file imports is followed to where it is defined.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from overlaytool.contract.symbols import Modules, Read
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import Pin

Contract = Mapping[str, tuple[str, str]]


def load(pin: Pin) -> Contract:
    """Digest and dependent of each name ("FILE:Class.member") of a pin's contract.

    Raises `Refusal` (1) where the file is not readable.
    """
    path = pin.folder / "contract.toml"
    try:
        files = tomllib.loads(path.read_text("utf-8"))
        rows = {
            f"{file}:{name}": row for file, names in files.items() for name, row in names.items()
        }
        return {name: (str(row[0]), str(row[1])) for name, row in rows.items()}
    except (OSError, ValueError, AttributeError, LookupError) as error:
        raise Refusal(f"{path} is not a readable contract ({error}): run `make lock`") from error


def require(pin: Pin, target: Read) -> None:
    """Raises `Refusal` (30) where sglang is not as the overlay was made for, in one sentence.

    The files that the lock holds are not looked at: their bytes are known, patched or not.
    """
    modules, known = Modules(target), {entry.path for entry in pin.lock().entries}
    rows = {name: row for name, row in load(pin).items() if name.startswith("sglang/")}
    changed = [
        n for n, row in rows.items() if digest_of(modules, n) != row[0] and _file(n) not in known
    ]
    if changed:
        file, _, symbol = changed[0].partition(":")
        more = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise Refusal(
            f"{file}: {symbol} is not as sglang {pin.release} has it{more}, and "
            f"{rows[changed[0]][1]} depends on it: use sglang {pin.release} as it was released",
            Exit.CONTRACT,
        )


def _file(name: str) -> str:
    return name.partition(":")[0]


def digest_of(modules: Modules, name: str) -> str:
    """The digest of a definition; of one that is gone or can't be read, a word."""
    try:
        found = modules.find(name)
    except SyntaxError:
        return "unread"
    return found.digest if found else "gone"
