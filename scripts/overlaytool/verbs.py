"""The verbs; each prints one line a file and a verdict line, and returns its exit code.

`status` and `verify` begin with the verdict. With --json each prints one object instead.
"""

import argparse
import json
from collections.abc import Iterable

from overlaytool import apply, command, contract, disk, fetch, state, tree, verify
from overlaytool.disk import Change
from overlaytool.errors import Exit, Refusal
from overlaytool.lock import SHORT, digest
from overlaytool.pin import Pin
from overlaytool.tree import Tree


def fetch_tree(pin: Pin, args: argparse.Namespace) -> int:
    """Fetch and unpack the pinned wheel."""
    folder, unpacked = fetch.unpack(pin, pin.lock())
    done = f"{'fetched' if unpacked else 'already there'}: sglang {pin.release} in {folder}"
    _print(args, [done], {"release": pin.release, "folder": str(folder), "fetched": unpacked})
    return Exit.OK


def plan(pin: Pin, args: argparse.Namespace) -> int:
    """What apply would do."""
    where = _tree(pin, args)
    todo = apply.plan_apply(pin, where, pin.lock())
    verdict = f"plan: {where.package} is {todo.survey.state}; {_sum(todo.changes)} to write"
    _print_changes(pin, where, todo, args, verdict)
    return Exit.OK


def apply_overlay(pin: Pin, args: argparse.Namespace) -> int:
    """Apply, finish, or upgrade."""
    where, lock = _tree(pin, args), pin.lock()
    with disk.exclusive(where):
        todo = apply.plan_apply(pin, where, lock)
        apply.write(where, lock, todo)
    done = f"applied: {_sum(todo.changes)} written" if todo.changes else "already applied"
    _print_changes(pin, where, todo, args, f"{done}: sglang {pin.release} at {where.package}")
    return Exit.OK


def unapply_overlay(pin: Pin, args: argparse.Namespace) -> int:
    """Take the overlay off."""
    if not (args.tree or args.python or pin.tree.is_dir()):
        nothing = f"nothing to unapply: {pin.tree} is not there; name others with --tree, --python"
        _print(args, [command.as_typed(nothing)], {"release": pin.release, "changes": {}})
        return Exit.OK
    where, lock = _tree(pin, args), pin.lock()
    with disk.exclusive(where):
        todo = apply.plan_unapply(pin, where, lock, args.from_wheel)
        apply.write(where, lock, todo)
    removed = sum(change.new is None for change in todo.changes)
    done = f"unapplied: {removed} files removed, {len(todo.changes) - removed} put back"
    done = done if todo.changes else "nothing to unapply"
    _print_changes(pin, where, todo, args, f"{done}: sglang {pin.release} at {where.package}")
    return Exit.OK


def status(pin: Pin, args: argparse.Namespace) -> int:
    """The state of the tree."""
    where = _tree(pin, args)
    seen = _survey(pin, where)
    _print(args, _status(pin, where, seen), _facts(pin, where, seen) | _files(seen))
    return seen.code


def verify_tree(pin: Pin, args: argparse.Namespace) -> int:
    """Status, then the hook points."""
    where = _tree(pin, args)
    seen = _survey(pin, where)
    if seen.code:
        _print(args, _status(pin, where, seen), _facts(pin, where, seen) | _files(seen))
        return seen.code
    if seen.state != state.APPLIED:
        raise Refusal(f"{where.package} is not applied: run `make apply`", Exit.PARTIAL)
    contract.require(pin, where.read)
    code, points = verify.hook_points(pin, where, args.python)
    words = {Exit.OK: "every hook point is there", Exit.FAILED: "a hook point is missing"}
    unseen = "not imported; name with --python an interpreter that has sglang's requirements"
    verdict = f"verify: {words.get(code, command.as_typed(unseen))}: {where.package}"
    _print(args, [verdict, *points], _facts(pin, where, seen) | {"points": points})
    return code


def _tree(pin: Pin, args: argparse.Namespace) -> Tree:
    if args.tree:
        return tree.at(args.tree)
    if args.python:
        return tree.of_interpreter(args.python)
    if not pin.tree.is_dir():
        message = f"{pin.tree} is missing: run `make fetch`, or name one with --tree or --python"
        raise Refusal(message, Exit.USAGE)
    return tree.at(pin.tree)


def _survey(pin: Pin, where: Tree) -> state.Survey:
    seen = state.survey(where, pin.lock())
    if any(seen.foreign()) and (other := state.other_release(where, pin)):
        raise Refusal(f"{where.package} {other}", Exit.VERSION)
    return seen


def _status(pin: Pin, where: Tree, seen: state.Survey) -> list[object]:
    """The verdict, then a line a file."""
    hints = {
        state.PARTIAL: "; apply or unapply finishes it",
        state.EARLIER: " revision of the overlay; apply upgrades it",
        state.FOREIGN: f"; {seen.remedy}",
    }
    hint = f"; sglang was uninstalled, {seen.rest}" if seen.gutted else hints.get(seen.state, "")
    verdict = f"{seen.state}{command.as_typed(hint)}: sglang {pin.release} at {where.package}"
    return [verdict, *seen.found]


def _files(seen: state.Survey) -> dict[str, object]:
    return {"files": {found.entry.path: found.word for found in seen.found}}


def _print_changes(
    pin: Pin, where: Tree, todo: apply.Plan, args: argparse.Namespace, verdict: str
) -> None:
    overwritten = args.verb == "unapply" and args.from_wheel is not None
    lines = [
        f"{_word(change):<9}  {change.path}"
        + (f"  held {digest(change.old)[:SHORT]}" if overwritten else "")
        for change in todo.changes
    ]
    table = {"changes": {change.path: _word(change) for change in todo.changes}}
    _print(args, [*lines, verdict], _facts(pin, where, todo.survey) | table)


def _facts(pin: Pin, where: Tree, seen: state.Survey) -> dict[str, object]:
    """Of which tree a verb speaks, and the state that it found."""
    return {"release": pin.release, "package": str(where.package), "state": seen.state}


def _print(args: argparse.Namespace, lines: Iterable[object], table: dict[str, object]) -> None:
    if args.json:
        print(json.dumps(table, indent=2))
    else:
        print(*lines, sep="\n")


def _word(change: Change) -> str:
    return "add" if change.old is None else "remove" if change.new is None else "change"


def _sum(changes: tuple[Change, ...]) -> str:
    return f"{len(changes)} file{'' if len(changes) == 1 else 's'}"
