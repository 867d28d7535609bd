"""Looks at the hook points once for each mutation of one module, in a fork of one process.

Importing a tree takes seconds, so it is imported once. Each child drops the modules that register
the name and the mutated one, imports them again, the mutated one from its new text, and runs the
program under test.

stdin:  JSON {label: [module, text to replace, text to put]}
stdout: JSON {label: [exit code, output]}
usage:  python mutate.py HOOKPOINTS_PROGRAM
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import linecache
import runpy
import sys
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

from doctortool.fork import in_child

REGISTERING = (
    "sglang.srt.layers.attention.flashinfer_mla_compact",
    "sglang.srt.layers.attention.attention_registry",
    "sglang.srt.arg_groups",
    "sglang.srt.server_args",
    "sglang.srt.model_executor.model_runner_components.misc_utils",
)


class MutatedSource(SourceFileLoader):
    """Loads one module from its text on disk with one replacement."""

    def __init__(self, module: str, old: str, new: str) -> None:
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None, module
        super().__init__(module, spec.origin)
        text = super().get_data(spec.origin).decode()
        if old not in text:
            raise ValueError(f"{module} does not hold {old!r}")
        self.text = text.replace(old, new)
        # What inspect shows must be what runs.
        lines = self.text.splitlines(keepends=True)
        linecache.cache[spec.origin] = (len(self.text), None, lines, spec.origin)

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec")

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None


def look(program: str, module: str, old: str, new: str) -> tuple[int, str]:
    """Exit code and output of the program when `module` is mutated."""
    loader = MutatedSource(module, old, new)
    sys.meta_path.insert(0, loader)
    for name in [n for n in sys.modules if n.startswith((*REGISTERING, module))]:
        del sys.modules[name]
    output = io.StringIO()
    sys.argv = [program]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0), output.getvalue()
    raise AssertionError("the program ended without an exit code")


def main() -> None:
    program = sys.argv[1]
    runpy.run_path(program)["load"](None)
    mutations = json.load(sys.stdin)
    answers = {label: in_child(partial(look, program, *m)) for label, m in mutations.items()}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
