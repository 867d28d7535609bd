"""The verbs; each prints one line a file and a verdict line, and returns its exit code.

With --json the verbs of a tree print one object instead.
"""

import argparse
import json
from collections.abc import Iterable

from overlaytool import apply, contract, disk, fetch, state, tree, verify
from overlaytool.disk import Change
from overlaytool.errors import Exit, Refusal
from overlaytool.lock import SHORT, digest
from overlaytool.pin import Pin
from overlaytool.tree import Tree


def fetch_tree(pin: Pin, args: argparse.Namespace) -> int:
    """Fetch and unpack the pinned wheel."""
    folder, unpacked = fetch.unpack(pin, pin.lock())
    print(f"{'fetched' if unpacked else 'already there'}: sglang {pin.release} in {folder}")
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
    where, lock = _tree(pin, args), pin.lock()
    with disk.exclusive(where):
        todo = apply.plan_unapply(pin, where, lock, args.from_wheel)
        apply.write(where, lock, todo)
    done = f"unapplied: {_sum(todo.changes)} put back" if todo.changes else "nothing to unapply"
    _print_changes(pin, where, todo, args, f"{done}: sglang {pin.release} at {where.package}")
    return Exit.OK


def status(pin: Pin, args: argparse.Namespace) -> int:
    """The state of the tree."""
    return _status(pin, _tree(pin, args), args)


def verify_tree(pin: Pin, args: argparse.Namespace) -> int:
    """Status, then the hook points."""
    where = _tree(pin, args)
    code = _status(pin, where, args)
    if code:
        return code
    if state.survey(where, pin.lock()).state != state.APPLIED:
        raise Refusal(f"{where.package} is not applied: run `make apply`", Exit.PARTIAL)
    contract.require(pin, where.read)
    code = verify.hook_points(pin, where, args.python)
    words = {Exit.OK: "every hook point is there", Exit.FAILED: "a hook point is missing"}
    unseen = "not imported; name with --python an interpreter that has sglang's requirements"
    print(f"verify: {words.get(Exit(code), unseen)}: {where.package}")
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


def _status(pin: Pin, where: Tree, args: argparse.Namespace) -> int:
    seen = state.survey(where, pin.lock())
    if any(seen.foreign()) and (other := state.other_release(where, pin)):
        raise Refusal(f"{where.package} {other}", Exit.VERSION)
    hints = {
        state.PARTIAL: "; apply or unapply finishes it",
        state.EARLIER: " revision of the overlay; apply upgrades it",
        state.FOREIGN: "; `unapply --from-wheel FILE` puts the pinned bytes back",
    }
    hint = f"; sglang was uninstalled, {seen.rest}" if seen.gutted else None
    verdict = (
        f"{seen.state}{hint or hints.get(seen.state, '')}: sglang {pin.release} at {where.package}"
    )
    table = {"files": {found.entry.path: found.state for found in seen.found}}
    _print(args, seen.found, verdict, _facts(pin, where, seen) | table)
    return seen.code


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
    _print(args, lines, verdict, _facts(pin, where, todo.survey) | table)


def _facts(pin: Pin, where: Tree, seen: state.Survey) -> dict[str, object]:
    """Of which tree a verb speaks, and the state that it found."""
    return {"release": pin.release, "package": str(where.package), "state": seen.state}


def _print(
    args: argparse.Namespace, lines: Iterable[object], verdict: str, table: dict[str, object]
) -> None:
    if args.json:
        print(json.dumps(table, indent=2))
    else:
        print(*lines, verdict, sep="\n")


def _word(change: Change) -> str:
    return "add" if change.old is None else "remove" if change.new is None else "change"


def _sum(changes: tuple[Change, ...]) -> str:
    return f"{len(changes)} file{'' if len(changes) == 1 else 's'}"
