"""Where a tree defines a name, by `ast` alone: nothing of the tree is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from overlaytool.contract import normal
from overlaytool.contract.bindings import Bound, bound_in_class, bound_in_module

Read = Callable[[str], bytes | None]
MAX_IMPORT_HOPS = 8
# Python calls these of a class that nobody names them of.
_IMPLICIT = ("__getattribute__", "__setattr__", "__new__", "__copy__", "__init_subclass__")


@dataclass(frozen=True)
class Definition:
    """The statements that define a name, with the blocks around them, and the file of the last."""

    file: str
    nodes: tuple[ast.stmt, ...]
    around: tuple[ast.AST, ...] = ()

    @property
    def text(self) -> str:
        """Their code, in one style, without what does not run."""
        return "\n".join(map(normal.text, (*self.around, *self.nodes)))

    @property
    def digest(self) -> str:
        """Changes with the code."""
        return normal.digest((*self.around, *self.nodes))

    @property
    def node(self) -> ast.stmt:
        """The statement that holds in the end; of a class made again of itself, the class."""
        last = next((n for n in reversed(self.nodes) if not _imports(n)), self.nodes[-1])
        classes = [n for n in self.nodes if isinstance(n, ast.ClassDef)]
        if not classes or not isinstance(last, ast.Assign):
            return last
        words = {n.id for n in ast.walk(last) if isinstance(n, ast.Name)}
        return next((n for n in reversed(classes) if n.name in words), last)


class Modules:
    """Parsed files of one tree."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._parsed: dict[str, ast.Module | None] = {}
        self._found: dict[str, Definition | None] = {}

    def parse(self, file: str) -> ast.Module | None:
        """The tree of a file, None where there is none; raises `SyntaxError`."""
        if file not in self._parsed:
            source = self._read(file)
            self._parsed[file] = None if source is None else normal.parsed(source)
        return self._parsed[file]

    def module(self, dotted: str) -> str | None:
        """The file of a module that is imported by this name; as in Python, a folder goes first."""
        path = dotted.replace(".", "/")
        files = (f"{path}/__init__.py", f"{path}.py")
        return next((file for file in files if self.parse(file) is not None), None)

    def find(self, name: str) -> Definition | None:
        """What "FILE:Class.member" names, "FILE:Class()" without its body; imports are followed.

        A class without its body keeps what Python calls of it implicitly.
        """
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Definition | None:
        file, _, symbol = name.removesuffix("()").partition(":")
        first, *rest = symbol.split(".")
        found = self._global(file, first, MAX_IMPORT_HOPS)
        for member in rest:
            found = self.member(found, member) if found else None
        return self._head(found) if found and name.endswith("()") else found

    def hides(self, name: str) -> bool:
        """Whether a name that is not found may be there all the same: by code that makes it."""
        file, _, symbol = name.removesuffix("()").partition(":")
        owner = self.find(f"{file}:{symbol.rpartition('.')[0]}") if "." in symbol else None
        made = owner and not isinstance(owner.node, ast.ClassDef)
        by = (f"{file}:__getattr__", f"{file}:{symbol.rpartition('.')[0]}.__getattr__")
        return bool(made) or any(map(self.find, by))

    def member(self, owner: Definition, name: str) -> Definition | None:
        """A member of a class, or what its methods set on self."""
        for cls in self.line(owner):
            tree, of = self.parse(cls.file), getattr(cls.node, "name", "")
            later = bound_in_module(tree).get(f"{of}.{name}", []) if tree else []
            if found := [*bound_in_class(cls.node).get(name, []), *later]:
                return _defined(cls.file, found)
        return None

    def line(self, owner: Definition) -> list[Definition]:
        """A class and its base classes that the tree holds, the nearest first."""
        found = [owner]
        for base in getattr(owner.node, "bases", []):
            for parent in self._classes(owner.file, base):
                if parent.node is not owner.node:
                    found += self.line(parent)
        return found

    def _head(self, found: Definition) -> Definition:
        if not isinstance(found.node, ast.ClassDef):
            return found
        implicit = [one for name in _IMPLICIT if (one := self.member(found, name))]
        heads = (_bodiless(n) if isinstance(n, ast.ClassDef) else n for n in found.nodes)
        nodes = (*heads, *(node for one in implicit for node in one.nodes))
        return Definition(found.file, nodes, found.around)

    def _classes(self, file: str, expression: ast.expr) -> Iterator[Definition]:
        """The classes that an expression may mean: one by its name, or a choice of several."""
        for name in (n.id for n in ast.walk(expression) if isinstance(n, ast.Name)):
            found = self._global(file, name, MAX_IMPORT_HOPS)
            if found and isinstance(found.node, ast.ClassDef):
                yield found
            elif found and isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value:
                yield from self._classes(found.file, found.node.value)

    def _global(self, file: str, name: str, hops: int) -> Definition | None:
        """All that binds a name in a module; what it imports or renames is followed."""
        file = self.module(file.removesuffix(".py").removesuffix("/__init__")) or file
        tree = self.parse(file)
        if tree is None or not hops:
            return None
        rows = bound_in_module(tree).get(name) or bound_in_module(tree).get("*", ())
        found: list[Definition] = []
        for row in rows:
            elsewhere = self._followed(file, row.node, name, hops - 1)
            if elsewhere or not _is_star(row.node):
                own = _defined(file, [row._replace(node=_alone(row.node, name))])
                found += [replace(own, nodes=()), elsewhere] if elsewhere else [own]
        return _joined(found) if found else None

    def _followed(self, file: str, node: ast.stmt, name: str, hops: int) -> Definition | None:
        """Where a statement that binds a name has it from."""
        match node:
            case ast.ImportFrom(names=names):
                real = next((a.name for a in names if (a.asname or a.name) == name), name)
                source = self._source(file, node)
                if not source or (_is_star(node) and not self._exports(source, name)):
                    return None
                return self._global(source, real, hops)
            case ast.Assign(targets=[ast.Name()], value=ast.Name(other)) if other != name:
                return self._global(file, other, hops)
            case ast.Assign(targets=[ast.Name()], value=ast.Attribute(ast.Name(module), other)):
                source = self._imported_module(file, module)
                return self._global(source, other, hops) if source else None
        return None

    def _source(self, file: str, node: ast.ImportFrom, name: str = "") -> str | None:
        package = file.split("/")[: -node.level] if node.level else []
        return self.module(".".join(filter(None, [*package, node.module, name])))

    def _imported_module(self, file: str, name: str) -> str | None:
        """The file of the module that a module knows by this name."""
        tree = self.parse(file)
        for row in bound_in_module(tree).get(name, ()) if tree else ():
            for alias in getattr(row.node, "names", ()):
                if (alias.asname or alias.name) == name:
                    if isinstance(row.node, ast.ImportFrom):
                        return self._source(file, row.node, alias.name)
                    return self.module(alias.name)
        return None

    def _exports(self, file: str, name: str) -> bool:
        """Whether `from FILE import *` gives a name."""
        tree = self.parse(file)
        said = bound_in_module(tree).get("__all__", ()) if tree else ()
        words = {n.value for row in said for n in ast.walk(row.node) if isinstance(n, ast.Constant)}
        return name in words if said else not name.startswith("_")


def _joined(found: list[Definition]) -> Definition:
    last = next((one for one in reversed(found) if one.nodes and not _imports(one.node)), found[-1])
    nodes = [node for one in found for node in one.nodes]
    around = [node for one in found for node in one.around]
    return Definition(last.file, tuple(dict.fromkeys(nodes)), tuple(dict.fromkeys(around)))


def _defined(file: str, rows: Sequence[Bound]) -> Definition:
    around = dict.fromkeys(row.under for row in rows if row.under)
    return Definition(file, tuple(row.node for row in rows), tuple(around))


def _imports(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_star(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


@cache
def _alone(node: ast.stmt, name: str) -> ast.stmt:
    """Of an import, the part for one name."""
    if not isinstance(node, ast.ImportFrom):
        return node
    names = [alias for alias in node.names if (alias.asname or alias.name) == name]
    return ast.ImportFrom(node.module, names, node.level)


@cache
def _bodiless(node: ast.ClassDef) -> ast.ClassDef:
    return ast.ClassDef(node.name, node.bases, node.keywords, [ast.Pass()], node.decorator_list)
