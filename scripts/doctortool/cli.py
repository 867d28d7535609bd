"""Command line of `scripts/doctor`."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from overlaytool import command
from overlaytool.command import Verb
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import REPOSITORY, Pin

from doctortool.findings import CAPABILITY, Asked, examine
from doctortool.line import FIX


def _doctor(pin: Pin, args: argparse.Namespace) -> int:
    """Print the findings; 0 all well, 1 something to fix."""
    if args.capability and not CAPABILITY.fullmatch(args.capability):
        what = f"--capability {args.capability} is no compute capability"
        raise Refusal(f"{what}: give one such as 9.0", Exit.USAGE)
    try:
        lines = list(examine(pin, Asked(args.python, args.server, args.capability)))
    except ValueError as error:
        raise Refusal(str(error), Exit.USAGE) from None
    if args.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        print(*(command.as_typed(str(line)) for line in lines), sep="\n")
    return Exit.FAILED if any(line.mark == FIX for line in lines) else Exit.OK


def _options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--python", metavar="EXE", default=sys.executable, help="look into this one")
    text = "judge for this card, such as 9.0, not for the one that is seen here"
    sub.add_argument("--capability", metavar="N.N", help=text)
    sub.add_argument("--json", action="store_true", help="print JSON")
    text = "arguments of a server, after --: print which of them are refused"
    sub.add_argument("server", nargs="*", metavar="-- ARGUMENT", help=text)


DOCTOR = Verb(
    _doctor,
    "print what of an installation is well, and how to fix the rest (1: there is something to fix)",
    (Exit.OK, Exit.FAILED, Exit.USAGE),
    _options,
)


def main(arguments: Sequence[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Look into one installation and return the exit code."""
    tool = command.program("doctor")
    sub = argparse.ArgumentParser(prog=tool, allow_abbrev=False)
    command.fill(sub, DOCTOR)
    return command.run(tool, DOCTOR, sub.parse_args(arguments), repository)
