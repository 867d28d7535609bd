"""What the lines that a patch adds use of the file that they are added to."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping

from overlaytool.contract.normal import parsed
from overlaytool.contract.symbols import Modules
from overlaytool.patch import Patch, forward

from carrytool.uses import Names, Use


def of_patch(patch: Patch, path: str, before: bytes) -> tuple[bytes, list[Use]]:
    """The file as the patch leaves it, and the uses in what it adds."""
    after = forward([patch], path, before) or b""
    added = _added(before.decode(), after.decode())
    lines = {number: f"{patch.name}: {text}" for number, text in added.items()}
    return after, list(_uses(path, before, after, lines))


def _added(before: str, after: str) -> dict[int, str]:
    old, new = before.splitlines(), after.splitlines()
    steps = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    numbers = (n for tag, _, _, a, b in steps if tag != "equal" for n in range(a, b))
    return {number + 1: new[number].strip() for number in numbers}


def _uses(path: str, old: bytes, new: bytes, lines: Mapping[int, str]) -> Iterator[Use]:
    """Those in the lines with these numbers, and the function around them as it was."""
    before = Modules({path: old}.get)
    for scope, node in _scoped(parsed(new), ()):
        line = lines.get(getattr(node, "lineno", 0))
        if line is None:
            continue
        around = before.find(f"{path}:{'.'.join(scope)}")
        if around and isinstance(around.node, ast.FunctionDef):
            yield Use(f"{path}:{'.'.join(scope)}", line)
        call = node if isinstance(node, ast.Call) else None
        match call.func if call else node:
            case ast.Name(name):
                yield Use(f"{path}:{name}", line, call)
            case ast.Attribute(ast.Name("self"), name):
                yield Use(f"{path}:{scope[0]}.{name}", line, call)


def _scoped(node: ast.AST, scope: Names) -> Iterator[tuple[Names, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        yield scope, child
        inner = (*scope, child.name) if isinstance(child, ast.FunctionDef | ast.ClassDef) else scope
        yield from _scoped(child, inner)
