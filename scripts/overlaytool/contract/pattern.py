"""Patterns of Python code: `_` is any expression, `...` in a sequence any further items."""

from __future__ import annotations

import ast
from collections.abc import Sequence

IGNORED = {"ctx", "type_comment", "kind", "type_ignores"}


def occurs(text: str, tree: ast.AST) -> bool:
    """Whether some expression or statement under `tree` matches `text`."""
    wanted = _parse(text)
    return any(matches(wanted, node) for node in ast.walk(tree))


def unlike(text: str, tree: ast.AST) -> list[ast.Call]:
    """Calls of the function that the call `text` names which do not match it."""
    wanted = _parse(text)
    assert isinstance(wanted, ast.Call), f"{text} is not a call"
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [c for c in calls if matches(wanted.func, c.func) and not matches(wanted, c)]


def _parse(text: str) -> ast.AST:
    statement = ast.parse(text).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def matches(wanted: ast.AST, node: ast.AST) -> bool:
    if isinstance(wanted, ast.Name) and wanted.id == "_":
        return isinstance(node, ast.expr)
    if type(wanted) is not type(node):
        return False
    if isinstance(wanted, ast.Dict) and isinstance(node, ast.Dict):
        return _sequences(_pairs(wanted), _pairs(node))
    if isinstance(wanted, ast.Call) and isinstance(node, ast.Call):
        return _calls(wanted, node)
    return all(_fields(value, getattr(node, name)) for name, value in _compared(wanted))


def _compared(node: ast.AST) -> list[tuple[str, object]]:
    return [(name, value) for name, value in ast.iter_fields(node) if name not in IGNORED]


def _fields(wanted: object, found: object) -> bool:
    if isinstance(wanted, ast.AST):
        return isinstance(found, ast.AST) and matches(wanted, found)
    if isinstance(wanted, list):
        return isinstance(found, list) and _sequences(wanted, found)
    return wanted == found


def _sequences(wanted: Sequence[object], found: Sequence[object]) -> bool:
    if any(_is_rest(item) for item in wanted):
        needed = [item for item in wanted if not _is_rest(item)]
        return all(any(_fields(item, other) for other in found) for item in needed)
    return len(wanted) == len(found) and all(map(_fields, wanted, found))


def _calls(wanted: ast.Call, node: ast.Call) -> bool:
    if not matches(wanted.func, node.func):
        return False
    if not any(_is_rest(item) for item in wanted.args):
        return _fields(wanted.args, node.args) and _fields(wanted.keywords, node.keywords)
    places = wanted.args[: next(i for i, item in enumerate(wanted.args) if _is_rest(item))]
    in_place = _sequences(places, node.args[: len(places)])
    return in_place and all(any(matches(k, n) for n in node.keywords) for k in wanted.keywords)


def _pairs(node: ast.Dict) -> list[list[ast.expr | None]]:
    return [[key, value] for key, value in zip(node.keys, node.values, strict=True)]


def _is_rest(item: object) -> bool:
    if isinstance(item, list):
        return bool(item) and _is_rest(item[0])
    if isinstance(item, ast.Expr):
        return _is_rest(item.value)
    return isinstance(item, ast.Constant) and item.value is ...
