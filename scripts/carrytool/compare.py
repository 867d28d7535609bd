"""What upstream did to what a pin depends on: each name untouched, to be read, or broken."""

from __future__ import annotations

import ast
import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from overlaytool.contract.symbols import Definition, Modules
from overlaytool.errors import Exit, Refusal
from overlaytool.patch import forward
from overlaytool.pin import Pin

from carrytool import binding, mentions, uses
from carrytool.upstream import Upstream
from carrytool.uses import PACKAGE, Use

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


class Needs:
    """What a pin needs of upstream: by its overlay, its patches and `contract.toml`."""

    def __init__(self, pin: Pin, own: Upstream, patched: Upstream | None = None) -> None:
        """`own` is what the uses are looked up in, `patched` what the patches are made for."""
        self._pin, self._patched = pin, patched or own
        said = _said(pin)
        self.mentioned: Mapping[str, bool] = said.get("mentioned", {})
        self._holds = {name: tuple(of) for name, of in said.get("holds", {}).items()}
        self._imitates: Mapping[str, list[str]] = said.get("imitates", {})
        self._stands_in: Mapping[str, str] = said.get("stands_in", {})
        self.tree = self.with_ours(own)

    def with_ours(self, upstream: Upstream) -> Modules:
        """The files of an upstream, together with the overlay's."""
        ours = self._pin.overlay()
        return Modules(
            lambda path: ours[path].read_bytes() if path in ours else upstream.read(path)
        )

    @cached_property
    def uses(self) -> Mapping[str, list[Use]]:
        """The uses of each name that the pin's own release has."""
        found: dict[str, list[Use]] = {}
        for use in self.read():
            if place := self.tree.find(use.name):
                real = f"{place.file}:{use.name.partition(':')[2]}"
                name = use.name if use.imported or use.optional or real not in found else real
                found.setdefault(name, []).append(use)
        return dict(sorted(found.items()))

    def read(self) -> Iterator[Use]:
        """Every use, also of names that the release does not have."""
        for file in self._pin.overlay():
            if file.startswith(PACKAGE) and file.endswith(".py"):
                yield from uses.of_module(file, self.tree, self._holds)
        yield from self._of_patches()
        for line, names in self._imitates.items():
            if (self._pin.folder / line.partition(":")[0]).exists() or ".py: " in line:
                same = {name: tuple(n for n in names if _last(n) == _last(name)) for name in names}
                yield from (Use(name, line, others=same[name]) for name in names)

    def _of_patches(self) -> Iterator[Use]:
        texts: dict[str, bytes] = {}
        for patch in self._pin.patches():
            for path in patch.files:
                before = texts.get(path) or self._patched.read(path) or b""
                texts[path] = after = forward([patch], path, before) or b""
                added = _added(before.decode(), after.decode())
                lines = {number: f"{patch.name}: {text}" for number, text in added.items()}
                old, new = (Modules({path: text}.get) for text in (before, after))
                yield from uses.of_change(path, old, new, lines)

    @cached_property
    def whole(self) -> list[str]:
        """The names whose code is pinned; of classes that are only named, nothing is."""
        derived = {name for name, rows in self.uses.items() if any(row.derived for row in rows)}
        return [n for n in self.uses if n in derived or not self._is_class(n)]

    def _is_class(self, name: str) -> bool:
        found = self.tree.find(name)
        return found is not None and isinstance(found.node, ast.ClassDef)

    def faults(self, tree: Modules, name: str, found: Definition) -> set[str]:
        """What does not fit together there, in words; much of it may do so in the pin, too."""
        method = "." in name.partition(":")[2]
        said = {f"it is a {kind}" for node in found.nodes if (kind := _container(node))}
        function = _function(tree, found)
        if function:
            theirs = binding.signature(function, method or isinstance(found.node, ast.ClassDef))
            for use in self.uses[name]:
                if use.call and (fault := binding.fault(theirs, use.call)):
                    said.add(f"`{use.line}`: {fault}")
                if use.override:
                    ours = binding.signature(use.override, True)
                    said |= {f"`{use.line}`: {f}" for f in binding.faults(ours, theirs)}
        said |= {f"{name} is abstract" for name in _abstract(tree, found)}
        return said | {fault for node in found.nodes for fault in self._calls_of_ours(tree, node)}

    def _calls_of_ours(self, tree: Modules, body: ast.AST) -> Iterator[str]:
        for call in (node for node in ast.walk(body) if isinstance(node, ast.Call)):
            match call.func:
                case ast.Attribute(ast.Name(receiver) | ast.Attribute(attr=receiver), method) if (
                    receiver in self._stands_in
                ):
                    file, _, cls = self._stands_in[receiver].partition(":")
                    ours = tree.find(f"{PACKAGE}{file}:{cls}.{method}")
                    function = _function(tree, ours) if ours and uses.is_ours(ours) else None
                    target = binding.signature(function, True) if function else None
                    if target and (fault := binding.fault(target, call)):
                        said = ast.unparse(call)
                        yield f"`{file}: {cls}.{method}` does not take `{said}`: {fault}"


