"""What a pin needs of upstream: by its overlay, its patches and `contract.toml`."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from overlaytool.contract.symbols import Definition, Modules
from overlaytool.errors import Refusal
from overlaytool.pin import Pin

from carrytool import binding, patch_uses, uses
from carrytool.upstream import Upstream
from carrytool.uses import PACKAGE, Use


class Needs:
    """The uses of a pin, and what of them does not fit together in a tree.

    `own` is what the uses are looked up in, `patched` what the patches are made for.
    """

    def __init__(self, pin: Pin, own: Upstream, patched: Upstream | None = None) -> None:
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
                source = self._pin.overlay()[file].read_bytes()
                yield from uses.of_module(file, source, self.tree, self._holds)
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
