"""The places of a tree where certain names stand: as a string, a name, or what is built upon.

A place has no line number and none of the code around it, so it outlives changes there.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from overlaytool.contract.symbols import Read

from carrytool.uses import parsed

_LONGEST = 72
_NOT_RUN = ("annotation", "returns")
_BUILDS = re.compile(rb"^[ \t]*(class \w+\([^)]*|\w+\.\w+ =)", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_LITERALS = (ast.List, ast.Set, ast.Tuple, ast.Dict)


class Place(NamedTuple):
    """`function` is the scope; `code` what stands there, as much as fits of its statement."""

    file: str
    function: str
    code: str


def in_tree(
    files: Iterable[str],
    read: Read,
    names: Mapping[str, bool],
    classes: Collection[str] = (),
    members: Collection[str] = (),
) -> Counter[Place]:
    """Every place of the names in these files; raises `SyntaxError`.

    A name counts as a string, and as an identifier where it says True. Of `classes` those places
    count that set or override one of the `members`.
    """
    found: Counter[Place] = Counter()
    quick = [f"{q}{name}{q}".encode() for name in names for q in "'\""]
    quick += [name.encode() for name, identifier in names.items() if identifier]
    upon = {name.encode() for name in classes} - {name.encode() for name in names}
    for file in files:
        source = read(file) or b""
        if any(mark in source for mark in quick):
            rows = _places(parsed(source), "", [], names)
            found.update(Place(file, scope, _code(path, members)) for scope, path in rows)
        built = {word for row in _BUILDS.findall(source) for word in _WORD.findall(row)} & upon
        if built:
            tree, bases = parsed(source), {word.decode() for word in built}
            found.update(_built_upon(file, tree, bases, members))
    return found


def _built_upon(
    file: str, tree: ast.Module, classes: set[str], members: Collection[str]
) -> Iterator[Place]:
    """Where a module sets a member of these classes, or a class of it overrides one."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(bases=bases):
                code = _code([node], members)
                if (
                    " overrides " in code
                    and {n.id for n in bases if isinstance(n, ast.Name)} & classes
                ):
                    yield Place(file, node.name, code)
            case ast.Attribute(ast.Name(owner), name, ast.Store()):
                if owner in classes and name in members:
                    yield Place(file, "", f"{owner}.{name} =")


def _places(
    node: ast.AST, scope: str, path: list[ast.AST], names: Mapping[str, bool]
) -> Iterator[tuple[str, list[ast.AST]]]:
    """The scope of each place, and the nodes on the way to it."""
    named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    for field, value in ast.iter_fields(node):
        inner = scope
        if named and field == "body":
            inner = f"{scope}.{node.name}".lstrip(".")  # type: ignore[attr-defined]
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or (field in _NOT_RUN and not _calls(child)):
                continue
            if _is_one(child, names):
                yield inner, [*path, child]
            yield from _places(child, inner, [*path, child], names)


def _is_one(node: ast.AST, names: Mapping[str, bool]) -> bool:
    match node:
        case ast.Constant(value=str(name)):
            return name in names
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return names.get(name, False)
    return False


def _calls(annotation: ast.AST) -> bool:
    """Whether an annotation holds a call, as a field's does that a command line reads."""
    return any(isinstance(part, ast.Call) for part in ast.walk(annotation))


def _code(path: list[ast.AST], members: Collection[str]) -> str:
    start = max(n for n, node in enumerate(path) if isinstance(node, ast.stmt))
    statement, inner = path[start], path[start + 1 :]
    if isinstance(statement, ast.ClassDef):
        own = {child.name for child in statement.body if isinstance(child, ast.FunctionDef)}
        bases = ", ".join(map(ast.unparse, statement.bases))
        over = ", ".join(sorted(own & set(members)))
        return f"class {statement.name}({bases})" + (f" overrides {over}" if over else "")
    return f"{_head(statement)} {_expression(inner)}".strip()


def _expression(path: list[ast.AST]) -> str:
    """As much as fits; of a literal that holds the name its kind, as what else it holds changes."""
    around = path[:-1]
    place = next((n for n in reversed(range(len(around))) if isinstance(around[n], _LITERALS)), -1)
    if place < 0 or place < len(around) - 1:
        rest = (n for n in path[place + 1 :] if isinstance(n, ast.expr | ast.keyword))
        texts = map(ast.unparse, rest)
        return next(text for text in texts if len(text) <= _LONGEST)
    text = f"{type(path[place]).__name__.lower()} with {ast.unparse(path[-1])}"
    outer = path[place - 1] if place else None
    if isinstance(outer, ast.Compare):
        text = f"{ast.unparse(outer.left)} {type(outer.ops[0]).__name__.lower()} {text}"
    return text


def _head(statement: ast.AST) -> str:
    match statement:
        case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target):
            return f"{ast.unparse(target)} ="
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return f"def {name}"
        case ast.Expr(ast.Call(func=function)):
            return f"{ast.unparse(function)}:"[:_LONGEST]
    return type(statement).__name__.lower()


def changes(old: Counter[Place], new: Counter[Place]) -> list[tuple[str, Place]]:
    """The places that are gone ("-") and those that are new ("+"), whatever file they moved to."""
    marked = []
    for mark, these, those in (("-", old, new), ("+", new, old)):
        rest = Counter({place[1:]: 0 for place in those})
        for place, count in those.items():
            rest[place[1:]] += count
        for place, count in sorted(these.items()):
            missing = max(0, count - rest[place[1:]])
            rest[place[1:]] -= min(count, rest[place[1:]])
            marked += [(mark, place)] * missing
    return sorted(marked, key=lambda row: (row[1][0], row[1][1]))