def _said(pin: Pin) -> dict[str, Any]:
    file = pin.repository / "contract.toml"
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"{file} is not readable ({error}): take it from the repository") from None


def _last(name: str) -> str:
    return name.rpartition(".")[2].rpartition(":")[2]


def _added(before: str, after: str) -> dict[int, str]:
    old, new = before.splitlines(), after.splitlines()
    steps = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    numbers = (n for tag, _, _, a, b in steps if tag != "equal" for n in range(a, b))
    return {number + 1: new[number].strip() for number in numbers}


def _container(node: ast.AST) -> str:
    match getattr(node, "value", None):
        case ast.Call(func=ast.Name(kind)) if kind in ("frozenset", "set", "tuple", "list", "dict"):
            return kind
        case ast.List() | ast.Set() | ast.Tuple() | ast.Dict() as literal:
            return type(literal).__name__.lower()
    return ""


def _function(tree: Modules, found: Definition) -> ast.FunctionDef | None:
    if isinstance(found.node, ast.ClassDef):
        made = tree.member(found, "__init__")
        return _function(tree, made) if made else None
    return found.node if isinstance(found.node, ast.FunctionDef) else None


def _abstract(tree: Modules, found: Definition) -> set[str]:
    """The methods that a class leaves to those that derive from it."""
    open_: set[str] = set()
    for cls in reversed([found, *tree.ancestors(found)]):
        for node in (n for n in getattr(cls.node, "body", []) if isinstance(n, ast.FunctionDef)):
            marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
            (open_.add if "abstractmethod" in marks else open_.discard)(node.name)
    return open_


def compare(needs: Needs, own: Upstream, target: Upstream) -> list[Change]:
    """Every name of the pin that is not untouched in the target, then the mentions."""
    there = needs.with_ours(target)
    found = [_judge(needs, there, target, name) for name in needs.uses]
    changed = {change.name for change in found if change.verdict is not Judged.UNTOUCHED}
    rows = [c for c in found if c.verdict is not Judged.UNTOUCHED and not _covered(c, changed)]
    return [*rows, *_mentions(needs, own, target)]


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
            return Change(name, Judged.READ if mild else Judged.BROKEN, lines, ("it is gone",))
        if new.nodes == old.nodes and not isinstance(new.node, ast.ClassDef):
            return Change(name, Judged.UNTOUCHED, lines)
        faults = needs.faults(there, name, new) - needs.faults(needs.tree, name, old)
    except SyntaxError as error:
        return Change(name, Judged.UNREAD, lines, (f"line {error.lineno} does not parse",))
    diff = _diff(old.text, new.text) if name in needs.whole else ()
    verdict = Judged.BROKEN if faults else Judged.READ if diff else Judged.UNTOUCHED
    return Change(name, verdict, lines, tuple(sorted(faults)), diff)


def _elsewhere(needs: Needs, there: Modules, name: str) -> Definition | None:
    """Where the target has an attribute that a pin has in another of the classes it may be in."""
    others = {other for row in needs.uses[name] for other in row.others} - needs.uses.keys()
    return next((found for other in sorted(others) if (found := there.find(other))), None)


def _moved(there: Modules, target: Upstream, name: str) -> Definition | None:
    """The same name in the one other file that defines its class or function."""
    symbol = name.partition(":")[2]
    first = symbol.split(".")[0]
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
    members = {name.rpartition(".")[2] for name in needs.uses}
    files = sorted({*own.files, *target.files})
    moved = [file for file in files if own.read(file) != target.read(file)]
    try:
        here, there = (
            mentions.in_tree(moved, side.read, needs.mentioned, members) for side in (own, target)
        )
    except SyntaxError as error:
        raise Refusal(f"a file that names us does not parse: {error}", Exit.UNTRIED) from None
    rows = mentions.changes(here, there)
    if rows:
        diff = tuple(f"{mark}{place.file}:{place.function}: {place.code}" for mark, place in rows)
        yield Change("places that name us", Judged.READ, ("contract.toml: mentioned",), (), diff)
