"""What the command lines of the tools share: pins, exit codes, and refusals in one sentence."""

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from overlaytool.errors import EXIT_HELP, Exit, Refusal
from overlaytool.pin import REPOSITORY, Pin, find

_NAMES = ("pin", "tree", "python", "to")
_VARIABLES = {"from-wheel": "WHEEL"} | {name: name.upper() for name in _NAMES}


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


def as_typed(text: str) -> str:
    """A message of a tool; where the Makefile asked, it names make's variables and verbs."""
    if os.environ.get("ASKED_BY") != "make":
        return text
    text = re.sub(r"scripts/(overlay|carry) ", "make ", text)
    names = "|".join(_VARIABLES)
    return re.sub(
        rf"--({names})\b(?: (?=[0-9A-Z]))?", lambda found: f"{_VARIABLES[found[1]]}=", text
    )


class Parser(argparse.ArgumentParser):
    """A parser whose errors name what was typed."""

    def error(self, message: str) -> Any:
        """Print the error and exit with 2."""
        super().error(as_typed(message))


def version(sub: argparse.ArgumentParser) -> None:
    """Give a parser --version; a copy of the scripts alone states none."""
    file = REPOSITORY / "pyproject.toml"
    stated = tomllib.loads(file.read_text())["project"]["version"] if file.exists() else "unknown"
    sub.add_argument("--version", action="version", version=f"%(prog)s {stated}")


def parser(tool: str, description: str, verbs: dict[str, Verb]) -> argparse.ArgumentParser:
    """The argument parser of a tool with verbs, with the exit codes of each in its help."""
    top = Parser(prog=tool, description=description)
    version(top)
    actions = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in verbs.items():
        fill(actions.add_parser(name, help=verb.help, allow_abbrev=False), verb)
    return top


def fill(sub: argparse.ArgumentParser, verb: Verb) -> None:
    """Give the parser of one verb its options and its help."""
    codes = "\n".join(f"  {c.value:<3}  {EXIT_HELP[c]}" for c in (*verb.codes, Exit.INTERRUPTED))
    sub.description = f"{verb.help[0].upper()}{verb.help[1:]}."
    sub.epilog = f"exit codes:\n{codes}"
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    version(sub)
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
        print(as_typed(f"{name}: {refusal}"), file=sys.stderr)
        return int(refusal.code)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; run it again to finish", file=sys.stderr)
        return Exit.INTERRUPTED
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
