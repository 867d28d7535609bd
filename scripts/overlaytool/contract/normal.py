"""A file without what does not run: comments, docstrings and annotations."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

SHORT = 12
# Differs between Pythons, or follows from the rest.
_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})


@lru_cache(512)  # two releases share most of their files
def parsed(source: bytes) -> ast.Module:
    """The tree of a file's bytes, without what does not run; raises `SyntaxError`."""
    tree = _Bare().visit(ast.parse(source))
    assert isinstance(tree, ast.Module)
    return tree


@cache
def text(node: ast.AST) -> str:
    """The code of a statement of such a tree, in one style."""
    return ast.unparse(ast.fix_missing_locations(node))


def digest(nodes: Iterable[ast.AST]) -> str:
    """The same for the same code, whatever Python reads it."""
    return hashlib.sha256("".join(map(_dump, nodes)).encode()).hexdigest()[:SHORT]


class _Bare(ast.NodeTransformer):
    _in_class = False

    def _body(self, node: Any) -> Any:
        outer, self._in_class = self._in_class, isinstance(node, ast.ClassDef)
        node.returns = None
        node = self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        self._in_class = outer
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _body

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """A constant that stands alone, as a docstring does, does nothing."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """A field keeps its name and value, and of its annotation what a command line reads."""
        if not self._in_class:
            plain = (
                ast.Assign([node.target], node.value, lineno=node.lineno) if node.value else None
            )
            return self.generic_visit(plain) if plain else None
        parts = getattr(getattr(node.annotation, "slice", None), "elts", [])
        calls = [part for part in parts if isinstance(part, ast.Call)]
        for call in calls:
            call.keywords = [word for word in call.keywords if word.arg != "help"]
        node.annotation = ast.Tuple([*calls], ast.Load()) if calls else ast.Constant(...)
        return self.generic_visit(node)


def _dump(value: object) -> str:
    if isinstance(value, ast.AST):
        kept = ((n, v) for n, v in ast.iter_fields(value) if n not in _IGNORED and v not in ([],))
        return f"{type(value).__name__}({','.join(f'{n}={_dump(v)}' for n, v in kept)})"
    return f"[{','.join(map(_dump, value))}]" if isinstance(value, list) else repr(value)
