"""Whether Python would bind a call to a function, both known by their source alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from inspect import Parameter, Signature

_PLACE, _NAME = Parameter.POSITIONAL_ONLY, Parameter.KEYWORD_ONLY
_EITHER = Parameter.POSITIONAL_OR_KEYWORD


def signature(function: ast.FunctionDef, method: bool) -> Signature:
    """What a call has to give; of a method, without what it is bound to."""
    args = function.args
    plain = [(_PLACE, a) for a in args.posonlyargs] + [(_EITHER, a) for a in args.args]
    required = len(plain) - len(args.defaults)
    found = [_parameter(k, a, n >= required) for n, (k, a) in enumerate(plain)]
    named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    found += [_parameter(Parameter.VAR_POSITIONAL, args.vararg, False)] if args.vararg else []
    found += [_parameter(_NAME, arg, default is not None) for arg, default in named]
    found += [_parameter(Parameter.VAR_KEYWORD, args.kwarg, False)] if args.kwarg else []
    marks = {ast.unparse(mark) for mark in function.decorator_list}
    return Signature(found[1:] if method and "staticmethod" not in marks else found)


def _parameter(kind: object, arg: ast.arg, default: bool) -> Parameter:
    return Parameter(arg.arg, kind, default=None if default else Parameter.empty)  # type: ignore[arg-type]


def fault(target: Signature, call: ast.Call) -> str | None:
    """Why the call does not bind; of one that unpacks, only what is sure."""
    places = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
    names = {word.arg: word for word in call.keywords if word.arg}
    whole = len(places) == len(call.args) and len(names) == len(call.keywords)
    try:
        (target.bind if whole else target.bind_partial)(*places, **names)
    except TypeError as error:
        return str(error)
    return None


def faults(ours: Signature, theirs: Signature) -> Iterator[str]:
    """What callers of a function have to give that the one in its place does not take."""
    taken = ours.parameters
    kinds = {parameter.kind for parameter in taken.values()}
    room = sum(p.kind in (_PLACE, _EITHER) for p in taken.values())
    for place, (name, given) in enumerate(theirs.parameters.items()):
        if given.default is not Parameter.empty or given.kind in (
            Parameter.VAR_POSITIONAL,
            Parameter.VAR_KEYWORD,
        ):
            continue
        if (given.kind != _NAME and place < room) or Parameter.VAR_POSITIONAL in kinds:
            continue
        by_name = name in taken and taken[name].kind in (_EITHER, _NAME)
        if not by_name and Parameter.VAR_KEYWORD not in kinds:
            yield f"callers have to give {name}, which ours does not take"
