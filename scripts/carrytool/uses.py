"""What the overlay's modules use of upstream, read off their source, so that none is forgotten.

An attribute is followed where `contract.toml` says under `[holds]` which classes a name stands for;
a parameter of the type `Any` whose attributes are read has to be there.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from overlaytool.contract.normal import text
from overlaytool.contract.symbols import Definition, Modules
from overlaytool.errors import Refusal

PACKAGE = "sglang/srt/layers/attention/flashinfer_mla_compact/"
PLUGIN = "mla_compact/"
Names = tuple[str, ...]
parsed = lru_cache(512)(ast.parse)  # trees that are compared share most files, and all have ours


@dataclass(frozen=True)
class Use:
    """One use of a name ("FILE:Class.member") by the line `line` of ours.

    Attributes:
        call: how we call it.
        override: what we put in its place.
        optional: it has a default where the name is gone.
        imported: it needs the name in that very file.
        others: names of which one has to be there.
    """

    name: str
    line: str
    call: ast.Call | None = None
    override: ast.FunctionDef | None = None
    optional: bool = False
    imported: bool = False
    others: Names = ()


def of_module(file: str, source: bytes, tree: Modules, holds: Mapping[str, Names]) -> list[Use]:
    """The uses in one module; `tree` holds the overlay and upstream.

    Raises `Refusal` (1) where an attribute of something unknown is read.
    """
    reader = _Reader(file, tree, holds)
    reader.visit(parsed(source))
    return reader.uses


def is_ours(definition: Definition) -> bool:
    return definition.file.startswith((PACKAGE, PLUGIN))


class _Reader(ast.NodeVisitor):
    def __init__(self, file: str, tree: Modules, holds: Mapping[str, Names]) -> None:
        self.uses: list[Use] = []
        self._file, self._tree, self._holds = file, tree, holds
        self._known: dict[str, Names] = {}  # what names of this scope stand for
        self._tuples: dict[str, list[ast.expr]] = {}
        self._paths: dict[str, Names] = {}  # names of upstream's modules, as strings
        self._unsaid: set[str] = set()  # parameters of the type Any
        self._parents: list[Definition] = []  # upstream's classes that this one derives from

    def _add(self, names: Names, node: ast.AST, head: bool = True, **more: Any) -> None:
        """Of a class that is only named, the head counts."""
        if head:
            names = tuple(f"{name}()" if self._is_class(name) else name for name in names)
        line = f"{self._file.removeprefix(PACKAGE)}:{getattr(node, 'lineno', 0)}"
        first = text(node).split("\n")[0]
        self.uses += [Use(name, f"{line} {first}", others=names, **more) for name in names]

    def _is_class(self, name: str) -> bool:
        found = self._tree.find(name)
        return found is not None and isinstance(found.node, ast.ClassDef)

    def visit_Try(self, node: ast.Try) -> None:
        """What stands in for a module that is not there counts only where it is not."""
        imports = (n.module for n in node.body if isinstance(n, ast.ImportFrom) and n.module)
        there = all(self._tree.module(name) for name in imports)
        for child in [*node.body, *node.orelse, *node.finalbody] if there else node.handlers:
            self.visit(child)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            found = self._tree.find(f"{self._file}:{alias.asname or alias.name}")
            if node.level and found and not is_ours(found):
                self._known[alias.asname or alias.name] = (f"{found.file}:{alias.name}",)
            elif (node.module or "").startswith("sglang.") and not node.level:
                names = (f"{self._tree.module(node.module or '')}:{alias.name}",)
                self._known[alias.asname or alias.name] = names
                self._add(names, node, imported=True)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self._parents
        line = self._tree.line(Definition(self._file, (node,)))
        self._parents = [found for found in line if not is_ours(found)]
        names = tuple(dict.fromkeys(map(_named, self._parents)))
        bases = {base for cls in self._parents for base in map(_named, self._tree.line(cls)[1:])}
        self._add(tuple(name for name in names if name not in bases), node, head=False)
        self._add(tuple(name for name in names if name in bases), node)
        for method in (child for child in node.body if isinstance(child, ast.FunctionDef)):
            self._add(self._inherited(method.name), method, override=method)
        self.generic_visit(node)
        self._parents = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self._known, self._paths, self._unsaid
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        said = {arg.arg: ast.unparse(arg.annotation) for arg in arguments if arg.annotation}
        self._known = {name: of for name, of in self._known.items() if name not in said}
        self._paths = dict(self._paths)
        self._unsaid = self._unsaid | {name for name, kind in said.items() if kind == "Any"}
        self.generic_visit(node)
        self._known, self._paths, self._unsaid = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        self._hold(node.targets[0], node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        self._hold(node.target, node.value)

    def _hold(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name) and value:
            self._tuples[target.id] = getattr(value, "elts", [ast.Starred(target)])
            self._paths[target.id] = tuple(p for n in ast.walk(value) for p in self._path(n))
            if names := self._looked_up(value) or self._stands_for(value):
                self._known[target.id] = names

    def _path(self, node: ast.AST) -> Names:
        """The modules of upstream that an expression names as a string."""
        match node:
            case ast.Name(name):
                return self._paths.get(name, ())
            case ast.Constant(str(path)) if path.startswith("sglang."):
                return (path,)
            case ast.JoinedStr([ast.FormattedValue(ast.Name(name)), ast.Constant(str(rest))]):
                return tuple(f"{path}{rest}" for path in self._paths.get(name, ()))
        return ()

    def visit_Call(self, node: ast.Call) -> None:
        args = [arg for given in node.args for arg in self._unpacked(given)]
        call = ast.Call(node.func, args, node.keywords)
        self._add(self._targets(node.func), node, call=call, imported=self._of_module(node.func))
        self._add(self._looked_up(node), node, optional=True)
        match node:
            case ast.Call(
                func=ast.Name("getattr" | "hasattr" as asked),
                args=[held, ast.Constant(str(name)), *rest],
            ):
                optional = asked == "hasattr" or bool(rest)
                self._add(self._targets(ast.Attribute(held, name)), node, optional=optional)
        self.generic_visit(node)

    def _unpacked(self, given: ast.expr) -> list[ast.expr]:
        if isinstance(given, ast.Starred) and isinstance(given.value, ast.Name):
            return self._tuples.get(given.value.id, [given])
        return [given]

    def _looked_up(self, node: ast.AST) -> Names:
        """What a call with a module's name and a symbol's finds: in the first module there is."""
        match node:
            case ast.Call(args=[ast.Name(module), ast.Constant(str(symbol))]):
                files = map(self._tree.module, dict.fromkeys(self._paths.get(module, ())))
                return tuple(f"{file}:{symbol}" for file in files if file)[:1]
        return ()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        base = node.value
        if isinstance(base, ast.Name) and base.id in self._unsaid - self._holds.keys():
            raise Refusal(
                f"{self._file}:{node.lineno} reads .{node.attr} of {base.id}: "
                f"say under [holds] in contract.toml what {base.id} is"
            )
        self._add(self._targets(node), node, imported=self._of_module(node))
        self._add(tuple(filter(self._is_class, self._stands_for(base))), node)
        self.generic_visit(node)

    def _targets(self, node: ast.AST) -> Names:
        match node:
            case ast.Name(name):
                return self._known.get(name, ())
            case ast.Attribute(ast.Name("self"), name):
                return self._inherited(name)
            case ast.Attribute(ast.Call(func=ast.Name("super")), name):
                return self._inherited(name)
            case ast.Attribute(base, name):
                owners = self._stands_for(base)
                return tuple(f"{one}{'.' if ':' in one else ':'}{name}" for one in owners)
        return ()

    def _inherited(self, name: str) -> Names:
        owners = [_named(cls) for cls in self._parents if self._tree.member(cls, name)]
        return tuple(f"{owner}.{name}" for owner in owners[:1])

    def _stands_for(self, node: ast.AST) -> Names:
        """The classes that an expression holds an instance of, or the modules that it is."""
        match node:
            case ast.Name(name) if name in self._known:
                return self._known[name]
            case ast.Attribute(ast.Name(module), name) if self._is_module(module):
                return self._targets(node)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[path]):
                files = map(self._tree.module, self._path(path))
                return tuple(file for file in files if file)
            case (
                ast.Name(name)
                | ast.Attribute(attr=name)
                | ast.Call(func=ast.Name(name) | ast.Attribute(attr=name))
            ):
                return self._holds.get(name, ())
        return ()

    def _of_module(self, node: ast.AST) -> bool:
        """Whether a name is looked up in a module, which has to have it itself."""
        match node:
            case ast.Attribute(ast.Name(module)):
                return self._is_module(module)
        return False

    def _is_module(self, name: str) -> bool:
        return any(":" not in one for one in self._stands_for(ast.Name(name)))


def _named(cls: Definition) -> str:
    assert isinstance(cls.node, ast.ClassDef)
    return f"{cls.file}:{cls.node.name}"
