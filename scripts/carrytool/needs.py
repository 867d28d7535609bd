"""What a pin needs of upstream: by its overlay, its patches and `contract.toml`."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from overlaytool.contract.symbols import Definition, Modules
from overlaytool.errors import Refusal
from overlaytool.pin import Pin

from carrytool import binding, patch_uses, uses
from carrytool.upstream import Upstream
from carrytool.uses import PACKAGE, PLUGIN, Use


class Needs:
    """The uses of a pin, and what of them does not fit together in a tree.

    `own` is what the uses are looked up in, `patched` what the patches are made for.
    """

    def __init__(self, pin: Pin, own: Upstream, patched: Upstream | None = None) -> None:
        self._pin, self._patched = pin, patched or own
        self._ours = {path: file.read_bytes() for path, file in _modules(pin).items()}
        said = _said(pin)
        self.mentioned: Mapping[str, bool] = said.get("mentioned", {})
        self._holds = {name: tuple(of) for name, of in said.get("holds", {}).items()}
        self._imitates: Mapping[str, list[str]] = said.get("imitates", {})
        self._stands_in: Mapping[str, str] = said.get("stands_in", {})
        self.tree = self.with_ours(own)

    def with_ours(self, upstream: Upstream) -> Modules:
        """The files of an upstream, together with the overlay's."""
        ours = self._ours
        return Modules(lambda path: ours[path] if path in ours else upstream.read(path))

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
        yield from self._of_modules(self.tree)
        yield from self._of_patches()
        for line, names in self._imitates.items():
            if (self._pin.folder / line.partition(":")[0]).exists() or ".py: " in line:
                same = {name: tuple(n for n in names if _last(n) == _last(name)) for name in names}
                yield from (Use(name, line, others=same[name]) for name in names)

    def classes_and_members(self) -> tuple[set[str], set[str]]:
        """Names of the classes that are used, and of what is used of them."""
        symbols = [name.partition(":")[2] for name in self.uses]
        classes = {name.removesuffix("()") for name in symbols if name.endswith("()")}
        return classes, {name.rpartition(".")[2] for name in symbols if "." in name}

    def gained(self, tree: Modules) -> dict[str, list[str]]:
        """Names that ours takes from a tree and that the pin has nowhere, with our lines."""
        found: dict[str, list[str]] = {}
        known = {name.partition(":")[2] for name in self.uses}
        for use in self._of_modules(tree):
            moved = use.name.partition(":")[2] in known
            if (
                not moved
                and tree.find(use.name)
                and not any(map(self.tree.find, (use.name, *use.others)))
            ):
                found.setdefault(use.name, []).append(use.line)
        return found

    def _of_modules(self, tree: Modules) -> Iterator[Use]:
        for file, source in self._ours.items():
            if file.endswith(".py"):
                yield from uses.of_module(file, source, tree, self._holds)

    def _of_patches(self) -> Iterator[Use]:
        texts: dict[str, bytes] = {}
        for patch in self._pin.patches():
            for path in patch.files:
                before = texts.get(path) or self._patched.read(path) or b""
                texts[path], found = patch_uses.of_patch(patch, path, before)
                yield from found

    def faults(self, tree: Modules, name: str, found: Definition) -> set[str]:
        """What does not fit together there, in words; much of it may do so in the pin, too."""
        method = "." in name.partition(":")[2]
        found = tree.find(name.removesuffix("()")) or found
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
        for receiver, method, call in _method_calls(body):
            if receiver in self._stands_in:
                file, _, cls = self._stands_in[receiver].partition(":")
                ours = tree.find(f"{PACKAGE}{file}:{cls}.{method}")
                function = _function(tree, ours) if ours and uses.is_ours(ours) else None
                target = binding.signature(function, True) if function else None
                if target and (fault := binding.fault(target, call)):
                    said = ast.unparse(call)
                    yield f"`{file}: {cls}.{method}` does not take `{said}`: {fault}"


@cache
def _method_calls(body: ast.AST) -> list[tuple[str, str, ast.Call]]:
    """What is called on what name or attribute, and how."""
    found = []
    for call in (node for node in ast.walk(body) if isinstance(node, ast.Call)):
        match call.func:
            case ast.Attribute(ast.Name(receiver) | ast.Attribute(attr=receiver), method):
                found.append((receiver, method, call))
    return found


def _modules(pin: Pin) -> dict[str, Path]:
    """The files of the overlay, and those of the plugin."""
    plugin = sorted((pin.repository / PLUGIN).glob("*.py"))
    return {**pin.overlay(), **{f"{PLUGIN}{file.name}": file for file in plugin}}


def _said(pin: Pin) -> dict[str, Any]:
    file = pin.repository / "contract.toml"
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"{file} is not readable ({error}): take it from the repository") from None


def _last(name: str) -> str:
    return name.rpartition(".")[2].rpartition(":")[2]


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
    for cls in reversed(tree.line(found)):
        for node in (n for n in getattr(cls.node, "body", []) if isinstance(n, ast.FunctionDef)):
            marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
            (open_.add if "abstractmethod" in marks else open_.discard)(node.name)
    return open_
