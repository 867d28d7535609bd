"""What binds a name in a module or a class, with the conditions that it stands under."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple


class Bound(NamedTuple):
    """A statement that binds a name, and the head of the block that it stands in."""

    node: ast.stmt
    under: ast.AST | None = None


Names = Mapping[str, Sequence[Bound]]


@cache
def bound_in_module(tree: ast.Module) -> Names:
    """The statements of a module that bind each name, in their order; "*" for star imports."""
    return _by_name((row, bound(row.node)) for row in _statements(tree.body))


@cache
def bound_in_class(cls: ast.stmt) -> Names:
    """What a class binds in its body, or else what its methods set on self."""
    body = [row for row in _statements(getattr(cls, "body", [])) if not _overload(row.node)]
    own = _by_name((row, bound(row.node)) for row in body)
    methods = [row.node for row in body if isinstance(row.node, ast.FunctionDef)]
    inside = (
        row
        for method in sorted(methods, key=lambda node: node.name)
        for row in _statements(method.body)
    )
    return {**_by_name((row, _set_on_self(row.node)) for row in inside), **own}


def _by_name(rows: Iterable[tuple[Bound, set[str]]]) -> Names:
    found: dict[str, list[Bound]] = {}
    for row, names in rows:
        for name in names:
            found.setdefault(name, []).append(row)
    return found


def _statements(body: list[ast.stmt], under: ast.AST | None = None) -> Iterator[Bound]:
    """The statements of a body and of its blocks, but for what only type checkers read."""
    for node in body:
        yield Bound(node, under)
        for head, part in _blocks(node):
            yield from _statements(part, head or under)


def _blocks(node: ast.stmt) -> Iterator[tuple[ast.AST | None, list[ast.stmt]]]:
    match node:
        case ast.If(test=test, body=body, orelse=orelse):
            typing = "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))
            head = ast.If(test, [], [])
            yield from ((head, part) for part in ([] if typing else body, orelse))
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
            yield from ((None, part) for part in (body, orelse, finalbody))
            yield from ((ast.ExceptHandler(h.type, h.name, []), h.body) for h in handlers)
        case ast.With(items=items, body=body):
            yield ast.With(items, []), body
        case ast.For(target=target, iter=source, body=body, orelse=orelse):
            yield ast.For(target, source, [], []), [*body, *orelse]
        case ast.While(test=test, body=body, orelse=orelse):
            yield ast.While(test, [], []), [*body, *orelse]
        case ast.Match(cases=cases):
            yield from ((ast.match_case(c.pattern, c.guard, []), c.body) for c in cases)


def _overload(node: ast.stmt) -> bool:
    return any("overload" in ast.unparse(mark) for mark in getattr(node, "decorator_list", ()))


def bound(node: ast.AST) -> set[str]:
    """The names that a statement binds; "owner.name" where it sets an attribute."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.ImportFrom(names=names) | ast.Import(names=names):
            return {alias.asname or alias.name for alias in names}
    return set(filter(None, map(_global, _targets(node))))


def _global(target: ast.AST) -> str:
    match target:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(owner), name):
            return f"{owner}.{name}"
    return ""


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    places: list[ast.expr] = []
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            places = found
        case ast.AnnAssign(target=one) | ast.AugAssign(target=one) | ast.For(target=one):
            places = [one]
        case ast.With(items=items):
            places = [item.optional_vars for item in items if item.optional_vars]
    for part in (part for place in places for part in ast.walk(place)):
        if isinstance(getattr(part, "ctx", None), ast.Store | ast.Del):
            yield part


def _set_on_self(node: ast.AST) -> set[str]:
    match node:
        case ast.Expr(ast.Call(ast.Name("setattr"), [ast.Name("self"), ast.Constant(name), _])):
            return {str(name)}
        case ast.Delete():
            return set()
    attributes = (target for target in _targets(node) if isinstance(target, ast.Attribute))
    return {a.attr for a in attributes if isinstance(a.value, ast.Name) and a.value.id == "self"}
