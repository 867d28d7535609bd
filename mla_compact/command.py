"""The command `mla-compact`: the tools of a clone, with this interpreter where none is named."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from . import HOME

USAGE = """usage: mla-compact VERB [ARGUMENT ...]; mla-compact VERB --help tells more

With the plugin, which this package brings, no file of sglang is changed:
  doctor    print what of an installation is well, and how to fix the rest
  verify    check every place where sglang looks the name up
  prove     compare stock, compact and BF16 on this card
  diagnose  read a profiler trace of a server

For releases and programs of sglang that load no plugins:
  apply     patch the sglang of this interpreter
  unapply   give every file its bytes back; do so before this package is uninstalled
  status    print the state of the tree

exit codes: those of the verb; 2 for an unknown one"""

MODULES = {"doctor": "doctortool.cli", "diagnose": "diagnosetool.cli", "prove": "bench.proof"}
OVERLAY_VERBS = ("apply", "unapply", "status", "verify")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    verb, *rest = (sys.argv[1:] if arguments is None else list(arguments)) or [""]
    if verb in ("", "-h", "--help"):
        print(USAGE, file=sys.stdout if verb else sys.stderr)
        return 0 if verb else 2
    sys.path[:0] = [str(HOME / "scripts"), str(HOME)]
    os.environ["ASKED_BY"] = "mla-compact"
    sys.argv[0] = f"mla-compact {verb}"  # argparse names the command by it
    if verb in MODULES:
        return int(_main_of(MODULES[verb])(rest))
    if verb in OVERLAY_VERBS:
        return int(_main_of("overlaytool.cli")([verb, *_where(verb, rest)]))
    if verb == "--version":
        return int(_main_of("overlaytool.cli")(["--version"]))
    print(f"mla-compact: {verb!r} is no verb: run mla-compact --help", file=sys.stderr)
    return 2


def _main_of(module: str) -> Any:
    return import_module(module).main


def _where(verb: str, rest: list[str]) -> list[str]:
    """The arguments with an interpreter; `verify` wants one next to a tree, too."""
    given = {argument.partition("=")[0] for argument in rest}
    enough = {"--python"} if verb == "verify" else {"--python", "--tree"}
    return rest if given & enough else [*rest, "--python", sys.executable]
