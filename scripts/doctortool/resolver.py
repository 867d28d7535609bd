"""Asks sglang what it makes of server arguments, on a GPU that need not be there.

The Python that has sglang runs this as a program, offline. sglang decides what device it runs
on when it is imported, so each device gets a fork of this process, made before that.

stdin:  JSON {"devices": {label: [major, minor]}, "runs": {label: [argument, ...]}}
stdout: JSON {device: {run: answer}}; an answer has "error", what sglang refuses the arguments with,
        or "unjudged", why it could not tell, or what `answer` states
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from doctortool.fake_device import MEMORY, fake_device, import_real
from doctortool.fork import in_child
from doctortool.runner_facts import answer

OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
Answer = dict[str, Any]
Read = Callable[[argparse.Namespace, Any, Any, Any], Answer]


class Unjudged(Exception):
    """What sglang can't be asked here."""


def resolve(arguments: Sequence[str], read: Read) -> Answer:
    """What `read` makes of the arguments as given and as resolved."""
    environment = dict(os.environ)  # sglang writes what it resolves there, for its children
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args, raw = _prepare(list(arguments))
            view, backends = _resolved(args)
            return _read(read, raw, args, view, backends)
    except SystemExit as end:  # of the plugin's guard, or of the parser, whose last line says why
        told = end.code if isinstance(end.code, str) else said.getvalue().strip()
        return {"error": told.rpartition("error: ")[2] or "for a reason untold"}
    except (ValueError, AssertionError, NotImplementedError) as error:
        return {"error": str(error) or _failed(error)}
    except Exception as error:
        return {"unjudged": str(error) or _failed(error)}
    finally:
        os.environ.clear()
        os.environ.update(environment)


def _failed(error: BaseException) -> str:
    """The line of code that failed without a word."""
    line = traceback.extract_tb(error.__traceback__)[-1].line
    return f"{type(error).__name__} of {line}"


def _read(read: Read, *resolved: Any) -> Answer:
    """What `read` makes of them; a fault of it is none of the arguments."""
    try:
        return read(*resolved)
    except Exception as error:
        raise Unjudged(str(error) or type(error).__name__) from error


def _prepare(arguments: list[str]) -> tuple[Any, argparse.Namespace]:
    """The server arguments, and as given, if models are local: nothing is asked of a network."""
    server_args: Any = importlib.import_module("sglang.srt.server_args")
    # It asks nvidia-smi, in MiB.
    common: Any = importlib.import_module("sglang.srt.utils.common")
    common.get_nvgpu_memory_capacity = lambda: MEMORY / 2**20
    made, given = server_args.ServerArgs.from_cli_args, argparse.Namespace()

    def make(raw: argparse.Namespace) -> Any:
        for name in ("model_path", "speculative_draft_model_path"):
            model = getattr(raw, name, None)
            if model and not (Path(model) / "config.json").is_file():
                raise Unjudged(f"{model} is no folder with a readable config.json")
        vars(given).update(vars(raw))
        return made(raw)

    server_args.ServerArgs.from_cli_args = make
    try:
        return server_args.prepare_server_args(arguments), given
    finally:
        server_args.ServerArgs.from_cli_args = made


def _resolved(args: Any) -> tuple[Any, Any]:
    """The arguments as resolved, and their prefill and decode backends."""
    if not hasattr(args, "resolve_once"):  # up to 0.5.18 the constructor has resolved them in place
        return args, args.get_attention_backends()
    args.resolve_once()
    overrides: Any = importlib.import_module("sglang.srt.arg_groups.overrides")
    view = overrides.resolved_view(args)
    return view, overrides.attention_backends_of(view)


def on_device(
    capability: Sequence[int], runs: Mapping[str, Sequence[str]], read: Read
) -> dict[str, Answer]:
    fake_device((capability[0], capability[1]))
    with contextlib.suppress(ModuleNotFoundError):  # older releases load none
        importlib.import_module("sglang.srt.plugins").load_plugins()
    return {label: resolve(arguments, read) for label, arguments in runs.items()}


def main() -> None:
    os.environ.update(OFFLINE)
    request = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # sglang logs there
        import_real()
        answers = {
            label: in_child(functools.partial(on_device, capability, request["runs"], answer))
            for label, capability in request["devices"].items()
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
