"""What the command lines of the tools share: pins, exit codes, and refusals in one sentence."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from overlaytool.errors import EXIT_HELP, Exit, Refusal
from overlaytool.pin import Pin, find


@dataclass(frozen=True)
class Verb:
    """One verb: its help, the exit codes that it uses, and what adds its options next to --pin.

    `failed` is its exit code where a file cannot be used.
    """

    run: Callable[[Pin, argparse.Namespace], int]
    help: str
    codes: tuple[Exit, ...]
    options: Callable[[argparse.ArgumentParser], None] | None = None
    failed: Exit = Exit.FAILED


def parser(tool: str, description: str, verbs: dict[str, Verb]) -> argparse.ArgumentParser:
    """The argument parser of a tool with verbs, with the exit codes of each in its help."""
    top = argparse.ArgumentParser(prog=tool, description=description)
    actions = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in verbs.items():
        fill(actions.add_parser(name, help=verb.help, allow_abbrev=False), verb)
    return top


def fill(sub: argparse.ArgumentParser, verb: Verb) -> None:
    """Give the parser of one verb its options and its help."""
    codes = "\n".join(f"  {code.value}  {EXIT_HELP[code]}" for code in verb.codes)
    sub.description = f"{verb.help[0].upper()}{verb.help[1:]}."
    sub.epilog = f"exit codes:\n{codes}"
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.add_argument("--pin", metavar="RELEASE", help="the pinned release (patches/default)")
    if verb.options:
        verb.options(sub)


def run(name: str, verb: Verb, args: argparse.Namespace, repository: Path) -> int:
    """Run one verb; a refusal is one sentence on stderr and its exit code."""
    if isinstance(sys.stdout, TextIOWrapper):  # a path may hold what the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = int(verb.run(find(repository, args.pin), args))
        print(end="", flush=True)
        return code
    except Refusal as refusal:
        print(f"{name}: {refusal}", file=sys.stderr)
        return int(refusal.code)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; run it again to finish", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head -1` has what it wanted
        _drop_output()
        return 141
    except OSError as error:
        what = f"cannot use {error.filename or 'standard output'}: {error.strerror}"
        print(f"{name}: {what}; fix that and run it again", file=sys.stderr)
        if not error.filename:
            _drop_output()
        return int(verb.failed)


def _drop_output() -> None:
    """Python flushes once more at its end, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
