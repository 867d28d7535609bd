"""Where a tree defines a name, by `ast` alone: nothing of the tree is imported."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from overlaytool.contract import normal

Read = Callable[[str], bytes | None]
MAX_IMPORT_HOPS = 8


@dataclass(frozen=True)
class Definition:
    """The statements that define a name, and the file where they stand."""

    file: str
    nodes: tuple[ast.AST, ...]

    @property
    def text(self) -> str:
        """Their code, in one style, without what does not run."""
        return "\n".join(sorted(set(map(normal.text, self.nodes))))

    @property
    def head(self) -> Definition:
        """A class without its body."""
        empty = copy.copy(self.node)
        empty.body = [ast.Pass()]  # type: ignore[attr-defined]
        return Definition(self.file, (empty,))

    @property
    def node(self) -> ast.AST:
        """The statement that holds in the end."""
        return self.nodes[-1]


@lru_cache(512)  # two releases share most of their files
def parsed(source: bytes) -> ast.Module:
    """The tree of a file's bytes; raises `SyntaxError`."""
    return ast.parse(source)


class Modules:
    """Parsed files of one tree."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._parsed: dict[str, ast.Module | None] = {}

    def parse(self, file: str) -> ast.Module | None:
        """The tree of a file, None where there is none; raises `SyntaxError`."""
        if file not in self._parsed:
            source = self._read(file)
            self._parsed[file] = None if source is None else parsed(source)
        return self._parsed[file]

    def module(self, dotted: str) -> str | None:
        """The file of a module that is imported by this name."""
        path = dotted.replace(".", "/")
        files = (f"{path}.py", f"{path}/__init__.py")
        return next((file for file in files if self.parse(file) is not None), None)

    def find(self, name: str) -> Definition | None:
        """What "FILE:Class.member" names, "FILE:Class()" without its body; imports are followed."""
        file, _, symbol = name.removesuffix("()").partition(":")
        first, *rest = symbol.split(".")
        found = self._global(file, first, MAX_IMPORT_HOPS)
        for member in rest:
            found = self.member(found, member) if found else None
        return found.head if found and name.endswith("()") else found

    def member(self, owner: Definition, name: str) -> Definition | None:
        """A member of a class, or what its methods set on self."""
        for cls in [owner, *self.ancestors(owner)]:
            if nodes := _members(cls.node).get(name):
                return Definition(cls.file, nodes)
        return None

    def ancestors(self, owner: Definition) -> list[Definition]:
        """The base classes that the tree holds, the nearest first."""
        found: list[Definition] = []
        for base in getattr(owner.node, "bases", []):
            for parent in self._classes(owner.file, base):
                if parent.node is not owner.node:
                    found += [parent, *self.ancestors(parent)]
        return found

    def _classes(self, file: str, expression: ast.expr) -> Iterator[Definition]:
        """The classes that an expression may mean: one by its name, or a choice of several."""
        for name in (n.id for n in ast.walk(expression) if isinstance(n, ast.Name)):
            found = self._global(file, name, MAX_IMPORT_HOPS)
            if found and isinstance(found.node, ast.ClassDef):
                yield found
            elif found and isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value:
                yield from self._classes(found.file, found.node.value)

    def _global(self, file: str, name: str, hops: int) -> Definition | None:
        tree = self.parse(file)
        nodes = [n for n in statements(tree.body) if name in bound(n)] if tree else []
        imports = [n for n in nodes if isinstance(n, ast.ImportFrom)]
        own = tuple(n for n in nodes if n not in imports)
        for node in [*reversed(imports), *(_stars(tree) if tree and not nodes else ())]:
            real = next((a.name for a in node.names if (a.asname or a.name) == name), name)
            for candidate in _module_files(file, node) if hops else ():
                if self.parse(candidate) is not None:
                    return self._global(candidate, real, hops - 1)
        # An import of what stands outside the tree is a name, too.
        rest = own or tuple(_alone(node, name) for node in imports[-1:])
        return Definition(file, rest) if rest else None


def _alone(node: ast.ImportFrom, name: str) -> ast.ImportFrom:
    """The import of one name."""
    names = [alias for alias in node.names if (alias.asname or alias.name) == name]
    return ast.ImportFrom(node.module, names, node.level)


def _module_files(file: str, node: ast.ImportFrom) -> list[str]:
    package = file.split("/")[: -node.level] if node.level else []
    path = "/".join([*package, *(node.module or "").split(".")]).strip("/")
    return [f"{path}.py", f"{path}/__init__.py"]


def _stars(tree: ast.Module) -> list[ast.ImportFrom]:
    found = [n for n in statements(tree.body) if isinstance(n, ast.ImportFrom)]
    return [node for node in found if node.names[0].name == "*"]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, with those under a condition."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in (node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])):
                yield from statements(part)
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


@cache
def _members(cls: ast.AST) -> dict[str, tuple[ast.AST, ...]]:
    """What a class binds in its body, or else what its methods set on self."""
    found: dict[str, tuple[ast.AST, ...]] = {}
    body = [node for node in statements(getattr(cls, "body", [])) if not _overload(node)]
    for node in body:
        for name in bound(node):
            found[name] = (*found.get(name, ()), node)
    own = frozenset(found)
    for inner in (inner for node in body for inner in ast.walk(node)):
        for name in _set_on_self(inner) - own:
            found[name] = (*found.get(name, ()), inner)
    return found


def _overload(node: ast.stmt) -> bool:
    return any("overload" in ast.unparse(mark) for mark in getattr(node, "decorator_list", ()))


def bound(node: ast.AST) -> set[str]:
    """The names that a statement binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.ImportFrom(names=names):
            return {alias.asname or alias.name for alias in names}
    return {target.id for target in _targets(node) if isinstance(target, ast.Name)}


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from getattr(target, "elts", [target])


def _set_on_self(node: ast.AST) -> set[str]:
    attributes = (target for target in _targets(node) if isinstance(target, ast.Attribute))
    return {a.attr for a in attributes if isinstance(a.value, ast.Name) and a.value.id == "self"}
