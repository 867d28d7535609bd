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

from doctortool import server_arguments
from doctortool.findings import FIX, examine


def _doctor(pin: Pin, args: argparse.Namespace) -> int:
    """Print the findings; 0 all well, 1 something to fix."""
    try:
        server = server_arguments.parse(args.server)
    except ValueError as error:
        raise Refusal(str(error), Exit.USAGE) from None
    lines = list(examine(pin, args.python, server if args.server else None))
    if args.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        print(*(command.as_typed(str(line)) for line in lines), sep="\n")
    return Exit.FAILED if any(line.mark == FIX for line in lines) else Exit.OK


def _options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--python", metavar="EXE", default=sys.executable, help="look into this one")
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
