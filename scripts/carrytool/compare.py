"""What upstream did to what a pin depends on: each name untouched, to be read, or broken."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from overlaytool.contract.symbols import Definition, Modules
from overlaytool.errors import Exit, Refusal

from carrytool import mentions
from carrytool.needs import Needs
from carrytool.upstream import Upstream

_WIDE = 100


class Judged(StrEnum):
    """What became of a name; later members are worse."""

    UNTOUCHED = "untouched"
    READ = "to be read"
    BROKEN = "broken"
    UNREAD = "could not be read"


@dataclass(frozen=True)
class Change:
    """A name that is not untouched: `lines` are ours, `faults` what breaks, `diff` what to read."""

    name: str
    verdict: Judged
    lines: tuple[str, ...]
    faults: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()


def compare(needs: Needs, own: Upstream, target: Upstream) -> list[Change]:
    """Every name of the pin that is not untouched in the target, then the mentions."""
    there = needs.with_ours(target)
    found = [_judge(needs, there, target, name) for name in needs.uses]
    changed = {change.name for change in found if change.verdict is not Judged.UNTOUCHED}
    rows = [c for c in found if c.verdict is not Judged.UNTOUCHED and not _covered(c, changed)]
    if any(change.verdict is Judged.UNREAD for change in rows):
        return rows
    try:
        return [*rows, *_gained(needs, there), *_mentions(needs, own, target)]
    except SyntaxError as error:
        raise Refusal(f"a file of {target.name} does not parse: {error}", Exit.UNTRIED) from None


def _gained(needs: Needs, there: Modules) -> Iterator[Change]:
    for name, lines in needs.gained(there).items():
        yield Change(
            name, Judged.READ, tuple(dict.fromkeys(lines)), ("ours uses it, and it is new",)
        )


def _covered(change: Change, changed: set[str]) -> bool:
    """Whether the change of a member is shown with that of its class."""
    owner, _, _ = change.name.rpartition(".")
    return change.verdict is Judged.READ and ":" in owner and owner in changed


def _judge(needs: Needs, there: Modules, target: Upstream, name: str) -> Change:
    rows = needs.uses[name]
    lines = tuple(dict.fromkeys(row.line for row in rows))
    old = needs.tree.find(name)
    assert old is not None
    try:
        new = there.find(name) or _elsewhere(needs, there, name)
        if new is None and not any(row.imported for row in rows):
            new = _moved(there, target, name)
        if new is None:
            others = {other for row in rows for other in row.others} - {name}
            mild = any(map(there.find, others)) or all(row.optional for row in rows)
            mild = mild or there.hides(name)
            return Change(name, Judged.READ if mild else Judged.BROKEN, lines, ("it is gone",))
        if new == old and not isinstance(new.node, ast.ClassDef):
            return Change(name, Judged.UNTOUCHED, lines)
        faults = needs.faults(there, name, new) - needs.faults(needs.tree, name, old)
    except SyntaxError as error:
        return Change(name, Judged.UNREAD, lines, (f"line {error.lineno} does not parse",))
    diff = _diff(old.text, new.text)
    verdict = Judged.BROKEN if faults else Judged.READ if diff else Judged.UNTOUCHED
    return Change(name, verdict, lines, tuple(sorted(faults)), diff)


def _elsewhere(needs: Needs, there: Modules, name: str) -> Definition | None:
    """Where the target has an attribute that a pin has in another of the classes it may be in."""
    others = {other for row in needs.uses[name] for other in row.others} - needs.uses.keys()
    return next((found for other in sorted(others) if (found := there.find(other))), None)


def _moved(there: Modules, target: Upstream, name: str) -> Definition | None:
    """The same name in the one other file that defines its class or function."""
    symbol = name.partition(":")[2]
    first = symbol.removesuffix("()").split(".")[0]
    marks = (f"class {first}".encode(), f"def {first}".encode(), f"\n{first} =".encode())
    files = [f for f in target.files if any(m in (target.read(f) or b"") for m in marks)]
    found = [one for file in files if (one := there.find(f"{file}:{symbol}"))]
    places = {one.file for one in found}
    return found[0] if len(places) == 1 else None


def _diff(old: str, new: str) -> tuple[str, ...]:
    here, there = ([p for line in text.split("\n") for p in _folded(line)] for text in (old, new))
    found = difflib.unified_diff(here, there, n=1, lineterm="")
    return tuple(line for line in found if not line.startswith(("---", "+++")))


def _folded(line: str) -> list[str]:
    """A long line cut at its commas, so that a change in it does not show all of it."""
    if len(line) <= _WIDE:
        return [line]
    first, *rest = line.split(", ")
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return (
        [f"{first},", *(f"{indent}{part}," for part in rest[:-1]), indent + rest[-1]]
        if rest
        else [line]
    )


def _mentions(needs: Needs, own: Upstream, target: Upstream) -> Iterator[Change]:
    classes, members = needs.classes_and_members()
    files = sorted({*own.files, *target.files})
    moved = [file for file in files if own.read(file) != target.read(file)]
    here, there = (
        mentions.in_tree(moved, side.read, needs.mentioned, classes, members)
        for side in (own, target)
    )
    rows = mentions.changes(here, there)
    if rows:
        diff = tuple(f"{mark}{place.file}:{place.function}: {place.code}" for mark, place in rows)
        yield Change("places that name us", Judged.READ, ("contract.toml: mentioned",), (), diff)
