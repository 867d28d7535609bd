"""Starts servers up to their resolved arguments, each in a fork with another set of installs.

A fork puts the folders of `path` on its path, where sglang finds plugins, and takes `package`, if
any, for the folder of sglang.

stdin:  JSON {label: {"path": [folder, ...], "package": folder, "arguments": [argument, ...]}};
        without arguments the hook points are looked at, by the program that is named first
stdout: JSON {label: {"fields": {name: value}, "package": whether the backend can be imported,
        "exit": code, "printed": text}}; of a server that is stopped, the one field is "error"
usage:  python start.py HOOKPOINTS_PROGRAM
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

from doctortool.fake_device import fake_device, import_real
from doctortool.fork import in_child
from doctortool.resolver import resolve

from tests.arguments.resolve import fields

CAPABILITY = (9, 0)
PACKAGE = "sglang.srt.layers.attention.flashinfer_mla_compact"
PRELOADED = ("sglang.srt.plugins", "sglang.srt.server_args", "sglang.srt.speculative.draft_utils")


def start(program: str, path: list[str], package: str, arguments: list[str]) -> dict[str, Any]:
    tools = str(Path(program).parents[1])  # the wheel has its own
    sys.path[:] = [*path, *(folder for folder in sys.path if folder != tools)]
    assert "overlaytool" not in sys.modules
    if package:
        importlib.import_module("sglang").__path__[:0] = [package]
    output, answer = io.StringIO(), dict[str, Any](fields={}, exit=0)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            if arguments:
                importlib.import_module("sglang.srt.plugins").load_plugins()
                importlib.invalidate_caches()  # as packages do that write modules
                answer["package"] = importlib.util.find_spec(PACKAGE) is not None
                answer["fields"] = resolve(arguments, fields)
            else:
                sys.argv = [program]
                runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            answer["exit"] = end.code
    return answer | {"printed": output.getvalue()}


def main() -> None:
    import_real()
    fake_device(CAPABILITY)
    with contextlib.redirect_stdout(sys.stderr):  # sglang logs there
        for name in PRELOADED:
            importlib.import_module(name)
        cases = json.load(sys.stdin)
        answers = {
            label: in_child(partial(start, sys.argv[1], **case)) for label, case in cases.items()
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
