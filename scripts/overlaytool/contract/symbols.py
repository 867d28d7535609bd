"""Where a tree defines a symbol, by `ast` alone: nothing of the tree is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

Read = Callable[[str], bytes | None]
Scope = ast.Module | ast.ClassDef | ast.FunctionDef
MAX_IMPORT_HOPS = 8


class Modules:
    """Parsed files of one tree."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._parsed: dict[str, ast.Module | None] = {}

    def parse(self, file: str) -> ast.Module | None:
        if file not in self._parsed:
            source = self._read(file)
            self._parsed[file] = None if source is None else ast.parse(source, file)
        return self._parsed[file]

    def find(self, file: str, symbol: str, hops: int = MAX_IMPORT_HOPS) -> ast.AST | None:
        """The node that `symbol` ("Class.method", "" for the module) names, imports followed."""
        node: ast.AST | None = self.parse(file)
        names = symbol.split(".") if symbol else []
        for depth, name in enumerate(names):
            if isinstance(node, ast.ClassDef):
                node = self._member(file, node, name)
            elif isinstance(node, ast.Module | ast.FunctionDef):
                node = _last(node, name)
            else:
                return None
            if isinstance(node, ast.ImportFrom):
                real = next((a.name for a in node.names if a.asname == name), name)
                return self._follow(file, node, [real, *names[depth + 1 :]], hops)
        return node

    def _follow(
        self, file: str, node: ast.ImportFrom, names: list[str], hops: int
    ) -> ast.AST | None:
        for candidate in _module_files(file, node):
            if hops and self.parse(candidate) is not None:
                return self.find(candidate, ".".join(names), hops - 1)
        named = len(names) == 1 and not _is_star(node)
        return node if named else None  # a named import of something outside the tree is a symbol

    def _member(self, file: str, cls: ast.ClassDef, name: str) -> ast.AST | None:
        found = _last(cls, name)
        for base in cls.bases if found is None else []:
            parent = self.find(file, base.id) if isinstance(base, ast.Name) else None
            if isinstance(parent, ast.ClassDef) and parent is not cls:
                found = found or self._member(file, parent, name)
        return found


def _module_files(file: str, node: ast.ImportFrom) -> list[str]:
    package = file.split("/")[: -node.level] if node.level else []
    path = "/".join([*package, *(node.module or "").split(".")]).strip("/")
    return [f"{path}.py", f"{path}/__init__.py"]


def _last(scope: Scope, name: str) -> ast.AST | None:
    """The last statement that binds `name`: overloads and redefinitions end with the real one."""
    statements = list(_statements(scope.body))
    bound = [node for node in statements if name in _bound(node)]
    stars = [node for node in statements if isinstance(node, ast.ImportFrom) and _is_star(node)]
    return (bound or stars or [None])[-1]


def _is_star(node: ast.ImportFrom) -> bool:
    return node.names[0].name == "*"


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _statements(node.body)
            yield from _statements(getattr(node, "orelse", []))


def _bound(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {t.id for t in targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.ImportFrom(names=names):
            return {alias.asname or alias.name for alias in names}
    return set()
