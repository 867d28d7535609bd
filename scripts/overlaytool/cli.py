"""Command line of `scripts/overlay`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from overlaytool import command, verbs
from overlaytool.command import Verb
from overlaytool.errors import Exit
from overlaytool.pin import REPOSITORY

_COMMON = (Exit.OK, Exit.FAILED, Exit.USAGE)
_STATE = (*_COMMON, Exit.PARTIAL, Exit.FOREIGN, Exit.VERSION)
_READS = (*_COMMON, Exit.FOREIGN, Exit.VERSION, Exit.UNAVAILABLE)
_WRITES = (*_READS, Exit.BUSY, Exit.UNWRITABLE)


def _tree(sub: argparse.ArgumentParser) -> None:
    _where(sub.add_mutually_exclusive_group())
    _json(sub)


def _json(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help="print JSON")


def _where(group: argparse._ActionsContainer) -> None:
    group.add_argument("--tree", type=Path, metavar="DIR", help="holds sglang/ or python/sglang/")
    group.add_argument("--python", metavar="EXE", help="the tree that this interpreter imports")


def _unapply(sub: argparse.ArgumentParser) -> None:
    _tree(sub)
    text = "put this wheel's bytes back at the lock's paths, whatever they hold"
    sub.add_argument("--from-wheel", type=Path, metavar="FILE", help=text)


def _verify(sub: argparse.ArgumentParser) -> None:
    _where(sub)  # both: the tree, and the interpreter that imports it
    _json(sub)


VERBS = {
    "fetch": Verb(
        verbs.fetch_tree,
        "fetch the pinned wheel with pip, by hash, and unpack it to build/sglang-<release>",
        (*_COMMON, Exit.UNAVAILABLE),
        _json,
    ),
    "plan": Verb(
        verbs.plan,
        "list what apply would write; writes nothing",
        (*_READS, Exit.UNWRITABLE, Exit.CONTRACT),
        _tree,
    ),
    "apply": Verb(
        verbs.apply_overlay,
        "apply, finish or upgrade the overlay",
        (*_WRITES, Exit.CONTRACT),
        _tree,
    ),
    "unapply": Verb(
        verbs.unapply_overlay, "give every file its pristine bytes back", _WRITES, _unapply
    ),
    "status": Verb(
        verbs.status,
        "print the state of the tree, as its content shows it",
        (*_STATE, Exit.UNWRITABLE),
        _tree,
    ),
    "verify": Verb(
        verbs.verify_tree,
        "status, the contract, then every hook point as an interpreter that imports the tree sees "
        "it (without --python: .venv, which ci/venv.sh makes)",
        (*_STATE, Exit.UNAVAILABLE, Exit.UNWRITABLE, Exit.CONTRACT),
        _verify,
    ),
}


def main(arguments: Sequence[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Run one verb and return its exit code."""
    about = "Apply the overlay to a pinned sglang tree, and take it off."
    args = command.parser("overlay", about, VERBS).parse_args(arguments)
    return command.run(f"overlay {args.verb}", VERBS[args.verb], args, repository)
