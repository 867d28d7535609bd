"""What the overlay depends on upstream, checked on source text with `ast` alone.

`contract.toml` holds what the overlay's modules need of every release, `patches/<release>/
contract.toml` what they and the patches need of that release. Each `[[entry]]` is one upstream
symbol: `file` and `symbol` say where it is (a symbol that the file imports is followed to the file
that defines it); `needed_by` is "FILE: TEXT", a line of the overlay or of a patch that breaks
without it. At most one predicate narrows it:

    parameters  names that the function takes (a `*` among them: those after it by keyword)
    signature   the whole parameter list, as the overlay overrides it; a list of accepted forms
    assigns     attributes that the function sets on self
    contains    values that the list, set, tuple or dict holds
    code        patterns that occur in it: `_` is any expression, `...` any further items
    calls       calls that occur in it, and no call of the same function that differs
    abstract    every method that a subclass must bring
    bases       names among the class's bases

Without one, the symbol has to exist. A `[[cure]]` is the reverse: `code` that is upstream's fault,
and the overlay has less to do once it is gone.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from overlaytool.contract.predicates import PREDICATES
from overlaytool.contract.symbols import Modules, Read
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import Pin

Verdict = Literal["held", "changed", "gone", "unread"]


@dataclass(frozen=True)
class Entry:
    file: str
    symbol: str
    predicate: str
    wanted: tuple[str, ...]
    needed_by: str


@dataclass(frozen=True)
class Finding:
    """`old` is the symbol in the pin's tree (or what the entry asks for), `new` in the target."""

    file: str
    symbol: str
    verdict: Verdict
    old: str
    new: str
    needed_by: str


class ContractError(Refusal):
    """contract.toml does not say what it must."""


def load(path: Path, table: str = "entry") -> list[Entry]:
    """The entries of a contract file; `table` is "entry" or "cure"."""
    try:
        rows = tomllib.loads(path.read_text("utf-8")).get(table, [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ContractError(f"{path} is not a readable contract: {error}") from error
    return [_entry(path, row) for row in rows]


def of_pin(pin: Pin, table: str = "entry") -> list[Entry]:
    """The rows of the overlay's contract, then those of a pin's."""
    files = (pin.repository / "contract.toml", pin.folder / "contract.toml")
    return [entry for file in files for entry in load(file, table)]


def require(pin: Pin, target: Read) -> None:
    """Raises `Refusal` (30) where a file of sglang breaks the contract, in one sentence."""
    entries = [entry for entry in of_pin(pin) if entry.file.startswith("sglang/")]
    broken = [finding for finding in check(entries, target) if finding.verdict != "held"]
    if broken:
        first, more = broken[0], f" and {len(broken) - 1} more" if broken[1:] else ""
        raise Refusal(
            f"{first.file}: {first.symbol} is not as sglang {pin.release} has it{more}, and "
            f"{first.needed_by.partition(':')[0]} depends on it: use sglang {pin.release} as it "
            "was released",
            Exit.CONTRACT,
        )


def _entry(path: Path, row: dict[str, object]) -> Entry:
    used = [key for key in row if key in PREDICATES]
    unknown = row.keys() - {"file", "symbol", "needed_by", *PREDICATES}
    where = f"{path}: entry {row.get('symbol', row.get('file', '?'))}"
    if unknown or len(used) > 1:
        raise ContractError(f"{where}: one predicate at most, and no {sorted(unknown) or used}")
    named = [row.get(key) for key in ("file", "symbol", "needed_by")]
    if not all(isinstance(text, str) for text in named):
        raise ContractError(f"{where}: file, symbol and needed_by must be given as strings")
    wanted = row[used[0]] if used else []
    if not isinstance(wanted, list) or not all(isinstance(item, str) for item in wanted):
        raise ContractError(f"{where}: {used[0]} must be a list of strings")
    file, symbol, needed_by = map(str, named)
    return Entry(file, symbol, used[0] if used else "defined", tuple(wanted), needed_by)


def needing_line(folders: list[Path], needed_by: str) -> str:
    """ "FILE: TEXT" as "FILE:LINE TEXT"; the text has to stand on exactly one line of the file."""
    file, _, text = needed_by.partition(": ")
    path = next((found for folder in folders if (found := folder / file).is_file()), None)
    lines = path.read_text("utf-8").splitlines() if path else []
    hits = [number for number, line in enumerate(lines, 1) if text and text in line]
    if len(hits) != 1:
        raise ContractError(f"needed_by {needed_by!r}: {len(hits)} lines match; name exactly one")
    return f"{file}:{hits[0]} {lines[hits[0] - 1].strip()}"


def check(entries: list[Entry], target: Read, pin: Read | None = None) -> list[Finding]:
    """One finding an entry, in order. `Read` gives a file's bytes, or None where it is absent."""
    modules, pin_modules = Modules(target), Modules(pin) if pin else None
    return [_finding(entry, modules, pin_modules) for entry in entries]


def _finding(entry: Entry, modules: Modules, pin_modules: Modules | None) -> Finding:
    verdict, new = judge(entry, modules)
    old = judge(entry, pin_modules)[1] if pin_modules else ", ".join(entry.wanted) or "defined"
    if verdict == "held":
        new = old
    return Finding(entry.file, entry.symbol, verdict, old, new, entry.needed_by)


def judge(entry: Entry, modules: Modules) -> tuple[Verdict, str]:
    """The verdict and what the tree has in the entry's place."""
    try:
        node = modules.find(entry.file, entry.symbol)
    except SyntaxError as error:
        return "unread", f"line {error.lineno} does not parse"
    if node is None:
        return "gone", "absent"
    held, seen = PREDICATES[entry.predicate](node, entry.wanted)
    return ("held" if held else "changed"), seen
