"""A definition without what does not run: comments, positions, docstrings and annotations."""

from __future__ import annotations

import ast
import copy
import hashlib
from typing import Any

SHORT = 12
# Differs between Pythons, or follows from the rest.
_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})


def text(node: ast.AST) -> str:
    """The code of a definition, in one style."""
    return ast.unparse(ast.fix_missing_locations(bare(node)))


def digest(nodes: tuple[ast.AST, ...]) -> str:
    """The same for the same code, whatever Python reads it."""
    code = "".join(sorted({_dump(bare(node)) for node in nodes}))
    return hashlib.sha256(code.encode()).hexdigest()[:SHORT]


def bare(node: ast.AST) -> ast.AST:
    """A copy of the tree without what does not run."""
    found = _Bare().visit(copy.deepcopy(node))
    assert isinstance(found, ast.AST)
    return found


class _Bare(ast.NodeTransformer):
    def _body(self, node: Any) -> Any:
        first, *rest = node.body
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = rest
        node.returns = None
        node = self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _body

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """A field keeps its name and value, and of its annotation what a command line reads."""
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
