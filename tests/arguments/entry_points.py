"""Starts programs of several sglangs with the backend's name, each in a fork of one process.

Each command ends in an option that no program knows, so that its own parser stops it: with "invalid
choice" where it does not take the name, and with "unrecognized arguments" where it does.

stdin:  JSON {folder of a sglang: {label: [program, argument, ...]}}; a program is a module to run,
        "module:function", or "Engine", which takes a model and a name and is stopped before it
        starts processes
stdout: JSON {folder: {label: [exit code, what it printed]}}
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import runpy
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from doctortool.fake_device import import_real
from doctortool.fork import in_child

PRELOADED = ("sglang.srt.entrypoints.engine", "sglang.srt.server_args", "sglang.cli.serve")
BACKENDS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
)


def start(program: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a program."""
    module, _, function = program.partition(":")
    sys.argv = [program, *arguments]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            if program == "Engine":
                engine(*arguments)
            elif function:
                getattr(importlib.import_module(module), function)()
            else:
                runpy.run_module(module, run_name="__main__")
        except SystemExit as end:
            return (end.code if isinstance(end.code, int) else 1), output.getvalue()
    return 0, output.getvalue()


def engine(model: str, name: str) -> None:
    """Print the backends that `sglang.Engine` would start with; the CPU has no say in that."""
    module: Any = importlib.import_module("sglang.srt.entrypoints.engine")

    def stop(*_: object, server_args: object, **__: object) -> None:
        print([getattr(server_args, field) for field in BACKENDS])
        sys.exit(0)

    module.Engine._launch_subprocesses = module._launch_subprocesses = stop
    module.Engine(model_path=model, device="cpu", **dict.fromkeys(BACKENDS, name))


def started(tree: str, commands: Mapping[str, list[str]]) -> dict[str, tuple[int, str]]:
    """What `start` returns of each command, with the sglang in `tree`."""
    sys.path.insert(0, tree)
    for name in PRELOADED:
        importlib.import_module(name)
    return {label: in_child(partial(start, *command)) for label, command in commands.items()}


def main() -> None:
    import_real()
    request = json.load(sys.stdin)
    answers = {tree: in_child(partial(started, tree, each)) for tree, each in request.items()}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
