"""What a contract entry may ask of a symbol: each answers (held, what the tree has)."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable

from overlaytool.contract import pattern


def _signature(node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef):
        return "not a function"
    bare = copy.deepcopy(node.args)
    for arg in ast.walk(bare):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return f"({ast.unparse(bare)})"


def _parameters(node: ast.AST, wanted: tuple[str, ...]) -> tuple[bool, str]:
    seen = _signature(node)
    if not isinstance(node, ast.FunctionDef):
        return False, seen
    by_place = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    by_name = [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]
    split = wanted.index("*") if "*" in wanted else len(wanted)
    places, names = wanted[:split], wanted[split + 1 :]
    start = 1 if by_place[:1] == ["self"] else 0
    in_place = tuple(by_place[start : start + len(places)]) == places
    return in_place and set(names) <= set(by_name), seen


def _whole_signature(node: ast.AST, wanted: tuple[str, ...]) -> tuple[bool, str]:
    seen = _signature(node)
    return seen in wanted, seen


def _assigns(node: ast.AST, wanted: tuple[str, ...]) -> tuple[bool, str]:
    stores = (n for n in ast.walk(node) if isinstance(n, ast.Attribute))
    names = {n.attr for n in stores if isinstance(n.ctx, ast.Store) and _is_self(n.value)}
    missing = [name for name in wanted if name not in names]
    return not missing, f"does not set {', '.join(missing)}" if missing else ", ".join(wanted)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _contains(node: ast.AST, wanted: tuple[str, ...]) -> tuple[bool, str]:
    value = getattr(node, "value", None)
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    items = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", None)
    if items is None:
        return False, ast.unparse(node).split("\n")[0]
    seen = [item.value for item in items if isinstance(item, ast.Constant)]
    kind = type(value).__name__.lower()
    return set(wanted) <= set(seen), f"{kind} of {', '.join(map(str, seen))}"


def _code(node: ast.AST, wanted: tuple[str, ...]) -> tuple[bool, str]:
    missing = [text for text in wanted if not pattern.occurs(text, node)]
    return not missing, f"no {'; no '.join(missing)}" if missing else "; ".join(wanted)


def _calls(node: ast.AST, wanted: tuple[str, ...]) -> tuple[bool, str]:
    odd = [call for text in wanted for call in pattern.unlike(text, node)]
    missing = [text for text in wanted if not pattern.occurs(text, node)]
    seen = [*(f"no {text}" for text in missing), *map(ast.unparse, odd)]
    return not seen, "; ".join(seen or wanted)


def _abstract(node: ast.AST, wanted: tuple[str, ...]) -> tuple[bool, str]:
    body = node.body if isinstance(node, ast.ClassDef) else []
    marked = [n.name for n in body if isinstance(n, ast.FunctionDef) and _is_abstract(n)]
    return isinstance(node, ast.ClassDef) and set(marked) <= set(wanted), ", ".join(marked)


def _is_abstract(node: ast.FunctionDef) -> bool:
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
    return "abstractmethod" in marks


def _bases(node: ast.AST, wanted: tuple[str, ...]) -> tuple[bool, str]:
    seen = [ast.unparse(base) for base in getattr(node, "bases", [])]
    return set(wanted) <= set(seen), ", ".join(seen) or "none"


PREDICATES: dict[str, Callable[[ast.AST, tuple[str, ...]], tuple[bool, str]]] = {
    "defined": lambda node, wanted: (True, "defined"),
    "parameters": _parameters,
    "signature": _whole_signature,
    "assigns": _assigns,
    "contains": _contains,
    "code": _code,
    "calls": _calls,
    "abstract": _abstract,
    "bases": _bases,
}
