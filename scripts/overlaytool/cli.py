"""Command line of the patch tool."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from overlaytool import carry_verbs, doctor, verbs
from overlaytool.errors import EXIT_HELP, Exit, Refusal
from overlaytool.pin import REPOSITORY, Pin, find

_COMMON = (Exit.OK, Exit.FAILED, Exit.USAGE)
_READS = (*_COMMON, Exit.FOREIGN, Exit.VERSION, Exit.UNAVAILABLE, Exit.UNWRITABLE)
_STATE = (*_COMMON, Exit.PARTIAL, Exit.FOREIGN, Exit.VERSION, Exit.UNWRITABLE)
_DRIFT = (
    Exit.OK,
    Exit.USAGE,
    Exit.REFRESH,
    Exit.CONFLICT,
    Exit.CONTRACT,
    Exit.UNTRIED,
)
_WRITES = (*_READS[:-1], Exit.BUSY, Exit.UNWRITABLE)


@dataclass(frozen=True)
class Verb:
    """One verb: its help, the exit codes it uses, and the options beside --pin."""

    run: Callable[[Pin, argparse.Namespace], int]
    help: str
    codes: tuple[Exit, ...]
    tree: bool = True


VERBS = {
    "fetch": Verb(
        verbs.fetch_tree,
        "fetch the pinned wheel with pip, by hash, and unpack it to build/sglang-<release>",
        (*_COMMON, Exit.UNAVAILABLE),
        tree=False,
    ),
    "plan": Verb(verbs.plan, "list what apply would write; writes nothing", _READS),
    "apply": Verb(verbs.apply_overlay, "apply, finish or upgrade the overlay", _WRITES),
    "unapply": Verb(verbs.unapply_overlay, "give every file its pristine bytes back", _WRITES),
    "status": Verb(verbs.status, "tell the state of the tree from its content", _STATE),
    "verify": Verb(
        verbs.verify_tree,
        "status, then every hook point as seen by an interpreter that imports the tree",
        (*_STATE[:-1], Exit.UNAVAILABLE, Exit.UNWRITABLE),
    ),
    "lock": Verb(
        verbs.lock,
        "write the pin's lock from the pinned wheel, the patches and the overlay",
        (*_COMMON, Exit.UNAVAILABLE),
        tree=False,
    ),
    "lint": Verb(verbs.lint, "check the form of the patches", _COMMON, tree=False),
    "check": Verb(
        verbs.check,
        "lint, round trip of every patch on the pinned wheel, and the lock's difference",
        (*_COMMON, Exit.UNAVAILABLE),
        tree=False,
    ),
    "drift": Verb(
        carry_verbs.run_drift,
        "report what another release, or a tree, does to the patches and the contract",
        _DRIFT,
        tree=False,
    ),
    "rebase": Verb(
        carry_verbs.run_rebase,
        "report the same, and write the new pin where every patch is settled",
        _DRIFT,
        tree=False,
    ),
    "doctor": Verb(
        doctor.run,
        "say what of an installation is well, and how to mend the rest (1: something is to mend)",
        _COMMON,
        tree=False,
    ),
}


def parser() -> argparse.ArgumentParser:
    """The argument parser, with the exit codes of each verb in its help."""
    top = argparse.ArgumentParser(
        prog="overlay", description="Apply the overlay to a pinned sglang tree, and take it off."
    )
    actions = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        codes = "\n".join(f"  {code.value}  {EXIT_HELP[code]}" for code in verb.codes)
        sub = actions.add_parser(
            name,
            help=verb.help,
            description=f"{verb.help[0].upper()}{verb.help[1:]}.",
            epilog=f"exit codes:\n{codes}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _options(sub, name, verb)
    return top


def _options(sub: argparse.ArgumentParser, name: str, verb: Verb) -> None:
    sub.add_argument("--pin", metavar="RELEASE", help="the pinned release (patches/default)")
    if name in ("drift", "rebase"):
        _carry_options(sub, name)
    if name == "doctor":
        doctor.add_arguments(sub)
    if not verb.tree:
        return
    # verify takes both: the tree, and the interpreter that imports it.
    where = sub if name == "verify" else sub.add_mutually_exclusive_group()
    where.add_argument("--tree", type=Path, metavar="DIR", help="holds sglang/ or python/sglang/")
    where.add_argument("--python", metavar="EXE", help="the tree that this interpreter imports")
    if name == "verify":  # the hook points speak for themselves, in the interpreter
        sub.set_defaults(json=False)
    else:
        sub.add_argument("--json", action="store_true", help="print JSON")
    if name == "unapply":
        sub.add_argument(
            "--from-wheel",
            type=Path,
            metavar="FILE",
            help="put this wheel's bytes back at the lock's paths, whatever they hold",
        )


def _carry_options(sub: argparse.ArgumentParser, name: str) -> None:
    to = "a release, or a folder with a tree"
    newest = "" if name == "rebase" else " (the newest release)"
    sub.add_argument("--to", metavar="RELEASE|DIR", required=name == "rebase", help=to + newest)
    sub.add_argument("--out", type=Path, metavar="DIR", help="where reports go (out/drift)")
    if name == "rebase":
        sub.add_argument(
            "--resolved",
            type=existing_folder,
            metavar="DIR",
            help="holds PATCH/sglang/... as you edited them, and perhaps contract.toml",
        )
        sub.add_argument(
            "--drop", action="append", default=[], metavar="PATCH", help="leave a patch out"
        )


def existing_folder(text: str) -> Path:
    """An argument that names a folder."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return Path(text)


def main(arguments: Sequence[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Run one verb; a refusal is one sentence on stderr and its exit code."""
    args = parser().parse_args(arguments)
    try:
        code = int(VERBS[args.verb].run(find(repository, args.pin), args))
        print(end="", flush=True)
        return code
    except Refusal as refusal:
        print(f"overlay {args.verb}: {refusal}", file=sys.stderr)
        return int(refusal.code)
    except KeyboardInterrupt:
        print(f"overlay {args.verb}: interrupted; run it again to finish", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head -1` has what it wanted
        _drop_output()
        return 141
    except OSError as error:
        what = f"cannot use {error.filename or 'standard output'}: {error.strerror}"
        print(f"overlay {args.verb}: {what}; mend that and run it again", file=sys.stderr)
        if not error.filename:
            _drop_output()
        return int(Exit.FAILED if Exit.FAILED in VERBS[args.verb].codes else Exit.UNTRIED)


def _drop_output() -> None:
    """Python flushes once more at its end, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
